"""Rows that Spark computes: the view, the rows on their way, fenced writes, and how they are kept up to date."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import App, ConfigurationError, ContractError, QueryView, ViewNotBuilt, memory
from leftfold.cli.views.drop import remove_one
from leftfold.client import Views
from leftfold.client.results import describe
from leftfold.compatibility import lock_of
from leftfold.engine.rebuild.rebuilder import RebuildOptions, sealed_marks
from leftfold.engine.rebuild.refresh import Refresh, computed, write_computed
from leftfold.engine.rebuild.result import RebuildResult
from leftfold.engine.rebuild.tasks import BulkJob
from leftfold.engine.streaming.computed_rows import QueryWriter, batch_of, no_beginning, token
from leftfold.engine.verify.row_differences import diff
from leftfold.engine.views.folded_rows import place_of
from leftfold.engine.views.generations import open_generation, resolve
from leftfold.engine.views.projector import Projector
from leftfold.memory import MemoryLog, MemoryViewStore
from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Phase
from leftfold.ports.queries import Changes
from leftfold.runtime.operations.generations import promote_generation
from leftfold.runtime.project import Usage
from leftfold.testing import fold
from leftfold.testing.contracts.readers import keys_with
from tests.domains.ledger import Moved, by_owner, ledgers
from tests.engine.committed_log import CommittedLog

TOPICS = {"ledgers.events": 2}


@dataclass(frozen=True)
class Count:
    owner: str
    moves: int


def view(
    query: str = "SELECT owner, count(*) AS moves FROM Moved GROUP BY owner", **changes: Any
) -> QueryView[Count, str]:
    return QueryView(
        "counts", events=Moved, row=Count, key=lambda r: r.owner, query=query, indexes=("moves",), **changes
    )


counts = view()


def test_the_hash_of_a_query_view_covers_its_query() -> None:
    same = [counts, view("\n    SELECT owner, count(*) AS moves FROM Moved GROUP BY owner\n  ")]
    assert len({one.hash for one in same}) == 1, "margins mean nothing"
    others = [view("SELECT owner, count(1) AS moves FROM Moved GROUP BY owner"), view(version=2)]
    assert len({one.hash for one in [counts, *others]}) == 3


def test_a_world_in_memory_refuses_sql() -> None:
    app = App("both", partitions=2, deciders=[ledgers], views=[counts, by_owner])
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        assert dict(world.views[by_owner].items()) == {}
        with pytest.raises(ConfigurationError, match=r"rows\(counts, event, ...\)"):
            world.views[counts]
    with pytest.raises(ConfigurationError, match="view counts is computed from tables and not folded"):
        fold(counts, Moved(ledger="l", owner="o", amount=1))  # type: ignore[arg-type]  # an int is as good here


def test_projectors_ignore_query_views() -> None:
    log, store = MemoryLog(), MemoryViewStore()
    log.create("ledgers.events", 2)
    projector = Projector([counts, by_owner], log.reader, store, look=0.0)
    projector.step(0.0)
    assert projector.views == (by_owner,)
    assert not store.registry(counts.name).generations


def test_the_lock_notices_another_query() -> None:
    now, then = (lock_of(App("a", views=[one])).views["counts"] for one in (counts, view(version=2)))
    assert now.schema != then.schema
    assert now.fold == then.fold


def generation(store: MemoryViewStore) -> Generation:
    return open_generation(store, counts, TOPICS, Phase.BULK, 4)


def rows(*reported: tuple[str, int]) -> list[Any]:
    return sorted(computed(counts, Count(owner, moves), 4) for owner, moves in reported)


def sealed(store: MemoryViewStore, run: str, *reported: tuple[str, int], ends: tuple[int, int] = (5, 5)) -> Generation:
    """A generation that the first batch of a run has filled."""
    made = generation(store)
    job = BulkJob(counts, made, (), lambda: CommittedLog(MemoryLog().reader()), lambda: store)
    results = list(write_computed(job, rows(*reported)))
    checkpoints = sealed_marks(made, Position({"ledgers.events": dict(enumerate(ends))}), results)
    store.seal(made, {b: replace(m, token=token(run, 0)) for b, m in checkpoints.items()})
    return made


def read(store: MemoryViewStore, made: Generation) -> dict[str, int]:
    found = {}
    for bucket in range(made.buckets):
        keys = store.keys(made, bucket, "", 100)
        for fields in store.read(made, [(bucket, key) for key in keys]).rows:
            assert fields is not None
            row = counts.rows.decode(fields)
            found[row.owner] = row.moves
    return found


def checksum(*reported: tuple[str, int]) -> str:
    total = sum(counts.rows.digest(row.key, row.fields) for row in rows(*reported))
    return f"{total % (1 << 128):032x}"


@pytest.fixture
def store() -> MemoryViewStore:
    return MemoryViewStore()


@pytest.fixture
def made(store: MemoryViewStore) -> Generation:
    """A generation with one row, which the first batch of run r has filled."""
    return sealed(store, "r", ("a", 1))


def refreshed(store: MemoryViewStore, log: MemoryLog, *reported: tuple[str, int], keep: float = 0.0) -> RebuildResult:
    """The result of a refresh that computes these rows at one more event."""
    log.append("ledgers.events", 0, b"k", b"{}", [("ce_decision", b"1/1")])

    def run(job: BulkJob, plan: Any, tell: Any) -> list[Any]:
        return list(write_computed(job, sorted(computed(counts, Count(*one), plan.buckets) for one in reported)))

    return refresh_of(store, log, run, keep=keep).run()


def refresh_of(store: MemoryViewStore, log: MemoryLog, run: Any, **options: Any) -> Refresh:
    """A refresh whose rows a function computes."""
    return Refresh(
        counts, store, open_log=lambda: CommittedLog(log.reader()), open_reader=log.reader, open_sink=lambda: store,
        run=run, options=RebuildOptions(**options),
    )  # fmt: skip


@pytest.fixture
def swapped(store: MemoryViewStore) -> RebuildResult:
    """The result of a refresh after which one row differs, one is new and one is as before."""
    log = MemoryLog()
    log.create("ledgers.events", 2)
    refreshed(store, log, ("a", 1), ("b", 1))
    return refreshed(store, log, ("a", 1), ("b", 2), ("c", 1), keep=600.0)


def test_what_a_refresh_replaced_is_there_for_a_diff_and_for_no_rollback(
    store: MemoryViewStore, swapped: RebuildResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert swapped.kept
    assert str(swapped).endswith("are kept until a later rebuild; compare: leftfold diff counts --live --kept")
    with pytest.raises(
        Usage, match=rf"counts is kept until a later rebuild; to remove it all the same: .* {swapped.kept} --yes"
    ):
        remove_one(store, counts, "kept", sure=False)
    with pytest.raises(Usage, match="make another one live first: leftfold rebuild counts"):
        remove_one(store, counts, "live", sure=True)
    with pytest.raises(ViewNotBuilt, match="look at a kept one with leftfold diff counts --live --kept"):
        Views(store, lambda seconds: None).as_of(counts, "kept").get("a")
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    app, servers = App("a", views=[counts]), (None, "redis://127.0.0.1:1", None)
    for named in ("kept", swapped.kept):
        with pytest.raises(Usage, match="is computed as a whole, and no projector .*: leftfold rebuild counts"):
            promote_generation(app, "counts", named, servers, keep=0.0, report=lambda progress: None)


def test_a_diff_of_generations_that_nothing_moves_compares_them_where_they_are(
    store: MemoryViewStore, swapped: RebuildResult
) -> None:
    live, kept = (resolve(store.registry(counts.name), counts, name) for name in ("live", "kept"))
    found = diff(live, kept, store, moving=counts.folded)
    assert (found.equal, found.different, found.only_one, found.unsettled) == (1, 1, 1, 0)
    assert sorted((row.key, row.fields) for row in found.samples) == [("b", ("moves",)), ("c", ("moves", "owner"))]


def test_rows_of_one_key_are_refused_wherever_they_meet(store: MemoryViewStore) -> None:
    with pytest.raises(ContractError, match="view counts: the query gives several rows for the key a"):
        sealed(store, "r", ("a", 1), ("a", 2))


def test_batches_change_rows_checksums_indexes_and_every_checkpoint(store: MemoryViewStore) -> None:
    made = sealed(store, "r", ("a", 1), ("b", 2))
    writer = QueryWriter(counts, made, store, ("owner",), "r")
    assert writer.batch == 0
    reached = Position({"ledgers.events": {0: 9, 1: 5}})
    assert writer.write(1, rows(("b", 3), ("c", 1)), reached)
    assert read(store, made) == {"a": 1, "b": 3, "c": 1}
    found = describe(counts, made, store)
    assert (found.rows, found.checksum) == (3, checksum(("a", 1), ("b", 3), ("c", 1)))
    assert {checkpoint.token for checkpoint in store.checkpoints(made).values()} == {"r.1"}
    assert all(checkpoint.position.covers(reached) for checkpoint in store.checkpoints(made).values())
    assert [
        k for b in range(4) for k in keys_with(store, made, b, "moves", counts.rows.index_entries(Count("x", 2))[0])
    ] == []


def test_a_batch_that_the_checkpoints_name_is_not_written_again(store: MemoryViewStore, made: Generation) -> None:
    writer = QueryWriter(counts, made, store, ("owner",), "r")
    assert writer.write(1, rows(("a", 2)), Position())
    before = store.checkpoints(made)
    assert writer.write(1, rows(("a", 2)), Position())
    assert store.checkpoints(made) == before


def test_rows_that_change_at_the_same_position_follow_an_entry_without_keys(
    store: MemoryViewStore, made: Generation
) -> None:
    writer = QueryWriter(counts, made, store, ("owner",), "r")
    assert writer.write(1, rows(("a", 2)), Position())
    assert writer.write(2, rows(("a", 3)), Position({"ledgers.events": {2: 0}}))  # no event was read there yet
    assert writer.write(3, rows(("a", 4)), Position({"ledgers.events": {2: 1}}))
    bucket, _ = place_of(made, "a")
    entries = store.ask(Changes(made, {bucket: ""}, 10, backwards=True)).entries[bucket]
    assert [entry.keys for entry in entries] == [("a",), ("a",), (), ("a",), (), ()]
    assert [entry.begins for entry in entries] == [False] * 5 + [True]


def test_groups_that_share_a_key_are_refused_between_batches(store: MemoryViewStore, made: Generation) -> None:
    writer = QueryWriter(counts, made, store, ("moves",), "r")  # as if it grouped by moves
    with pytest.raises(ContractError, match="several rows for the key a"):
        writer.write(1, rows(("a", 2)), Position())


class Forgetful(QueryWriter):
    """Believes whatever token is there, as a writer without fencing would."""

    def write(self, batch: int, changed: Any, reached: Position) -> bool:
        self.checkpoints = self._store.checkpoints(self.generation)
        return self._flush(batch, {row.key: row for row in changed}, reached)


@pytest.mark.parametrize(("kind", "after"), [(QueryWriter, 7), (Forgetful, 2)], ids=["fenced", "twin"])
def test_a_run_that_was_taken_over_cannot_write_its_older_rows(
    kind: type[QueryWriter], after: int, store: MemoryViewStore
) -> None:
    made = sealed(store, "old", ("a", 1))
    zombie = kind(counts, made, store, ("owner",), "old")
    heir = QueryWriter(counts, made, store, ("owner",), "new")
    assert heir.claim()
    assert heir.write(1, rows(("a", 7)), Position({"ledgers.events": {0: 9}}))
    assert zombie.write(1, rows(("a", 2)), Position({"ledgers.events": {0: 6}})) is (kind is Forgetful)
    assert read(store, made) == {"a": after}


def test_a_claim_fails_when_the_run_before_moved_meanwhile(store: MemoryViewStore) -> None:
    made = sealed(store, "old", ("a", 1))
    old, heir = (QueryWriter(counts, made, store, ("owner",), run) for run in ("old", "new"))
    assert old.write(1, rows(("a", 2)), Position())
    assert not heir.claim()


def test_checkpoints_that_no_stream_wrote_are_at_no_batch(store: MemoryViewStore, made: Generation) -> None:
    writer = QueryWriter(counts, made, store, ("owner",), "r")
    one = store.checkpoints(made)[0]
    flush = BucketFlush(
        made, 0, one.token, replace(one, token="of-a-projector"), counts.rows.columns, counts.rows.indexes
    )
    assert store.flush([flush])
    assert QueryWriter(counts, made, store, ("owner",), "r").batch is None
    assert not writer.write(1, rows(("a", 2)), Position()), "a foreign token is a foreign writer"


def at_tokens(*tokens: str) -> dict[int, Checkpoint]:
    return {bucket: Checkpoint(Position(), token=token) for bucket, token in enumerate(tokens)}


@pytest.mark.parametrize(
    ("tokens", "batch"),
    [
        ([token("ab12", 7)] * 3, 7),
        ([token("ab12", -1)] * 3, -1),
        ([token("ab12", 7), token("cd34", 7)], 7),
        ([token("ab12", 7), token("ab12", 8)], None),
        (["0123456789abcdef", "fedcba9876543210"], None),
        (["1234567890123456"] * 2, None),
        ([], None),
    ],
)
def test_checkpoints_name_their_batch_of_a_stream(tokens: list[str], batch: int | None) -> None:
    assert batch_of(at_tokens(*tokens)) == batch


def test_a_stream_can_begin_only_where_its_topics_begin_at_0() -> None:
    starts = Position({"a.events": {0: 0, 1: 40}, "b.events": {0: 0}, "c.events": {0: 9}})
    assert no_beginning(["b.events"], starts) == ""
    assert no_beginning(["a.events", "b.events"], starts) == (
        "a.events[1] begins at offset 40, and a stream, which reads no archive, would have to begin at 0"
    )
