"""A stream that keeps a computed view stands by while `leftfold rebuild` computes that view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leftfold import ContractError, Fenced
from leftfold.engine.rebuild.refresh import Refresh, computed, write_computed
from leftfold.engine.rebuild.result import Agreement
from leftfold.engine.rebuild.tasks import BulkJob
from leftfold.engine.streaming.computed_rows import QueryWriter
from leftfold.engine.views.generations import change
from leftfold.engine.views.leases import members
from leftfold.memory import MemoryLog, MemoryViewStore
from leftfold.model.keys import rebuilds
from leftfold.model.position import Position
from leftfold.ports.flush import Phase
from tests.engine.streaming.test_computed_rows import Count, counts, read, refresh_of, rows, sealed


class Kept:
    """A live generation that the run r of a stream keeps, which counts the events in the log."""

    def __init__(self) -> None:
        self.log, self.store = MemoryLog(), MemoryViewStore()
        self.log.create("ledgers.events", 2)
        self._count = 0
        self.append()
        self.live = sealed(self.store, "r", ("a", 1), ends=(1, 0))
        change(self.store, "counts", lambda registry: registry.pointed(self.live.in_phase(Phase.SEALED), "now"))
        self.stream = QueryWriter(counts, self.live, self.store, ("owner",), "r")

    def append(self) -> None:
        self.log.append("ledgers.events", 0, b"k", b"{}", [("ce_decision", b"1/1")])
        self._count += 1

    def batch(self, stream: QueryWriter) -> bool:
        """One more event, and the batch of the stream with it; whether it was written."""
        self.append()
        reached = Position({"ledgers.events": {0: self._count, 1: 0}})
        return stream.write((stream.batch or 0) + 1, rows(("a", self._count)), reached)

    def refresh(self, beside: Callable[[], object], **options: Any) -> Refresh:
        """A refresh; `beside` is called while it computes."""

        def run(job: BulkJob, plan: Any, tell: Any) -> list[Any]:
            beside()
            count = plan.ends.next_offset("ledgers.events", 0)
            return list(write_computed(job, [computed(counts, Count("a", count), plan.buckets)]))

        return refresh_of(self.store, self.log, run, keep=0.0, **options)


def test_a_stream_stands_by_while_its_view_is_rebuilt() -> None:
    kept, written = Kept(), list[tuple[bool, int]]()

    def beside() -> None:
        written.append((kept.batch(kept.stream), len(members(kept.store, rebuilds("counts")))))

    refresh = kept.refresh(beside)
    plan = refresh.plan()
    assert kept.batch(kept.stream)  # behind the plan that the operator has seen
    result = refresh.run(plan)
    assert written == [(False, 1)], "while the lease is held, a stream that is fenced does not take its view over"
    assert (result.swapped, result.agreement) == (True, Agreement.EQUAL)
    assert read(kept.store, kept.store.registry("counts").generations[result.generation]) == {"a": 2}


def test_a_stream_that_writes_while_it_is_made_to_stand_by_stands_by_too(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, written, flush = Kept(), list[bool](), MemoryViewStore.flush

    def after_a_batch(store: MemoryViewStore, flushes: Any) -> bool:
        monkeypatch.undo()
        written.append(kept.batch(kept.stream))
        return flush(store, flushes)

    refresh = kept.refresh(lambda: written.append(kept.batch(kept.stream)))
    monkeypatch.setattr(MemoryViewStore, "flush", after_a_batch)
    assert refresh.run().swapped
    assert written == [True, False]


def test_a_rebuild_plans_again_when_its_claim_and_a_batch_each_get_some_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a Redis Cluster each bucket is a transaction of its own."""
    kept, written, flush = Kept(), list[bool](), MemoryViewStore.flush

    def of_some(store: MemoryViewStore, flushes: Any, first: int) -> bool:
        assert flush(store, flushes[first::2])
        return False

    def beside_a_batch(store: MemoryViewStore, flushes: Any) -> bool:
        monkeypatch.setattr(MemoryViewStore, "flush", lambda store, batch: of_some(store, batch, 0))
        written.append(kept.batch(kept.stream))
        monkeypatch.undo()
        return of_some(store, flushes, 1)

    refresh = kept.refresh(lambda: written.append(kept.batch(kept.stream)))
    plan = refresh.plan()
    monkeypatch.setattr(MemoryViewStore, "flush", beside_a_batch)
    result = refresh.run(plan)
    assert (written, result.swapped) == ([False, False], True)
    assert read(kept.store, kept.store.registry("counts").generations[result.generation]) == {"a": 2}


def test_a_stream_resumes_at_its_batch_when_the_rebuild_of_its_view_has_failed() -> None:
    kept = Kept()

    def beside() -> None:
        assert not kept.batch(kept.stream)
        raise ContractError("two groups have one key")

    with pytest.raises(ContractError, match="two groups have one key"):
        kept.refresh(beside).run()
    resumed = QueryWriter(counts, kept.live, kept.store, ("owner",), "s")
    assert (resumed.batch, resumed.claim(), kept.batch(resumed)) == (0, True, True)
    assert read(kept.store, kept.live) == {"a": 3}


def test_a_stream_writes_on_while_a_view_as_of_a_position_is_built() -> None:
    kept, written = Kept(), list[bool]()
    refresh = kept.refresh(lambda: written.append(kept.batch(kept.stream)), pin="then")
    assert refresh.run(refresh.plan()).swapped
    assert (written, read(kept.store, kept.live)) == ([True], {"a": 2})


def test_a_refresh_that_a_worker_repeats_pauses_no_stream() -> None:
    kept, written = Kept(), list[bool]()
    refresh = kept.refresh(lambda: written.append(kept.batch(kept.stream)), pause_stream=False)
    with pytest.raises(Fenced, match="another was faster"):
        refresh.run(refresh.plan())
    assert (written, kept.batch(kept.stream)) == ([True], True)
