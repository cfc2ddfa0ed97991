"""What a watcher is promised, on each store."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from secrets import token_hex
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leftfold import ChangesNotKept, Position, View
from leftfold.client import Change, Reader, Views
from leftfold.client import changes as watching
from leftfold.engine.views.folded_rows import FoldedBucket, place_of, stored_row
from leftfold.engine.views.generations import change, open_generation
from leftfold.ports.flush import BucketFlush, Phase
from leftfold.ports.protocols import ViewStore
from leftfold.ports.queries import Rows
from tests.domains.shop import Added, Opened, Spend, household_spend, open_baskets
from tests.engine.fold_bench import PARTITIONS, TOPIC, FoldBench, out

__all__ = ["Watches", "bench_on", "rewrite"]

OPTIONS = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
    max_examples=8,
)
SOON = 240.0


@contextmanager
def woken() -> Iterator[None]:
    """No reader in the block waits until its time is up, when it would look once more by itself."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < SOON, "it was not woken and looked again when its time was up"


def bench_on(store: ViewStore, *views: View[Any, Any]) -> FoldBench:
    """A log folded into a store, in which nothing of its views is left from before."""
    bench = FoldBench(*views)
    for view in bench.wanted:
        for generation in store.registry(view.name).generations.values():
            store.unlink(generation)
        change(store, view.name, lambda registry: type(registry)())
    bench.store, bench.views = store, Views(store)  # type: ignore[assignment]  # any store serves as well
    return bench


def rows_after(changes: Iterator[Change[Any, Any]] | list[Change[Any, Any]]) -> dict[Any, Any]:
    """The rows as the changes left them."""
    rows: dict[Any, Any] = {}
    for found in changes:
        rows[found.key] = found.row
    return {key: row for key, row in rows.items() if row is not None}


class Watches:
    """Override the fixture `store`."""

    @pytest.fixture
    def store(self) -> ViewStore:
        raise NotImplementedError

    @pytest.fixture
    def bench(self, store: ViewStore) -> FoldBench:
        return bench_on(store, household_spend)

    def test_a_watcher_gets_rows_as_they_change(self, bench: FoldBench) -> None:
        projector = bench.fold(None, out("a", "h1", p=1))
        watch = bench.views[household_spend].watch(timeout=0.0)
        bench.fold(projector, out("b", "h1", p=2), out("b", "h2", p=5))
        found = {one.key: one.row for one in watch}
        assert found == {"h1": Spend(Decimal(3), "base"), "h2": Spend(Decimal(5), "base")}

    def test_a_removed_row_is_none_and_a_row_of_a_stream_has_its_version(self, store: ViewStore) -> None:
        bench = bench_on(store, open_baskets)
        projector = bench.settle()
        watch = bench.views[open_baskets].watch()
        bench.write(Opened(basket_id="b", household="h"))
        bench.fold(projector, Added(basket_id="b", product="p", price=Decimal(1)))
        opened = next(watch)
        bench.fold(projector, out("b", "h", p=1))
        gone = next(watch)
        watch.close()
        assert (opened.key, opened.version, opened.row is None) == ("b", 2, False)
        assert (gone.key, gone.row, gone.version) == ("b", None, None)

    def test_a_watcher_gets_only_the_keys_it_asked_for(self, bench: FoldBench) -> None:
        projector = bench.settle()
        start = bench.views[household_spend].describe().position
        for number in range(20):
            bench.write(out(f"b{number}", f"h{number}", p=1))
        bench.settle(projector)
        watch = bench.views[household_spend].watch(after=start, keys=["h3", "h17", "absent"], timeout=0.0)
        assert sorted(one.key for one in watch) == ["h17", "h3"]

    def test_a_watcher_waits_for_the_next_change(self, bench: FoldBench) -> None:
        projector = bench.settle()
        watch = bench.views[household_spend].watch(timeout=SOON)
        bench.write(out("a", "h1", p=1))
        timer = threading.Timer(0.1, lambda: bench.settle(projector))
        timer.start()
        with woken():
            assert next(watch).key == "h1"
        timer.join()
        watch.close()

    def test_asyncio_watches_alike(self, bench: FoldBench) -> None:
        projector = bench.settle()
        reader = bench.views[household_spend]
        start = reader.describe().position

        async def first() -> Change[Spend]:
            watch = reader.awatch(after=start, timeout=SOON)
            waiting = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0.05)
            bench.write(out("a", "h1", p=1))
            await asyncio.to_thread(bench.settle, projector)
            found = await waiting
            await watch.aclose()
            return found

        with woken():
            found = asyncio.run(first())
        assert (found.key, found.row, found.version) == ("h1", Spend(Decimal(1), "base"), None)
        # Where buckets are written one by one, the change may be seen before all of them have moved.
        assert reader.describe().position.covers(found.position)
        assert found.position.covers(start)

    @OPTIONS
    @given(
        households=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=25),
        stops=st.lists(st.integers(0, 9), max_size=6),
        batches=st.lists(st.booleans(), min_size=25, max_size=25),
    )
    def test_a_watcher_that_stops_anywhere_and_continues_misses_nothing(
        self, store: ViewStore, households: list[str], stops: list[int], batches: list[bool]
    ) -> None:
        bench = bench_on(store, household_spend)
        reader, projector = bench.views[household_spend], bench.settle()
        position, rows, goals = reader.describe().position, dict[str, Spend | None](), list(stops)
        for number, (household, settles) in enumerate(zip(households, batches, strict=False)):
            bench.write(out(f"b{number}", household, p=1))
            if settles:
                bench.settle(projector)
                position = follow(reader, position, rows, goals.pop() if goals else None)
        bench.settle(projector)
        follow(reader, position, rows, None)
        assert rows == bench.rows(household_spend)

    def test_twin_continuing_from_the_end_of_a_round_misses_changes(self, store: ViewStore) -> None:
        bench = bench_on(store, household_spend)
        reader, projector = bench.views[household_spend], bench.settle()
        start = reader.describe().position
        bench.write(out("a", "h1", p=1))
        bench.fold(projector, out("b", "h2", p=1))
        round_ = list(reader.watch(after=start, timeout=0.0))
        assert len(round_) == 2
        rows: dict[str, Spend | None] = {round_[0].key: round_[0].row}
        follow(reader, round_[-1].position, rows, None)
        assert rows != bench.rows(household_spend)

    def test_a_watch_continues_in_the_next_generation(self, bench: FoldBench) -> None:
        projector = bench.fold(None, out("a", "h1", p=1))
        watch = bench.views[household_spend].watch(timeout=SOON)
        swap(bench)
        bench.fold(projector, out("b", "h2", p=1))
        assert next(watch).key == "h2"
        bench.fold(projector, out("c", "h1", p=5))
        assert next(watch).row == Spend(Decimal(6), "base")
        watch.close()

    def test_a_generation_that_is_behind_gives_no_changes_until_it_has_caught_up(self, store: ViewStore) -> None:
        totals = totals_of_a_generation_that_is_behind(store)
        assert totals == sorted(totals)
        assert totals[-1] == Decimal(6)

    def test_twin_without_waiting_for_it_rows_go_back_in_time(
        self, store: ViewStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "_caught_up", lambda generation, recent, before: recent)
        totals = totals_of_a_generation_that_is_behind(store)
        assert totals != sorted(totals)

    def test_a_generation_without_older_changes_is_an_error(self, bench: FoldBench, store: ViewStore) -> None:
        projector = bench.fold(None, out("a", "h1", p=1))
        reader = bench.views[household_spend]
        old, start = bench.live(household_spend), reader.describe().position
        watch = reader.watch(timeout=SOON)
        bench.fold(projector, out("b", "h2", p=1))
        at = store.checkpoints(old)
        generation = replace(old, id="9-bulk", phase=Phase.BULK)
        assert store.create_marks(generation, {n: replace(m, phase=Phase.BULK, rows=0) for n, m in at.items()})
        store.seal(generation, {n: replace(m, rows=0) for n, m in at.items()})  # type: ignore[attr-defined]
        change(store, old.view, lambda r: r.with_generation(generation).pointed(generation))
        why = r"generation 9-bulk .* keeps no changes back to .* watch without a position: in Python take describe\(\)"
        with pytest.raises(ChangesNotKept, match=why):
            list(watch)
        with pytest.raises(ChangesNotKept):
            reader.watch(after=start)
        assert list(reader.watch(after=reader.describe().position, timeout=0.0)) == []

    def test_a_row_that_changes_again_at_a_position_is_returned(self, bench: FoldBench) -> None:
        bench.fold(None, out("a", "h1", p=1))
        watch = bench.views[household_spend].watch(timeout=0.0)
        rewrite(bench, "h1", Spend(Decimal(7), "base"))
        assert [(one.key, one.row) for one in watch] == [("h1", Spend(Decimal(7), "base"))]
        assert list(bench.views[household_spend].watch(timeout=0.0)) == [], "it is in the past of a new watch"

    @pytest.mark.parametrize("moves", [False, pytest.param(True, id="twin")])
    def test_a_watch_continues_before_the_changes_at_its_position(self, bench: FoldBench, *, moves: bool) -> None:
        """The position was reached without a change of a row; the twin's first change is the only entry there."""
        projector = bench.fold(None, out("a", "h1", p=1))
        bench.fold(projector, Added(basket_id="a", product="p", price=Decimal(1)))
        reader, seen = bench.views[household_spend], list[Any]()
        start = reader.describe().position
        for total in (7, 8):
            rewrite(bench, "h1", Spend(Decimal(total), "base"), moves=moves)
            seen += [(one.position, one.row) for one in reader.watch(after=start, timeout=0.0)]
        rows = [(start, Spend(Decimal(total), "base")) for total in (7, 8)]
        assert seen == (rows[1:] if moves else rows)
        bench.fold(projector, out("b", "h2", p=1))
        assert [one.key for one in reader.watch(after=reader.describe().position, timeout=0.0)] == []

    def test_a_watch_reads_a_few_rows_at_a_time(self, store: ViewStore, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = bench_on(store, household_spend)
        projector = bench.settle()
        reader, asked, ask = bench.views[household_spend], list[int](), store.ask
        start = reader.describe().position
        for number in range(12):
            bench.fold(projector, out(f"b{number}", f"h{number}", p=1))

        def counted(question: Any) -> Any:
            asked.append(len(question.keys) if isinstance(question, Rows) else 0)
            return ask(question)

        monkeypatch.setattr(store, "ask", counted)
        monkeypatch.setattr(watching, "_KEYS", 5)
        found = list(reader.watch(after=start, timeout=0.0))
        assert sorted(one.key for one in found) == sorted(f"h{number}" for number in range(12))
        assert 0 < max(asked) <= 5
        assert found[-1].position == reader.describe().position

    def test_a_watch_of_a_key_reads_past_the_entries_of_others(
        self, bench: FoldBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watching, "_FIRST_PAGE", 1)
        projector = bench.settle()
        start, bucket = bench.views[household_spend].describe().position, place_of(bench.live(household_spend), "h0")[0]
        others = (f"h{number}" for number in range(1, 1000))
        beside = [key for key in others if place_of(bench.live(household_spend), key)[0] == bucket][:3]
        for number, key in enumerate([*beside, "h0"]):
            bench.fold(projector, out(f"b{number}", key, p=1))
        found = list(bench.views[household_spend].watch(after=start, keys=["h0"], timeout=0.0))
        assert [one.key for one in found] == ["h0"]

    def test_rows_of_a_generation_that_is_removed_meanwhile_are_not_reported_as_deleted(
        self, store: ViewStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = bench_on(store, household_spend)
        projector = bench.fold(None, out("a", "h1", p=1))
        reader, ask, removals = bench.views[household_spend], store.ask, [bench.live(household_spend)]
        watch = reader.watch(timeout=0.0)
        bench.fold(projector, out("b", "h1", p=1))

        def removed(question: Any) -> Any:
            """The registry was read just before another generation went live, and the rows just after."""
            if not removals or not isinstance(question, Rows):
                return ask(question)
            old = removals.pop()
            swap(bench)
            return replace(ask(question), live=old.id)

        monkeypatch.setattr(store, "ask", removed)
        found = [one.row for one in watch]
        assert found == [Spend(Decimal(2), "base")]
        assert not removals

    def test_a_position_ahead_of_the_view_waits_for_what_comes_behind_it(self, bench: FoldBench) -> None:
        projector = bench.settle()
        (first,) = bench.write(out("a", "h1", p=1))
        ahead = Position.at(TOPIC, first.partition, first.offset + 1)
        watch = bench.views[household_spend].watch(after=ahead, timeout=0.0)
        bench.settle(projector)
        bench.fold(projector, out("b", "h2", p=1))
        assert "h2" in rows_after(watch)

    def test_reads_after_a_position_wake_when_the_view_reaches_it(self, bench: FoldBench, store: ViewStore) -> None:
        projector, reader = bench.settle(), bench.views[household_spend]
        (record,) = bench.write(out("a", "h1", p=1))
        position = Position.at(TOPIC, record.partition, record.offset + 1)

        async def waiting() -> list[object]:
            reads = [
                asyncio.create_task(reader.aget("h1", after=position, timeout=SOON)),
                asyncio.create_task(reader.aentry("h1", after=position, timeout=SOON)),
                asyncio.create_task(reader.amany(["h1"], after=position, timeout=SOON)),
                asyncio.create_task(reader.await_reached(position, timeout=SOON)),
            ]
            await asyncio.sleep(0.05)
            await asyncio.to_thread(bench.settle, projector)
            return list(await asyncio.gather(*reads))

        with woken():
            row, entry, many, nothing = asyncio.run(waiting())
        assert row == Spend(Decimal(1), "base")
        assert many == {"h1": row}
        assert getattr(entry, "row", None) == row
        assert nothing is None
        reads: list[Callable[[], object]] = [
            lambda: reader.get("h1", after=position),
            lambda: reader.wait_reached(position),
        ]
        assert [read() for read in reads] == [row, None]


def totals_of_a_generation_that_is_behind(store: ViewStore) -> list[Decimal]:
    """The totals that a watcher gets when a generation goes live that has yet to fold everything."""
    bench = bench_on(store, household_spend)
    for number in range(5):
        bench.write(out(f"b{number}", "h1", p=1))
    bench.settle()
    reader, old = bench.views[household_spend], bench.live(household_spend)
    totals, position = [Decimal(5)], reader.describe().position
    behind = open_generation(bench.store, household_spend, {TOPIC: PARTITIONS}, Phase.SEALED)
    change(bench.store, household_spend.name, lambda registry: registry.pointed(behind).without(old.id))
    bench.write(out("more", "h1", p=1))
    projector = bench.projector(batch=1)
    for _ in range(20):
        projector.step(0.0)
        for found in reader.watch(after=position, timeout=0.0):
            assert found.row is not None
            totals.append(found.row.total)
            position = found.position
    return totals


def rewrite(bench: FoldBench, key: str, row: Spend, *, moves: bool = False, at: int = 0) -> None:
    """Writes a row without moving the position of its bucket, as a retry of a parked row does; or with it, to `at`."""
    generation, rows = bench.live(household_spend), household_spend.rows
    bucket, _ = place_of(generation, key)
    checkpoint = bench.store.checkpoints(generation)[bucket]
    folded = FoldedBucket.of(checkpoint)
    found = stored_row(household_spend, folded, key, bench.store.read(generation, [(bucket, key)]).rows[0])
    found.row = row
    change = found.change(household_spend)
    position = Position({TOPIC: dict.fromkeys(range(PARTITIONS), at)}) if at else checkpoint.position
    after = replace(checkpoint, token=token_hex(8), checksum=folded.checksum % 2**128, position=position)
    flush = BucketFlush(
        generation, bucket, checkpoint.token, after, rows.columns, rows.indexes, (change,), moves or at > 0
    )
    assert bench.store.flush([flush])


def follow(reader: Reader[Spend], position: Position, rows: dict[str, Spend | None], most: int | None) -> Position:
    """Watches on from a position until there is no more, or stops after so many changes; returns where."""
    watch = reader.watch(after=position, timeout=0.0)
    for number, found in enumerate(watch):
        if number == most:
            break
        rows[found.key], position = found.row, found.position
    watch.close()
    return position


def swap(bench: FoldBench) -> None:
    """Builds another generation beside the live one and points at it."""
    old = bench.live(household_spend)
    new = open_generation(bench.store, household_spend, {TOPIC: PARTITIONS}, Phase.SEALED)
    bench.settle()
    change(bench.store, household_spend.name, lambda registry: registry.pointed(new))
    change(bench.store, household_spend.name, lambda registry: registry.without(old.id))
    bench.store.unlink(old)
