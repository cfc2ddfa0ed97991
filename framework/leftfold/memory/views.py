"""A ViewStore in dicts: what the bucket protocol asks for, in the fewest lines; adapter writers read this first."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from leftfold.bells import Bells, LoopBell, ThreadBell
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.bulk_store import BulkRow, Registries, Stored
from leftfold.errors import Fenced
from leftfold.flush import BucketFlush, Generation, Landed, Mark, Phase, Registry, Snapshot, While
from leftfold.memory.answers import answered
from leftfold.memory.bucket import Bucket
from leftfold.position import Position
from leftfold.questions import Listed, Matching, Question, Range, Rows
from leftfold.rows import Fields

__all__ = ["MemoryViewStore"]

A = TypeVar("A")


class MemoryViewStore:
    """Keeps views in this process; one thread writes at a time.

    Args:
        history: how many flushes with changes each bucket remembers for `watch`.
    """

    def __init__(self, history: int = 1000) -> None:
        self._history, self._bells = history, Bells()
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
            marks = self.marks(while_.unmoved)
            if not while_.holds() or self.marks(while_.unmoved) != marks:
                return False
        self._registries[view] = after
        self._bells.changed(view)
        return True

    def marks(self, generation: Generation) -> dict[int, Mark]:
        """The marks that are there and have their seal."""
        found = ((b, self.bucket(generation, b)) for b in range(generation.buckets))
        return {number: bucket.mark for number, bucket in found if bucket is not None and bucket.counts_in(generation)}

    def create_marks(self, generation: Generation, marks: Mapping[int, Mark]) -> bool:
        """Writes first marks if none is there."""
        if any(self.bucket(generation, number) for number in marks):
            return False
        for number, mark in marks.items():
            self._buckets[generation.view, generation.id, number] = Bucket(mark, self._history)
        return True

    def read(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> Snapshot:
        """Rows, marks and the live generation."""
        return self.ask(Rows(generation, tuple(keys)))

    def read_all(self, asked: Sequence[tuple[Generation, Sequence[tuple[int, str]]]]) -> list[Snapshot]:
        """`read` of several generations."""
        return [self.read(generation, keys) for generation, keys in asked]

    async def aread(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> Snapshot:
        """`read` for asyncio."""
        return self.read(generation, keys)

    def ask(self, question: Question[A], /) -> A:
        """The answer to a question."""
        return answered(self, question)

    async def aask(self, question: Question[A], /) -> A:
        """`ask` for asyncio."""
        return answered(self, question)

    def listen(self, generation: Generation, wanted: Position | None, /) -> ThreadBell:
        """A bell for a thread."""
        return self._bells.thread_bell(generation, wanted)

    async def alisten(self, generation: Generation, wanted: Position | None, /) -> LoopBell:
        """A bell for a coroutine."""
        return self._bells.loop_bell(generation, wanted)

    def begin_flush(self, flushes: Sequence[BucketFlush]) -> Landed:
        """All buckets or none, at once."""
        return Landed(self.flush(flushes))

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        """All buckets or none."""
        for flush in flushes:
            bucket = self.bucket(flush.generation, flush.bucket)
            if bucket is None or bucket.mark.token != flush.expected:
                return False
        for flush in flushes:
            self._buckets[flush.generation.view, flush.generation.id, flush.bucket].flush(flush)
        for view, id_ in dict.fromkeys((flush.generation.view, flush.generation.id) for flush in flushes):
            self._bells.reached(view, id_, Position.union(flush.mark.position for flush in flushes))
        return True

    def keys(self, generation: Generation, bucket: int, after: str, limit: int) -> list[str]:
        """Row keys behind `after`."""
        return self.ask(Listed(generation, bucket, after, limit))

    def found(self, generation: Generation, bucket: int, index: str, value: str) -> list[str]:
        """Row keys by indexed value."""
        matches = self.ask(Matching(generation, (Range(index, value, value),), buckets=(bucket,)))
        return [key for _, key in matches.found[0][bucket]]

    def unlink(self, generation: Generation) -> None:
        """Forgets a generation."""
        for key in [k for k in self._buckets if k[:2] == (generation.view, generation.id)]:
            del self._buckets[key]

    def attend(self, groups: Sequence[str], member: str, seconds: float) -> dict[str, tuple[str, ...]]:
        """Notes until when a member lives."""
        now = time.monotonic()
        for group in groups:
            members = self._members.get(group, {}) | {member: now + seconds}
            self._members[group] = {name: until for name, until in members.items() if until > now}
        return {group: tuple(sorted(self._members[group])) for group in groups}

    def close(self) -> None:
        """Nothing to let go of."""

    def write(
        self, generation: Generation, bucket: int, columns: Fields, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Writes rows of a bucket that is being filled in bulk; returns how many."""
        found, count = self.bucket(generation, bucket), 0
        for key, fields, version, entries in rows:
            if found is None or found.mark.phase is not Phase.BULK:
                raise Fenced(f"bucket {bucket} of {generation.view} {generation.id} is not being filled any more")
            if found.finished is not None:
                break
            found.put(key, columns, fields, version, dict(zip(indexes, entries, strict=True)))
            count += 1
        return count

    def finish(self, generation: Generation, result: BucketResult) -> BucketResult:
        """Notes that a bucket is whole."""
        found = self.bucket(generation, result.bucket)
        if found is None or found.mark.phase is not Phase.BULK:
            raise Fenced(f"bucket {result.bucket} of {generation.view} {generation.id} is not being filled any more")
        found.finished = found.finished or result
        return found.finished

    def finished(self, generation: Generation) -> dict[int, BucketResult]:
        """The buckets that are whole."""
        found = ((b, self.bucket(generation, b)) for b in range(generation.buckets))
        return {b: bucket.finished for b, bucket in found if bucket is not None and bucket.finished is not None}

    def seal(self, generation: Generation, marks: Mapping[int, Mark]) -> None:
        """Sets the marks that a bulk load ended with."""
        for number in marks:
            bucket = self.bucket(generation, number)
            if bucket is None or bucket.mark.phase is not Phase.BULK:
                raise Fenced(f"{generation.view} {generation.id} is not being filled any more")
        for number, mark in marks.items():
            self._buckets[generation.view, generation.id, number].seal(mark)

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
        """A bucket of a generation, None when it is not there."""
        return self._buckets.get((generation.view, generation.id, number))
