"""Searches by index: in memory, while rows change, behind a position, and asked wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import pytest

from leftfold import ConfigurationError, FoldView, Position, Receipt, StaleViewError
from leftfold.client import Reader, Views
from leftfold.client.search import Search
from leftfold.memory import MemoryViewStore
from leftfold.ports.protocols import ViewStore
from leftfold.ports.queries import Query, Rows
from tests.client.search_contract import Kind, Searches, filled, things
from tests.domains.shop import CheckedOut, Spend, household_spend
from tests.engine.fold_bench import TOPIC, FoldBench, out


class TestSearchesInMemory(Searches):
    @pytest.fixture
    def store(self) -> ViewStore:
        return MemoryViewStore()


nothing_yet = Views(MemoryViewStore())[things]


def test_a_field_without_an_index_is_refused_by_every_search() -> None:
    for search in (
        lambda: nothing_yet.find(length=1),
        lambda: nothing_yet.top("length", 3),
        lambda: nothing_yet.between("length", above=1),
        lambda: nothing_yet.count(length=1),
        lambda: nothing_yet.count_between("length"),
    ):
        with pytest.raises(ConfigurationError, match=r"view things has no index on 'length'; it has \['size', 'price'"):
            search()


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("size", "1", r"Thing.size is int, and '1' is str"),
        ("size", True, r"Thing.size is int, and True is bool"),
        ("size", Decimal(1), r"Thing.size is int"),
        ("size", None, r"Thing.size is int, and None is NoneType"),
        ("price", 1.5, r"Thing.price is Decimal, and 1.5 is float"),
        ("price", Decimal("NaN"), r"Thing.price: Decimal\('NaN'\) cannot be indexed"),
        ("at", datetime(2026, 1, 1), r"Thing.at holds aware times, and .* has no time zone"),  # noqa: DTZ001  # that is what is wrong with it
        ("at", date(2026, 1, 1), r"Thing.at is datetime, and .* is date"),
        ("day", datetime(2026, 1, 1, tzinfo=UTC), r"Thing.day is date, and .* is datetime"),
        ("ok", 1, r"Thing.ok is bool, and 1 is int"),
        ("kind", "small", r"Thing.kind is Kind, and 'small' is str"),
        ("color", Kind.SMALL, r"Thing.color is str, and .* is Kind"),
        ("weight", "heavy", r"Thing.weight is Decimal \| None, and 'heavy' is str"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_fields_own(field: str, value: Any, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        nothing_yet.find(**{field: value})
    if value is not None:
        with pytest.raises(ConfigurationError, match=what):
            nothing_yet.between(field, at_least=value)


def test_a_range_has_one_end_on_each_side() -> None:
    with pytest.raises(ConfigurationError, match="size: at_least= and above= are two ends on one side"):
        nothing_yet.between("size", at_least=1, above=2)
    with pytest.raises(ConfigurationError, match="size: at_most= and below= are two ends on one side"):
        nothing_yet.count_between("size", at_most=1, below=2)


@pytest.mark.parametrize("number", [0, -1, 2.5])
def test_a_number_of_rows_is_a_whole_one(number: Any) -> None:
    with pytest.raises(ConfigurationError, match="n=.* must be a whole number"):
        nothing_yet.top("size", number)
    with pytest.raises(ConfigurationError, match="limit=.* must be a whole number"):
        nothing_yet.between("size", limit=number)


def test_nothing_asked_finds_nothing_and_an_empty_view_has_nothing() -> None:
    store = MemoryViewStore()
    with filled(store, {}):
        empty = Views(store)[things]
        assert empty.find() == {}
        assert empty.count() == 0
        assert empty.top("size", 3) == {}


A = TypeVar("A")


class Racing(MemoryViewStore):
    """A store in which rows change between an answer of the indexes and the reading of rows, once."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Callable[[], None] | None = None

    def ask(self, question: Query[A], /) -> A:
        """Lets the other one go first."""
        if isinstance(question, Rows) and self.between is not None:
            first, self.between = self.between, None
            first()
        return super().ask(question)


@pytest.fixture
def bench() -> FoldBench:
    """Four households of tier base; ten more make one gold."""
    bench = FoldBench(household_spend)
    bench.store = Racing()
    bench.views = Views(bench.store)
    for number in range(4):
        bench.write(out(f"b{number}", f"h{number}", p=1))
    return bench


def racing(bench: FoldBench) -> Reader[Spend]:
    """A reader, with h0 becoming gold when it reads rows next."""
    projector, store = bench.settle(), bench.store
    reader = bench.views[household_spend]
    assert reader.get("h0") == reader.get("h1")
    bench.write(out("more", "h0", p=10))

    def settle() -> None:
        bench.settle(projector)

    assert isinstance(store, Racing)
    store.between = settle
    return reader


def test_a_row_that_moved_away_is_not_found(bench: FoldBench) -> None:
    assert set(racing(bench).find(tier="base")) == {"h1", "h2", "h3"}


def test_twin_without_confirming_a_row_it_is_found_with_another_value(
    bench: FoldBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believing(self: Search[Any, Any], ranges: Any, hits: Any, rows: Any) -> list[tuple[str, Any]]:
        return [(key, household_spend.rows.decode(fields)) for (_, _, key), fields in zip(hits, rows, strict=True)]

    monkeypatch.setattr(Search, "_confirmed", believing)
    assert racing(bench).find(tier="base")["h0"].tier == "gold"


def test_a_range_that_is_cut_is_asked_again_and_full(bench: FoldBench) -> None:
    assert list(racing(bench).between("tier", at_most="base", limit=2)) == ["h1", "h2"]


def test_the_top_is_in_the_order_of_what_the_rows_say(bench: FoldBench) -> None:
    found = racing(bench).top("tier", 4, smallest=True)
    assert [row.tier for row in found.values()] == ["base", "base", "base", "gold"]


def searches(reader: Reader[Spend, str], **wait: Any) -> list[Callable[[], Any]]:
    """Every search, for rows of the tier `gold`; the last two give numbers."""
    return [
        partial(reader.find, tier="gold", **wait),
        partial(reader.between, "tier", at_least="gold", at_most="gold", **wait),
        partial(reader.top, "tier", 1, **wait),
        lambda: asyncio.run(reader.afind(tier="gold", **wait)),
        lambda: asyncio.run(reader.abetween("tier", at_least="gold", at_most="gold", **wait)),
        lambda: asyncio.run(reader.atop("tier", 1, **wait)),
        partial(reader.count, tier="gold", **wait),
        partial(reader.count_between, "tier", at_least="gold", **wait),
        lambda: asyncio.run(reader.acount(tier="gold", **wait)),
        lambda: asyncio.run(reader.acount_between("tier", at_least="gold", **wait)),
    ]


def write_gold(bench: FoldBench) -> Position:
    """Just behind an event that makes a household gold, and that no projector has folded."""
    (record,) = bench.write(out("b1", "h", p=10))
    return Position.at(TOPIC, record.partition, record.offset + 1)


@pytest.mark.parametrize("number", range(10))
def test_a_search_finds_what_was_folded_while_it_waited(number: int) -> None:
    bench = FoldBench()
    projector = bench.settle()
    position = write_gold(bench)
    steps: list[float] = []

    def wait(seconds: float) -> None:
        steps.append(seconds)
        projector.step(0.0)

    reader = Views(bench.store, wait)[household_spend]
    if number in (3, 4, 5, 8, 9):  # a loop of its own waits there
        projector.step(0.0)
    found = searches(reader, after=position, timeout=240.0)[number]()
    assert found == 1 or list(found) == ["h"]
    assert bool(steps) is (number not in (3, 4, 5, 8, 9))


@pytest.mark.parametrize("number", range(10))
def test_a_view_that_is_not_there_in_time_is_stale(number: int) -> None:
    bench = FoldBench()
    bench.settle()
    position = write_gold(bench)
    reader = bench.views[household_spend]
    with pytest.raises(StaleViewError, match="view household_spend is at .* not yet at"):
        searches(reader, after=position, timeout=0.01)[number]()
    assert not searches(reader)[number](), "without after= it answers at once"


@pytest.mark.parametrize("number", range(10))
def test_a_receipt_is_no_position(number: int) -> None:
    bench = FoldBench()
    bench.settle()
    with pytest.raises(ConfigurationError, match="is Receipt and no Position; say receipt.position"):
        searches(bench.views[household_spend], after=Receipt(Position(), 1))[number]()


@dataclass(frozen=True)
class Handover:
    """A row with fields that are called like what `find` takes."""

    after: str
    timeout: int


handovers = FoldView(
    "handovers",
    events=CheckedOut,
    row=Handover,
    key=lambda event: event.household,
    evolve=lambda row, event: Handover(event.basket_id, 30),
    indexes=("after", "timeout"),
)


def test_indexed_fields_called_after_and_timeout_can_be_searched() -> None:
    bench = FoldBench(handovers)
    (record,) = bench.write(out("b1", "h", p=10))
    bench.settle()
    reader = bench.views[handovers]
    assert list(reader.find(after="b1", timeout=30)) == ["h"]
    assert reader.find(timeout=31) == {}
    assert reader.count(after="b2") == 0
    position = Position.at(TOPIC, record.partition, record.offset + 1)
    assert reader.count(after=position, timeout=0.01) == 1
