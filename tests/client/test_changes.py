from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from leftfold import ChangesNotKept, View, memory
from leftfold.client.changes import Watch
from leftfold.engine.views.folded_rows import place_of
from leftfold.memory import MemoryViewStore
from leftfold.ports.protocols import ViewStore
from tests.client.changes_contract import Watches, bench_on, rewrite
from tests.domains.ledger import app, by_owner, histories, stranger, summary
from tests.domains.ledger_world import rebuild
from tests.domains.shop import Spend, household_spend
from tests.engine.fold_bench import out

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class TestWatchesInMemory(Watches):
    @pytest.fixture
    def store(self) -> ViewStore:
        return MemoryViewStore()


def test_a_watcher_that_paused_for_too_long_gets_an_error_and_skips_nothing() -> None:
    bench = bench_on(MemoryViewStore(history=5), household_spend)
    projector, reader = bench.settle(), bench.views[household_spend]
    watch = reader.watch(timeout=0.0)
    for number in range(12):
        bench.fold(projector, out(f"b{number}", f"h{number % 2}" if number else "first", p=1))
    with pytest.raises(ChangesNotKept):
        list(watch)


def test_an_entry_before_changes_at_the_same_position_is_no_beginning_of_a_stream() -> None:
    bench = bench_on(MemoryViewStore(history=5), household_spend)
    bench.fold(None, out("a", "h", p=1))
    start = bench.views[household_spend].describe().position
    for total in range(4):
        rewrite(bench, "h", Spend(Decimal(total), "base"))
    with pytest.raises(ChangesNotKept):
        bench.views[household_spend].watch(after=start)


@pytest.mark.parametrize("view", [summary, by_owner], ids=lambda view: view.name)
def test_a_watch_continues_across_a_rebuild(view: View[Any, Any]) -> None:
    with memory(app, now=NOW) as world:
        moves = list(histories(stranger(3), 200))
        world.client.send_many(moves[:100])
        rows = dict(world.views[view].items())
        before, watch = world.views[view].describe(), world.views[view].watch(timeout=0.0)
        assert rebuild(world, view).run().swapped
        world.client.send_many(moves[100:])
        reported = list(watch)
        for change in reported:
            rows[change.key] = change.row
        assert world.views[view].describe().generation != before.generation
        assert {key: row for key, row in rows.items() if row is not None} == dict(world.views[view].items())
        assert reported[-1].position == world.views[view].describe().position


def test_changes_that_are_not_kept_any_more_are_an_error_with_the_remedy() -> None:
    bench = bench_on(MemoryViewStore(history=5), household_spend)
    projector, reader = bench.settle(), bench.views[household_spend]
    start = reader.describe().position
    for number in range(12):
        bench.fold(projector, out(f"b{number}", "h", p=1))
    with pytest.raises(ChangesNotKept, match=r"take describe\(\).position, then read items\(\)"):
        reader.watch(after=start)
    position, rows = reader.describe().position, dict(reader.items())
    assert rows == {"h": Spend(Decimal(12), "gold")}
    bench.fold(projector, out("more", "h", p=1))
    assert [one.row for one in reader.watch(after=position, timeout=0.0)] == [Spend(Decimal(13), "gold")]


@pytest.mark.parametrize("waits", [False, pytest.param(True, id="twin")])
def test_rows_of_a_bucket_that_trails_the_others_are_not_held_back(
    monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """Each projector folds its buckets at its own pace. The twin waits until they have all that was shown."""
    if waits:
        monkeypatch.setattr(Watch, "_before", property(lambda self: self._shown, lambda self, _: None), raising=False)
    bench = bench_on(MemoryViewStore(), household_spend)
    for number in range(9):
        bench.write(out(f"b{number}", f"h{number}", p=1))
    bench.settle()
    bucket_of = {key: place_of(bench.live(household_spend), key)[0] for key in map("h{}".format, range(9))}
    first, last = "h0", next(key for key, bucket in bucket_of.items() if bucket != bucket_of["h0"])
    watch, seen = bench.views[household_spend].open_watch(), list[str]()

    async def follow_both() -> None:
        await watch.begin()
        for number in range(100, 110):
            rewrite(bench, first, Spend(Decimal(number), "base"), at=number)
            rewrite(bench, last, Spend(Decimal(number), "base"), at=number - 2)
            seen.extend(change.key for change in await watch.next_changes(0.0))
        watch.close()

    asyncio.run(follow_both())
    assert seen.count(first) == 10
    assert (seen.count(last) == 10) is not waits
