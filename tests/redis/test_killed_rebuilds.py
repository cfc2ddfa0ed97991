"""SIGKILL of a rebuild inside any of its writes: the next one goes on there and ends with the rows of the log.

Each twin lacks one of the things that make it so: a bucket that says itself that it is whole, one end for all buckets,
a seal that says where it stands, and a look at the phase behind every write.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from leftfold.engine.rebuild import rebuilder as rebuilding
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.result import Agreement, RebuildResult
from leftfold.engine.rebuild.tasks import BulkJob, run_locally
from leftfold.errors import Fenced
from leftfold.memory import World
from leftfold.model.position import Position
from leftfold.model.rows import CHECKSUM_MODULUS, Fields
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, BulkRow, BulkStore, CommittedLog
from leftfold.ports.flush import Checkpoint, Generation, Phase
from leftfold.redis import RedisBulkSink, RedisViewStore
from tests.domains.ledger import app, by_owner, by_tag, summary
from tests.redis.killed_rebuild import rebuild_of, whole_log
from tests.redis.server import RedisServer
from tests.redis.test_bulk_sink import Unchecked
from tests.redis.test_tail_heals import assert_equal_to_the_log, happen, settle, tail_on

pytestmark = [pytest.mark.servers, pytest.mark.faults]

VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)
SHARES = (0.1, 0.5, 0.95)
named = pytest.mark.parametrize("view", VIEWS, ids=lambda view: str(view.name))
killed_at = pytest.mark.parametrize("share", SHARES)


@pytest.fixture
def world(server: RedisServer, store: RedisViewStore) -> World:
    """The log that is rebuilt from, and its views in Redis, live and up to date."""
    with server.client() as client:
        client.flushall()
    world = whole_log()
    follow(world, store)
    return world


@pytest.fixture(scope="module")
def writes(server: RedisServer) -> dict[str, int]:
    """How often a whole rebuild of each view writes."""
    found = {}
    for view in VIEWS:
        with server.client() as client:
            client.flushall()
        done = run(server, view, -1)
        assert done.returncode == 0, done.stderr
        found[view.name] = int(done.stdout)
    return found


@named
@killed_at
def test_killed_at_any_point_the_next_one_goes_on_and_ends_with_the_rows_of_the_log(
    server: RedisServer, store: RedisViewStore, writes: dict[str, int], world: World, view: View[Any, Any], share: float
) -> None:
    left = killed(server, store, view, int(writes[view.name] * share))
    happen(world, 6)
    result = rebuild_of(view, world, store).run()
    assert (result.agreement, result.generation) == (Agreement.EQUAL, left.id)
    assert not is_wrong(world, store, view)


def test_twin_a_bucket_that_is_taken_for_whole_because_it_has_rows_lacks_some(
    server: RedisServer, store: RedisViewStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third write is the second one with rows."""
    monkeypatch.setattr(RedisViewStore, "finished", buckets_with_rows)
    left = killed(server, store, summary, 3)
    assert store.finished(left), "what has landed"
    assert_shows_wrong_rows(rebuild_of(summary, world, store, swap_anyway=True).run(), world, store, summary)


@named
def test_twin_buckets_that_end_elsewhere_than_the_others_lack_what_lies_between(
    server: RedisServer,
    store: RedisViewStore,
    writes: dict[str, int],
    world: World,
    view: View[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rebuilding, "resumed", to_the_end_of_now)
    left = killed(server, store, view, int(writes[view.name] * 0.95))
    assert store.finished(left)
    happen(world, 6)
    assert_shows_wrong_rows(rebuild_of(view, world, store, swap_anyway=True).run(), world, store, view)


@killed_at
def test_twin_a_seal_that_does_not_say_where_it_stands_folds_everything_twice(
    server: RedisServer,
    store: RedisViewStore,
    writes: dict[str, int],
    world: World,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sealed_marks = rebuilding.sealed_marks

    def anywhere(generation: Generation, ends: Position, results: Any) -> Mapping[int, Checkpoint]:
        return {b: replace(m, position=Position()) for b, m in sealed_marks(generation, ends, results).items()}

    monkeypatch.setattr(rebuilding, "sealed_marks", anywhere)
    killed(server, store, by_owner, int(writes[by_owner.name] * share))
    assert_shows_wrong_rows(rebuild_of(by_owner, world, store, swap_anyway=True).run(), world, store, by_owner)


@killed_at
def test_a_task_that_outlives_the_killed_rebuild_cannot_write_behind_the_next_one(
    server: RedisServer, store: RedisViewStore, writes: dict[str, int], world: World, share: float
) -> None:
    late = outlived(server, store, world, summary, int(writes[summary.name] * share), RedisBulkSink)
    assert late.fenced == late.buckets > 0
    assert not is_wrong(world, store, summary)


@killed_at
def test_twin_without_the_phase_it_writes_older_rows_over_newer_ones(
    server: RedisServer, store: RedisViewStore, writes: dict[str, int], world: World, share: float
) -> None:
    late = outlived(server, store, world, summary, int(writes[summary.name] * share), Unchecked)
    assert late.fenced == 0 < late.buckets
    assert is_wrong(world, store, summary)


class Late:
    """A sink that writes nothing before it is let go on."""

    def __init__(self) -> None:
        self._held: list[tuple[Generation, int, Fields, tuple[str, ...], list[BulkRow]]] = []
        self.fenced = 0

    @property
    def buckets(self) -> int:
        """How many it has rows for."""
        return len(self._held)

    def write(
        self, generation: Generation, bucket: int, columns: Fields, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Keeps rows."""
        self._held.append((generation, bucket, columns, indexes, list(rows)))
        return len(self._held[-1][-1])

    def finish(self, generation: Generation, result: BucketResult) -> BucketResult:
        """Nothing is there yet."""
        return result

    def go_on(self, sink: RedisBulkSink) -> None:
        """Writes what was kept, or tries to."""
        for held in self._held:
            try:
                sink.write(*held)
            except Fenced:
                self.fenced += 1

    def close(self) -> None:
        """Nothing to let go of."""


def outlived(
    server: RedisServer, store: RedisViewStore, world: World, view: View[Any, Any], last: int, kind: type[RedisBulkSink]
) -> Late:
    """Tasks of a killed rebuild go on when the next one has swapped and a projector has folded more."""
    left, late = killed(server, store, view, last), Late()
    work = rebuild_of(view, world, store)
    plan = work.plan(left.ends)
    run_locally(
        BulkJob(view, left, plan.ranges, lambda: CommittedLog(world.log.reader()), lambda: late),
        plan,
        lambda count: None,
    )
    assert work.run().swapped
    happen(world, 6)
    follow(world, store)
    with kind(server.settings) as sink:
        late.go_on(sink)
    return late


def killed(server: RedisServer, store: RedisViewStore, view: View[Any, Any], last: int) -> Generation:
    """What a rebuild leaves that is killed at one of its writes, and taken for dead at once."""
    done = run(server, view, max(2, last))
    assert done.returncode == -9, f"it was not killed: {done.stdout}{done.stderr}"
    group = f"rebuilds:{view.name}"
    for member in store.heartbeat([group], "", 0.0)[group]:
        store.heartbeat([group], member, 0.0)
    (left,) = (g for g in store.registry(view.name).generations.values() if g.phase is Phase.BULK)
    return left


def run(server: RedisServer, view: View[Any, Any], last: int) -> subprocess.CompletedProcess[str]:
    """Runs a rebuild until its `last` write, or to its end."""
    words = [sys.executable, "-m", "tests.redis.killed_rebuild", server.settings.url, view.name, str(last)]
    return subprocess.run(words, check=False, timeout=240.0, capture_output=True, text=True)


def follow(world: World, store: RedisViewStore) -> None:
    """A projector brings every view to the end of the log."""
    tail = tail_on(world, store)
    settle(tail)
    tail.close()


def is_wrong(world: World, store: RedisViewStore, view: View[Any, Any]) -> bool:
    """Whether a view is in any way not what the log makes of it once a projector has caught up."""
    follow(world, store)
    try:
        assert_equal_to_the_log(world, store, view)
    except AssertionError:
        return True
    return False


def assert_shows_wrong_rows(result: RebuildResult, world: World, store: RedisViewStore, view: View[Any, Any]) -> None:
    """The comparison with the live generation tells; where somebody swaps anyway readers see it."""
    assert (result.agreement, result.swapped) == (Agreement.DIFFERENT, True)
    assert is_wrong(world, store, view)


def buckets_with_rows(store: RedisViewStore, generation: Generation) -> dict[int, BucketResult]:
    """Takes a bucket for whole when there is something in it."""
    codec, found = app.view(generation.view).rows, {}
    for bucket in range(generation.buckets):
        keys = store.keys(generation, bucket, "", 9_999)
        rows = zip(keys, store.read(generation, [(bucket, key) for key in keys]).rows, strict=True)
        digests = [codec.digest(key, tuple(row[c] for c in codec.columns)) for key, row in rows if row is not None]
        if keys:
            found[bucket] = BucketResult(bucket, sum(digests) % CHECKSUM_MODULUS, len(keys))
    return found


def to_the_end_of_now(plan: RebuildPlan, generation: Generation, store: BulkStore) -> RebuildPlan:
    """Reads what is not whole up to where the log ends now."""
    whole = store.finished(generation).keys() if generation.stream_keyed else frozenset[int]()
    tasks = (tuple(part for part in task if part.partition not in whole) for task in plan.tasks)
    return replace(plan, tasks=tuple(task for task in tasks if task), buckets=generation.buckets)
