"""Reading rows by key, in pages, behind a position, and in as many round trips as needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import pytest

from leftfold import ConfigurationError, ContractError, Position, Receipt, StaleViewError, ViewNotBuilt
from leftfold.client import Reader, Views
from leftfold.client.lookup import Live
from leftfold.client.steps import run
from leftfold.engine.views.generations import change, open_generation
from leftfold.memory import MemoryViewStore
from leftfold.ports.flush import Generation, Phase
from leftfold.ports.queries import Counting, GetRow, Matching, Query, Rows
from tests.domains.shop import Opened, Spend, Summary, household_spend, open_baskets
from tests.engine.fold_bench import PARTITIONS, TOPIC, FoldBench, out


@pytest.fixture
def bench() -> FoldBench:
    """Thirty households, every third of them gold."""
    bench = FoldBench()
    for number in range(30):
        bench.write(out(f"b{number}", f"h{number:02d}", p=10 if number % 3 == 0 else 1))
    bench.settle()
    return bench


@pytest.fixture
def reader(bench: FoldBench) -> Reader[Spend, str]:
    return bench.views[household_spend]


def write_unfolded(bench: FoldBench) -> Position:
    """Just behind an event that no projector has folded."""
    (record,) = bench.write(out("late", "h00", p=1))
    return Position.at(TOPIC, record.partition, record.offset + 1)


def test_get_many_and_entry_read_rows_by_key(reader: Reader[Spend, str]) -> None:
    assert reader.get("h01") == Spend(Decimal(1), "base")
    assert reader.get("absent") is None
    assert set(reader.many(["h01", "h02", "absent", "h01"])) == {"h01", "h02"}
    assert reader.many([]) == {}
    assert reader.entry("absent").row is None


def test_an_entry_names_the_generation_that_holds_it(reader: Reader[Spend, str]) -> None:
    assert reader.entry("h01").generation == reader.entry("absent").generation == reader.describe().generation


def test_another_thread_that_drops_the_known_generation_disturbs_no_read(bench: FoldBench) -> None:
    """It does when a generation is swapped; here it is dropped behind each look at it."""
    cached: list[Any] = []
    known = property(lambda _: cached.pop() if cached else None, lambda _, found: cached.append(found))
    live: Any = type("Dropped", (Live,), {"known": known})(household_spend)
    for _ in range(2):  # the first asks the store, the second finds it in the cache
        assert run(bench.store, live.generation()).id == bench.views[household_spend].describe().generation


def test_a_position_that_is_not_reached_in_time_is_a_stale_view(bench: FoldBench, reader: Reader[Spend, str]) -> None:
    position = write_unfolded(bench)
    for read in (
        lambda: reader.get("h00", after=position, timeout=0.02),
        lambda: reader.many(["h00"], after=position, timeout=0.02),
        lambda: asyncio.run(reader.aget("h00", after=position, timeout=0.02)),
    ):
        started = time.monotonic()
        with pytest.raises(
            StaleViewError, match="view household_spend is at .* not yet at .*leftfold run household_spend"
        ) as e:
            read()
        assert time.monotonic() - started < 30
        assert str(position) in str(e.value)


def test_reading_waits_until_the_view_gets_there() -> None:
    bench = FoldBench()
    projector = bench.settle()
    position = write_unfolded(bench)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        projector.step(0.0)

    assert Views(bench.store, wait)[household_spend].get("h00", after=position, timeout=240.0) == Spend(
        Decimal(1), "base"
    )
    assert waits


def test_topics_that_the_view_does_not_read_are_ignored(reader: Reader[Spend, str]) -> None:
    elsewhere = Position.at("payments.events", 0, 999)
    assert reader.get("h01", after=elsewhere, timeout=0.0) is not None


def test_a_stream_keyed_row_waits_for_its_own_partition_only(bench: FoldBench) -> None:
    (record,) = bench.write(Opened(basket_id="new", household="h"))
    position = Position.at(TOPIC, record.partition, record.offset + 1)
    views = bench.views[open_baskets]
    keys = {f"b{n}": bench.live(open_baskets) for n in range(30)}
    waiting = []
    for key in keys:
        try:
            views.get(key, after=position, timeout=0.0)
        except StaleViewError:
            waiting.append(key)
    assert 0 < len(waiting) < 30
    with pytest.raises(StaleViewError):
        views.get("new", after=position, timeout=0.0)


def test_a_scan_pages_through_every_row_once(reader: Reader[Spend, str]) -> None:
    pages, cursor = [], ""
    while True:
        page = reader.scan(cursor=cursor, limit=7)
        pages.append(page.rows)
        if page.cursor is None:
            break
        cursor = page.cursor
    keys = [key for rows in pages for key, _ in rows]
    assert sorted(keys) == [f"h{n:02d}" for n in range(30)]
    assert all(len(rows) == 7 for rows in pages[:4])
    assert dict(reader.items()) == dict(row for rows in pages for row in rows)


def test_a_cursor_of_a_generation_that_was_removed_is_an_error(bench: FoldBench, reader: Reader[Spend, str]) -> None:
    cursor = reader.scan(limit=5).cursor
    assert cursor is not None
    old = bench.live(household_spend)
    change(bench.store, "household_spend", lambda r: r.without(old.id))
    with pytest.raises(ViewNotBuilt, match="no longer exists; start the scan over"):
        reader.scan(cursor=cursor)


def test_a_scan_does_not_end_early_where_rows_are_being_removed(bench: FoldBench, reader: Reader[Spend, str]) -> None:
    cursor = reader.scan(limit=5).cursor
    assert cursor is not None
    bench.store.unlink(bench.live(household_spend))
    for place in (cursor, ""):
        with pytest.raises(ViewNotBuilt, match="no longer exists; start the scan over"):
            reader.scan(cursor=place)


def test_a_scan_continues_in_its_generation_while_that_is_kept(bench: FoldBench, reader: Reader[Spend, str]) -> None:
    first = reader.scan(limit=5)
    assert first.cursor is not None
    old = bench.live(household_spend)
    change(bench.store, "household_spend", lambda r: r.pointed(replace(old, id="9-new")))
    rest = reader.scan(cursor=first.cursor)
    assert sorted(key for key, _ in [*first.rows, *rest.rows]) == [f"h{n:02d}" for n in range(30)]
    change(bench.store, "household_spend", lambda r: r.without(old.id))
    with pytest.raises(ViewNotBuilt, match="start the scan over"):
        reader.scan(cursor=first.cursor)


@pytest.mark.parametrize("phase", [Phase.BULK, Phase.SEALED, Phase.HELD, Phase.PINNED])
def test_a_cursor_shows_no_rows_of_a_generation_that_was_never_live(
    bench: FoldBench, reader: Reader[Spend, str], phase: Phase
) -> None:
    live = bench.live(household_spend)
    other = replace(live, phase=phase, name="march" if phase is Phase.PINNED else "")
    change(bench.store, "household_spend", lambda r: r.with_generation(other))
    with pytest.raises(ViewNotBuilt, match="start the scan over"):
        reader.scan(cursor=f"{live.id}:0:")
    with pytest.raises(ContractError, match="is no cursor"):
        reader.scan(cursor=f"{live.id}:{live.buckets}:")


@pytest.mark.parametrize("cursor", ["x", "1-a", "1-a:x:", ":", "1-a:-1:k"])
def test_a_cursor_that_is_none_is_refused(reader: Reader[Spend, str], cursor: str) -> None:
    with pytest.raises((ContractError, ViewNotBuilt)):
        reader.scan(cursor=cursor)


def test_every_read_follows_the_pointer_to_a_new_generation(bench: FoldBench, reader: Reader[Spend, str]) -> None:
    warm = reader
    assert warm.get("h01") is not None
    old = bench.live(household_spend)
    new = open_generation(bench.store, household_spend, {TOPIC: PARTITIONS}, Phase.SEALED)
    projector = bench.projector()
    bench.until(projector, lambda: not projector.step(0.0) and projector.caught_up())
    change(bench.store, "household_spend", lambda r: r.pointed(new))
    change(bench.store, "household_spend", lambda r: r.without(old.id))
    bench.fold(None, out("more", "h01", p=1))
    reads: list[Callable[[], Spend | None]] = [
        lambda: warm.get("h01"),
        lambda: warm.many(["h01"])["h01"],
        lambda: asyncio.run(warm.aget("h01")),
    ]
    for read in reads:
        assert read() == Spend(Decimal(2), "base")
        warm._live.known = old
    assert dict(warm.items())["h01"] == Spend(Decimal(2), "base")
    bench.store.unlink(old)
    assert set(warm.find(tier="gold")) == {f"h{n:02d}" for n in range(0, 30, 3)}
    assert len(list(warm.items())) == 30
    assert warm.describe().generation == new.id


def test_reading_a_view_that_was_never_built_names_the_command() -> None:
    with pytest.raises(ViewNotBuilt, match="leftfold run household_spend, or build it: leftfold rebuild"):
        Views(MemoryViewStore())[household_spend].get("h")


def test_a_generation_that_lost_its_checkpoints_is_an_error_and_no_endless_wait(
    bench: FoldBench, reader: Reader[Spend, str]
) -> None:
    bench.store.unlink(bench.live(household_spend))
    for read in (
        lambda: reader.get("h01", timeout=0.02),
        lambda: reader.many(["h01", "h02"], timeout=0.02),
        lambda: asyncio.run(reader.aget("h01", timeout=0.02)),
        reader.describe,
    ):
        with pytest.raises(ViewNotBuilt, match="not whole"):
            read()


def test_a_view_describes_itself(bench: FoldBench) -> None:
    bench.fold(None, Opened(basket_id="b", household="h"))
    found = bench.views[open_baskets].describe()
    assert (found.view, found.phase, found.buckets, found.rows) == ("open_baskets", "live", PARTITIONS, 1)
    assert found.position.covers(bench.log.reader().ends([TOPIC]))
    assert found.hash == open_baskets.hash
    assert bench.views[open_baskets].get("b") == Summary()


def test_one_reader_per_view(bench: FoldBench) -> None:
    assert bench.views[household_spend] is bench.views[household_spend]


def test_one_key_in_place_of_many_is_refused(reader: Reader[Spend, str]) -> None:
    """Taken letter by letter, a text would be as many keys."""
    reads: tuple[Callable[[], object], ...] = (
        lambda: reader.many("h01"),
        lambda: asyncio.run(reader.amany("h01")),
        lambda: next(reader.watch(keys="h01", timeout=0.0)),
        lambda: asyncio.run(anext(reader.awatch(keys="h01", timeout=0.0))),
    )
    for read in reads:
        with pytest.raises(ConfigurationError, match=r"'h01' is one key; say a list of keys: \['h01'\]"):
            read()


def test_what_is_no_position_is_refused_with_where_one_comes_from(reader: Reader[Spend, str]) -> None:
    receipt: Any = Receipt(Position(), 1)
    text: Any = "baskets.events[0:1]"
    for wrong, hint in ((receipt, "say receipt.position"), (text, "take it from a receipt")):
        reads: tuple[Callable[[], object], ...] = (
            partial(reader.get, "h01", after=wrong),
            partial(reader.many, ["h01"], after=wrong),
            partial(reader.wait_reached, wrong),
            partial(reader.watch, after=wrong),
            partial(_aget, reader, wrong),
        )
        for read in reads:
            with pytest.raises(ConfigurationError, match=f"no Position; {hint}"):
                read()


def test_a_reader_is_found_by_the_view_and_not_by_its_name(bench: FoldBench) -> None:
    name: Any = "household_spend"
    with pytest.raises(ConfigurationError, match="found by the view itself, not by str; import it"):
        bench.views[name]
    with pytest.raises(ConfigurationError, match="found by the view itself"):
        bench.views.as_of(name, "march")


@pytest.mark.parametrize("limit", [0, -1, 2.5])
def test_a_page_has_at_least_one_row(reader: Reader[Spend, str], limit: Any) -> None:
    """A page of none would have a cursor to itself, and paging would never end."""
    with pytest.raises(ConfigurationError, match=f"limit={limit} must be a whole number from 1 on"):
        reader.scan(limit=limit)


def _aget(reader: Reader[Spend, str], after: Any) -> Spend | None:
    return asyncio.run(reader.aget("h01", after=after))


A = TypeVar("A")


class Counted(MemoryViewStore):
    """A counted that remembers what it was asked; each question is one round trip."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[type[Query[Any]]] = []

    def ask(self, question: Query[A], /) -> A:
        """Counts it."""
        self.asked.append(type(question))
        return super().ask(question)


@pytest.fixture
def counted() -> Counted:
    """Thirty households in sixteen buckets."""
    bench, counted = FoldBench(household_spend), Counted()
    bench.store = counted
    for number in range(30):
        bench.write(out(f"b{number}", f"h{number:02d}", p=10 if number % 3 == 0 else 1))
    bench.settle()
    return counted


@pytest.mark.parametrize(
    ("read", "trips"),
    [
        (lambda reader: reader.get("h01"), [GetRow]),
        (lambda reader: reader.entry("h01"), [Rows]),
        (lambda reader: reader.many([f"h{n:02d}" for n in range(30)]), [Rows]),
        (lambda reader: reader.count(), [Rows]),
        (lambda reader: reader.count(tier="gold"), [Counting]),
        (lambda reader: reader.count_between("tier", above="b"), [Counting]),
        (lambda reader: reader.find(tier="gold"), [Matching, Rows]),
        (lambda reader: reader.find(tier="silver"), [Matching]),
        (lambda reader: reader.top("tier", 5), [Matching, Rows]),
        (lambda reader: reader.between("tier", at_least="b", limit=5), [Matching, Rows]),
    ],
)
def test_a_read_over_all_buckets_takes_as_many_round_trips_as_one_over_one(
    counted: Counted, read: Callable[[Reader[Spend]], object], trips: list[type[Query[Any]]]
) -> None:
    reader = Views(counted)[household_spend]
    read(reader)
    counted.asked.clear()
    read(reader)
    assert counted.asked == trips


def second_generation(bench: FoldBench) -> Generation:
    """Another generation of the view, with the same rows."""
    new = open_generation(bench.store, household_spend, {TOPIC: PARTITIONS}, Phase.SEALED)
    projector = bench.projector()
    bench.until(projector, lambda: not projector.step(0.0) and projector.caught_up())
    return new


def test_a_read_that_may_not_wait_gets_its_row_behind_a_swap(bench: FoldBench, reader: Reader[Spend, str]) -> None:
    both, position = [bench.live(household_spend), second_generation(bench)], Position.at(TOPIC, 0, 0)
    reads: list[Callable[[], Spend | None]] = [
        lambda: reader.get("h01", timeout=0.0),
        lambda: reader.get("h01", after=position, timeout=0.0),
        lambda: reader.entry("h01", timeout=0.0).row,
        lambda: reader.many(["h01"], timeout=0.0)["h01"],
        lambda: asyncio.run(reader.aget("h01", after=position, timeout=0.0)),
    ]
    for read in reads:
        assert read() == Spend(Decimal(1), "base")
        both.reverse()
        change(bench.store, "household_spend", lambda r: r.pointed(both[0]))
        assert read() == Spend(Decimal(1), "base")


def test_a_read_of_a_fixed_view_does_not_wait_for_what_it_never_holds(bench: FoldBench) -> None:
    fixed = replace(second_generation(bench), name="march")
    change(bench.store, "household_spend", lambda r: r.pinned(fixed))
    reader = bench.views.as_of(household_spend, "march")
    assert reader.get("h01") == Spend(Decimal(1), "base")
    with pytest.raises(StaleViewError, match="as of 'march' stays at .*; read the live view for that"):
        reader.get("h01", after=write_unfolded(bench), timeout=1e6)
