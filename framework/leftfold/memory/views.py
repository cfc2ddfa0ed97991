"""A ViewStore in dicts: what the bucket protocol asks for, in the fewest lines; adapter writers read this first."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from leftfold.engine.bulk_store import BulkRow
from leftfold.errors import Fenced
from leftfold.flush import BucketFlush, Generation, Landed, Mark, Phase, Registry, RowChange, Snapshot
from leftfold.rows import Fields

__all__ = ["MemoryViewStore"]


@dataclass
class _Bucket:
    mark: Mark
    rows: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    indexed: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def counts_in(self, generation: Generation) -> bool:
        """Whether the bucket is sealed, if its generation is."""
        return self.mark.phase is not Phase.BULK or generation.phase is Phase.BULK


class MemoryViewStore:
    """Keeps views in this process; one thread uses it."""

    def __init__(self) -> None:
        self._registries: dict[str, Registry] = {}
        self._buckets: dict[tuple[str, str, int], _Bucket] = {}

    def registry(self, view: str) -> Registry:
        """The generations of a view."""
        return self._registries.get(view, Registry())

    def change_registry(self, view: str, before: Registry, after: Registry) -> bool:
        """Replaces the registry if it is still `before`."""
        if self.registry(view) != before:
            return False
        self._registries[view] = after
        return True

    def marks(self, generation: Generation) -> dict[int, Mark]:
        """The marks that are there and have their seal."""
        found = ((b, self._of(generation, b)) for b in range(generation.buckets))
        return {number: bucket.mark for number, bucket in found if bucket is not None and bucket.counts_in(generation)}

    def create_marks(self, generation: Generation, marks: Mapping[int, Mark]) -> bool:
        """Writes first marks if none is there."""
        if self.marks(generation):
            return False
        for number, mark in marks.items():
            self._buckets[generation.view, generation.id, number] = _Bucket(mark)
        return True

    def read(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> Snapshot:
        """Rows, marks and the live generation."""
        buckets = {number: self._of(generation, number) for number, _ in keys}
        return Snapshot(
            self.registry(generation.view).live.get(generation.hash, ""),
            {n: bucket.mark for n, bucket in buckets.items() if bucket is not None and bucket.counts_in(generation)},
            tuple(bucket.rows.get(key) if (bucket := buckets[number]) else None for number, key in keys),
        )

    async def aread(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> Snapshot:
        """`read` for asyncio."""
        return self.read(generation, keys)

    def begin_flush(self, flushes: Sequence[BucketFlush]) -> Landed:
        """All buckets or none, at once."""
        return Landed(self.flush(flushes))

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        """All buckets or none."""
        for flush in flushes:
            bucket = self._of(flush.generation, flush.bucket)
            if bucket is None or bucket.mark.token != flush.expected:
                return False
        for flush in flushes:
            bucket = self._buckets[flush.generation.view, flush.generation.id, flush.bucket]
            bucket.mark = flush.mark
            for change in flush.changes:
                _apply(bucket, flush, change)
        return True

    def keys(self, generation: Generation, bucket: int, after: str, limit: int) -> list[str]:
        """Row keys behind `after`."""
        found = self._of(generation, bucket)
        ordered = sorted(found.rows, key=str.encode) if found else []
        start = bisect_right(ordered, after) if after else 0
        return ordered[start : start + limit]

    def found(self, generation: Generation, bucket: int, index: str, value: str) -> list[str]:
        """Row keys by indexed value."""
        found = self._of(generation, bucket)
        return sorted(k for k, entries in found.indexed.items() if f"{index}\0{value}" in entries) if found else []

    def unlink(self, generation: Generation) -> None:
        """Forgets a generation."""
        for key in [k for k in self._buckets if k[:2] == (generation.view, generation.id)]:
            del self._buckets[key]

    def close(self) -> None:
        """Nothing to let go of."""

    def write(
        self, generation: Generation, bucket: int, columns: Fields, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Writes rows of a bucket that is being filled in bulk; returns how many."""
        found, count = self._of(generation, bucket), 0
        for key, fields, version, entries in rows:
            if found is None or found.mark.phase is not Phase.BULK:
                raise Fenced(f"bucket {bucket} of {generation.view} {generation.id} is not being filled any more")
            _put(found, key, columns, fields, version, indexes, entries)
            count += 1
        return count

    def seal(self, generation: Generation, marks: Mapping[int, Mark]) -> None:
        """Sets the marks that a bulk load ended with."""
        buckets = {number: self._of(generation, number) for number in marks}
        for bucket in buckets.values():
            if bucket is None or bucket.mark.phase is not Phase.BULK:
                raise Fenced(f"{generation.view} {generation.id} is not being filled any more")
        for number, mark in marks.items():
            self._buckets[generation.view, generation.id, number].mark = mark

    def _of(self, generation: Generation, bucket: int) -> _Bucket | None:
        return self._buckets.get((generation.view, generation.id, bucket))


def _apply(bucket: _Bucket, flush: BucketFlush, change: RowChange) -> None:
    if change.fields is None or change.after is None:
        bucket.rows.pop(change.key, None)
        bucket.indexed.pop(change.key, None)
        return
    _put(bucket, change.key, flush.columns, change.fields, change.version, flush.indexes, change.after)


def _put(
    bucket: _Bucket,
    key: str,
    columns: Fields,
    fields: Fields,
    version: int | None,
    indexes: tuple[str, ...],
    entries: tuple[str, ...],
) -> None:
    row = dict(zip(columns, fields, strict=True))
    if version is not None:
        row[b"@version"] = b"%d" % version
    bucket.rows[key] = row
    bucket.indexed[key] = tuple(f"{n}\0{v}" for n, v in zip(indexes, entries, strict=True))
