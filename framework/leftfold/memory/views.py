"""A ViewStore in dicts: the bucket protocol in the fewest lines, as a reference for adapter authors."""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from leftfold.errors import Fenced
from leftfold.model.position import Position
from leftfold.model.row_codec import Fields
from leftfold.ports.bulk import BucketResult, BulkRow, BulkStore, Registries, Stored
from leftfold.ports.flush import (
    BucketFlush,
    Checkpoint,
    Generation,
    Landed,
    Phase,
    Registry,
    Snapshot,
    While,
    stored_fields,
)
from leftfold.ports.notifications import AsyncWaiter, PositionNotifier, Waiter
from leftfold.ports.queries import (
    Changed,
    Changes,
    Counting,
    Counts,
    Entries,
    GetRow,
    IndexRange,
    InspectedRow,
    Inspection,
    Listed,
    Matches,
    Matching,
    Query,
    Recent,
    Registered,
    RowResult,
    Rows,
)

__all__ = ["MemoryViewStore"]


A = TypeVar("A")


def _rows(store: MemoryViewStore, asked: Rows) -> Snapshot:
    numbers = [*asked.buckets, *(number for number, _ in asked.keys)]
    buckets = {number: store.bucket(asked.generation, number) for number in numbers}
    return Snapshot(
        _live(store, asked.generation),
        {
            n: bucket.checkpoint
            for n, bucket in buckets.items()
            if bucket is not None and bucket.counts_in(asked.generation)
        },
        tuple(bucket.rows.get(key) if (bucket := buckets[number]) else None for number, key in asked.keys),
    )


def _glance(store: MemoryViewStore, asked: GetRow) -> RowResult:
    bucket = store.bucket(asked.generation, asked.bucket)
    whole = bucket is not None and bucket.counts_in(asked.generation)
    return RowResult(_live(store, asked.generation), whole, bucket.rows.get(asked.key) if bucket else None)


def _listed(store: MemoryViewStore, asked: Listed) -> list[str]:
    found = store.bucket(asked.generation, asked.bucket)
    ordered = sorted(found.rows, key=str.encode) if found else []
    start = bisect_right(ordered, asked.after) if asked.after else 0
    return ordered[start : start + asked.limit]


def _matching(store: MemoryViewStore, asked: Matching) -> Matches:
    numbers = range(asked.generation.buckets) if asked.buckets is None else asked.buckets
    buckets = {number: store.bucket(asked.generation, number) for number in numbers}
    found = []
    for range_ in asked.ranges:
        entries = {number: bucket.within(range_) if bucket else [] for number, bucket in buckets.items()}
        found.append({n: tuple(e[::-1] if asked.backwards else e)[: asked.limit] for n, e in entries.items()})
    return Matches(_live(store, asked.generation), tuple(found))


def _counting(store: MemoryViewStore, asked: Counting) -> Counts:
    buckets = [store.bucket(asked.generation, number) for number in range(asked.generation.buckets)]
    totals = (sum(len(bucket.within(range_)) for bucket in buckets if bucket) for range_ in asked.ranges)
    return Counts(_live(store, asked.generation), tuple(totals))


def _entries_from(store: MemoryViewStore, asked: Entries) -> list[tuple[str, str]]:
    bucket = store.bucket(asked.generation, asked.bucket)
    indexed = bucket.indexed.items() if bucket else ()
    found = sorted((entries[asked.index], key) for key, entries in indexed if asked.index in entries)
    return [entry for entry in found if entry >= asked.first][: asked.limit]


def _inspection(store: MemoryViewStore, asked: Inspection) -> InspectedRow:
    bucket = store.bucket(asked.generation, asked.bucket)
    if bucket is None:
        return InspectedRow(None, None, False, frozenset(), False)
    indexed = bucket.indexed.get(asked.key, {}).items()
    fields, whole = bucket.rows.get(asked.key), bucket.counts_in(asked.generation)
    there = frozenset(entry for entry in asked.entries if entry in indexed)
    return InspectedRow(bucket.checkpoint if whole else None, fields, fields is not None, there, whole)


def _changes(store: MemoryViewStore, asked: Changes) -> Recent:
    buckets = {number: store.bucket(asked.generation, number) for number in asked.ids}
    return Recent(
        _live(store, asked.generation),
        {number: bucket.checkpoint.position for number, bucket in buckets.items() if bucket},
        {n: _entries(tuple(bucket.changes), asked, asked.ids[n]) if bucket else () for n, bucket in buckets.items()},
    )


def _entries(changes: tuple[Changed, ...], asked: Changes, id_: str) -> tuple[Changed, ...]:
    if asked.backwards:
        found = tuple(change for change in reversed(changes) if not id_ or int(change.id) < int(id_))
    else:
        found = tuple(change for change in changes if int(change.id) >= int(id_))
    return found[: asked.limit]


def _live(store: MemoryViewStore, generation: Generation) -> str:
    return store.registry(generation.view).live.get(generation.pointer, "")


_ANSWERS: dict[type, Any] = {
    Registered: lambda store, asked: store.registry(asked.view),
    GetRow: _glance,
    Rows: _rows,
    Listed: _listed,
    Matching: _matching,
    Counting: _counting,
    Entries: _entries_from,
    Inspection: _inspection,
    Changes: _changes,
}


class Bucket:
    """A bucket of a generation: its checkpoint, rows, index entries and change stream.

    Args:
        history: how many entries its change stream keeps.
    """

    def __init__(self, checkpoint: Checkpoint, history: int) -> None:
        self.checkpoint = checkpoint
        self.rows: dict[str, dict[bytes, bytes]] = {}
        self.changes: deque[Changed] = deque(maxlen=history + 1)
        self.indexed: dict[str, Mapping[str, str]] = {}
        self.finished: BucketResult | None = None
        self._last = 0
        self._append_change(())

    def counts_in(self, generation: Generation) -> bool:
        """Whether the bucket counts: it is sealed, unless its generation is `bulk`."""
        return self.checkpoint.phase is not Phase.BULK or generation.phase is Phase.BULK

    def flush(self, flush: BucketFlush) -> None:
        """Applies a flush whose token has been checked."""
        self.checkpoint = flush.checkpoint
        for change in flush.changes:
            if change.fields is None or change.after is None:
                self.rows.pop(change.key, None)
                self.indexed.pop(change.key, None)
            else:
                entries = dict(zip(flush.indexes, change.after, strict=True))
                self.put(change.key, flush.columns, change.fields, change.version, entries)
        if flush.changes:
            if not flush.moves:
                self._append_change((), begins=False)
            self._append_change(tuple(change.key for change in flush.changes), begins=False)

    def put(self, key: str, columns: Fields, fields: Fields, version: int | None, entries: Mapping[str, str]) -> None:
        """Writes a row and its index entries."""
        self.rows[key], self.indexed[key] = stored_fields(columns, fields, version), entries

    def seal(self, checkpoint: Checkpoint) -> None:
        """Ends a bulk load: the change stream begins at the checkpoint."""
        self.checkpoint, self.finished = checkpoint, None
        self.changes.clear()
        self._append_change(())

    def within(self, range_: IndexRange) -> list[tuple[str, str]]:
        """(ordered value, key) of the rows in a range, in order."""
        values = ((entries.get(range_.index), key) for key, entries in self.indexed.items())
        return sorted((value, key) for value, key in values if value is not None and range_.includes(value))

    def _append_change(self, keys: tuple[str, ...], *, begins: bool = True) -> None:
        self._last += 1
        self.changes.append(Changed(str(self._last), self.checkpoint.position, keys, begins))


class MemoryViewStore(BulkStore):
    """A ViewStore in this process: several threads may read while one writes.

    Args:
        history: how many flushes with changes each bucket keeps for `watch`.
    """

    def __init__(self, history: int = 1000) -> None:
        self._history, self._notifier = history, PositionNotifier()
        # For as long as one answer or one write takes: readers that wait do not hold it.
        self._lock = threading.RLock()
        self._registries: dict[str, Registry] = {}
        self._buckets: dict[tuple[str, str, int], Bucket] = {}
        self._members: dict[str, dict[str, float]] = {}

    def registry(self, view: str) -> Registry:
        """The generations of a view."""
        return self._registries.get(view, Registry())

    def change_registry(self, view: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
        """Replaces the registry if it is still `before`."""
        if self.registry(view) != before:
            return False
        if while_ is not None:
            checkpoints = self.checkpoints(while_.unmoved)
            if not while_.holds() or self.checkpoints(while_.unmoved) != checkpoints:
                return False
        self._registries[view] = after
        self._notifier.changed(view)
        return True

    def create_marks(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> bool:
        """Writes first checkpoints if none is there."""
        if any(self.bucket(generation, number) for number in checkpoints):
            return False
        with self._lock:
            for number, checkpoint in checkpoints.items():
                self._buckets[generation.view, generation.id, number] = Bucket(checkpoint, self._history)
        return True

    def read_all(self, asked: Sequence[tuple[Generation, Sequence[tuple[int, str]]]]) -> list[Snapshot]:
        """`read` of several generations."""
        return [self.read(generation, keys) for generation, keys in asked]

    def ask(self, question: Query[A], /) -> A:
        """The answer to a query."""
        with self._lock:
            answer: A = _ANSWERS[type(question)](self, question)
        return answer

    async def aask(self, question: Query[A], /) -> A:
        """`ask` for asyncio."""
        return self.ask(question)

    def listen(self, generation: Generation, wanted: Position | None, /) -> Waiter:
        """A waiter for a thread."""
        return self._notifier.waiter(generation, wanted)

    async def alisten(self, generation: Generation, wanted: Position | None, /) -> AsyncWaiter:
        """A waiter for a coroutine."""
        return self._notifier.async_waiter(generation, wanted)

    def begin_flush(self, flushes: Sequence[BucketFlush]) -> Landed:
        """Writes all buckets or none, at once."""
        return Landed(self.flush(flushes))

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        """Writes all buckets or none."""
        for flush in flushes:
            bucket = self.bucket(flush.generation, flush.bucket)
            if bucket is None or bucket.checkpoint.token != flush.expected:
                return False
        with self._lock:
            for flush in flushes:
                self._buckets[flush.generation.view, flush.generation.id, flush.bucket].flush(flush)
        for view, id_ in dict.fromkeys((flush.generation.view, flush.generation.id) for flush in flushes):
            self._notifier.reached(view, id_, Position.union(flush.checkpoint.position for flush in flushes))
        return True

    def unlink(self, generation: Generation) -> None:
        """Removes a generation with all its buckets."""
        with self._lock:
            for key in [k for k in self._buckets if k[:2] == (generation.view, generation.id)]:
                del self._buckets[key]

    def heartbeat(self, groups: Sequence[str], member: str, seconds: float) -> dict[str, tuple[str, ...]]:
        """Renews the membership until a time."""
        now = time.monotonic()
        for group in groups:
            members = self._members.get(group, {}) | {member: now + seconds}
            self._members[group] = {name: until for name, until in members.items() if until > now}
        return {group: tuple(sorted(self._members[group])) for group in groups}

    def close(self) -> None:
        """Does nothing."""

    def write(
        self, generation: Generation, bucket: int, columns: Fields, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Writes rows of a bucket that is being filled in bulk; returns how many."""
        count = 0
        for key, fields, version, entries in rows:
            found = self._in_bulk(generation, bucket)
            if found.finished is not None:
                break
            with self._lock:
                found.put(key, columns, fields, version, dict(zip(indexes, entries, strict=True)))
            count += 1
        return count

    def finish(self, generation: Generation, result: BucketResult) -> BucketResult:
        """Records that a bucket is complete."""
        found = self._in_bulk(generation, result.bucket)
        found.finished = found.finished or result
        return found.finished

    def finished(self, generation: Generation) -> dict[int, BucketResult]:
        """The results of the buckets that are complete."""
        found = ((b, self.bucket(generation, b)) for b in range(generation.buckets))
        return {b: bucket.finished for b, bucket in found if bucket is not None and bucket.finished is not None}

    def seal(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Writes the checkpoints at the end of a bulk load."""
        buckets = [(self._in_bulk(generation, number), checkpoint) for number, checkpoint in checkpoints.items()]
        with self._lock:
            for bucket, checkpoint in buckets:
                bucket.seal(checkpoint)

    def stored(self, views: Collection[str], seconds: float = math.inf) -> Stored:
        """Every generation of these views that has buckets."""
        found: dict[tuple[str, str], int] = {}
        for view, id_, number in list(self._buckets):
            if view in views:
                found[view, id_] = max(found.get((view, id_), 0), number + 1)
        return Stored(found)

    def registered(self, seconds: float = math.inf) -> Registries:
        """Every view that has a registry."""
        return Registries(frozenset(view for view, registry in self._registries.items() if registry != Registry()))

    def bucket(self, generation: Generation, number: int) -> Bucket | None:
        """A bucket of a generation, None when it does not exist."""
        return self._buckets.get((generation.view, generation.id, number))

    def _in_bulk(self, generation: Generation, number: int) -> Bucket:
        """A bucket that is being filled in bulk.

        Raises:
            Fenced: it is not any more.
        """
        found = self.bucket(generation, number)
        if found is None or found.checkpoint.phase is not Phase.BULK:
            raise Fenced(f"bucket {number} of {generation.view} {generation.id} is not being filled any more")
        return found
