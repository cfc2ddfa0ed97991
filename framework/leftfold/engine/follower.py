"""Folds one generation of one view: events in, one flush out, nothing remembered that the store does not confirm."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from leftfold.engine.bulk_evolve import evolver
from leftfold.engine.decoded import Decoded
from leftfold.engine.places import bucket_of
from leftfold.errors import ContractError, ViewNotBuilt
from leftfold.flush import NOTHING_TO_FLUSH, BucketFlush, Generation, Mark, Parked, RowChange, Snapshot, covered
from leftfold.ports import Flushing, ViewStore
from leftfold.position import Position
from leftfold.rows import CHECKSUM_MODULUS
from leftfold.view import View

__all__ = ["Follower", "Kept"]

MAX_PARKED = 100
NO_KEY = "\0"
_Touch: TypeAlias = tuple[int, str, Any, Decoded]


class _Unstorable(Exception):
    """A folded row cannot be encoded; the batch is folded again, event by event, to find and park it."""


@dataclass(slots=True)
class Kept:
    """A row as last flushed or read, with what the next flush must take back.

    `row` is None where there is none, and a ContractError where what is stored cannot be read.
    """

    row: Any
    digest: int = 0
    indexed: tuple[str, ...] | None = None


@dataclass(slots=True)
class _Bucket:
    mark: Mark
    changes: dict[str, int | None]
    parked: dict[str, Parked]
    time: str


class Follower:
    """Folds batches into some buckets of one generation; `marks` are what the store confirmed last.

    A batch goes through `look`, `begin` and `landed`: between the first two somebody reads the rows that are missing,
    between the last two the store works.

    Args:
        buckets: those it folds; all of them when nothing is said.
        most: how many rows stay in memory. max_parked: how many keys may be parked before the view stops.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generation: Generation,
        store: ViewStore,
        *,
        buckets: Collection[int] | None = None,
        most: int = 100_000,
        max_parked: int = MAX_PARKED,
    ) -> None:
        self.view, self.generation, self.stopped = view, generation, ""
        self.buckets = frozenset(range(generation.buckets) if buckets is None else buckets)
        self._store, self._most, self._max_parked = store, most, max_parked
        self._steps = {careful: evolver(view, careful=careful) for careful in (False, True)}
        self._names = {f"{c.__leftfold__.category}.{c.__leftfold__.name}" for c in view.events}
        self._kept: dict[tuple[int, str], Kept] = {}
        self.marks: dict[int, Mark] = {}
        self._touches: list[_Touch] = []
        self.missing: list[tuple[int, str]] = []
        self._flying: tuple[Flushing, dict[int, Mark], dict[tuple[int, str], Kept]] | None = None
        self.reread()

    def reread(self) -> None:
        """Forgets everything and reads the marks again: after a conflict, or when the store went back in time.

        Raises:
            ViewNotBuilt: a mark is missing, so this generation is lost.
        """
        self._kept.clear()
        self._touches, self._flying = [], None
        found = self._store.marks(self.generation)
        missing = sorted(set(range(self.generation.buckets)) - set(found))
        self.marks = {bucket: mark for bucket, mark in found.items() if bucket in self.buckets}
        if missing:
            raise ViewNotBuilt(
                f"generation {self.generation.id} of view {self.view.name} lost the marks of buckets {missing[:5]}; "
                f"build it again: leftfold rebuild {self.view.name}"
            )

    def is_confirmed(self) -> bool:
        """Whether the store still has the marks that were written last, by their tokens."""
        found = self._store.marks(self.generation)
        return all(bucket in found and found[bucket].token == mark.token for bucket, mark in self.marks.items())

    def position(self) -> Position:
        """Where reading must start so that no bucket misses an event: per partition the least of the marks."""
        return covered(self.generation, self.marks)

    def checksum(self) -> int:
        """The sum of its buckets' checksums."""
        return sum(mark.checksum for mark in self.marks.values()) % CHECKSUM_MODULUS

    def fold(self, records: Sequence[Decoded], reached: Position) -> bool:
        """`look`, `begin` and `landed` at once."""
        missing = self.look(records)
        self.begin(self._store.read(self.generation, missing) if missing else None, reached)
        return self.landed()

    def look(self, records: Sequence[Decoded]) -> list[tuple[int, str]]:
        """Takes the next records in and names the rows, by bucket and key, that must be read before `begin`."""
        self._touches = self._touched(records)
        while len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        wanted = ((b, k) for b, k, _, _ in self._touches if (b, k) not in self._kept)
        self.missing = [] if self.stopped else list(dict.fromkeys(wanted))
        return self.missing

    def begin(self, read: Snapshot | None, reached: Position) -> None:
        """Folds what `look` took in and sends one flush; every bucket's mark moves to `reached`, touched or not.

        Args:
            read: the rows that `look` named; None when there were none.
        """
        if self.stopped:
            return
        for place, fields in zip(self.missing, read.rows if read is not None else (), strict=True):
            self._kept[place] = Kept(None) if fields is None else self._read(place[1], fields)
        try:
            self._folded(reached, careful=False)
        except _Unstorable:
            self._folded(reached, careful=True)

    def landed(self) -> bool:
        """Waits for the flush; True when there is nothing left to do for these records.

        False: another writer was here or the store went back; `reread` and read the log again from `position()`.
        """
        if self._flying is None:
            return True
        (flush, marks, kept), self._flying = self._flying, None
        if not flush.landed():
            return False
        self._kept.update(kept)
        self.marks = marks
        return True

    def _folded(self, reached: Position, *, careful: bool) -> None:
        buckets = {b: _Bucket(m, {}, dict(m.parked), m.time) for b, m in self.marks.items()}
        after: dict[tuple[int, str], Any] = {}
        for bucket, key, item, record in self._touches:
            self._evolve(buckets[bucket], (bucket, key), item, record, after, careful)
        if sum(len(b.parked) for b in buckets.values()) > self._max_parked:
            self.stopped = f"more than {self._max_parked} keys are parked; mend the fold and rebuild"
            return
        self._flush(buckets, after, reached)

    def _touched(self, records: Iterable[Decoded]) -> list[_Touch]:
        touched: list[_Touch] = []
        wanted, generation = self.view.events, self.generation
        for record in records:
            if record.topic not in generation.topics:
                continue
            if record.error is None and not isinstance(record.event, wanted):
                continue
            if record.error is not None and record.name and record.name not in self._names:
                continue
            try:
                if record.error is not None:
                    raise record.error
                pairs = list(self.view.touches(record.event, record.key))  # type: ignore[arg-type]  # checked above
            except Exception as error:  # noqa: BLE001  # user code and broken records alike
                if not generation.stream_keyed:
                    self.stopped = f"{record.topic}[{record.partition}]@{record.offset}: {error}"
                    break
                pairs = [(self.view.keys.encode(record.key or NO_KEY), error)]
            for key, item in pairs:
                bucket = bucket_of(generation, key, record.partition)
                mark = self.marks.get(bucket)
                if mark is not None and mark.position.next_offset(record.topic, record.partition) <= record.offset:
                    touched.append((bucket, key, item, record))
        return touched

    def _read(self, key: str, fields: Mapping[bytes, bytes]) -> Kept:
        rows = self.view.rows
        try:
            row = rows.decode(fields)
            return Kept(row, rows.digest(key, tuple(fields[c] for c in rows.columns)), rows.index_entries(row))
        except ContractError as error:
            return Kept(error)

    def _evolve(
        self,
        bucket: _Bucket,
        place: tuple[int, str],
        item: Any,
        record: Decoded,
        after: dict[tuple[int, str], Any],
        careful: bool,
    ) -> None:
        key = place[1]
        parked = bucket.parked.get(key)
        if parked is not None:
            bucket.parked[key] = replace(parked, waiting=parked.waiting + 1)
            return
        row = after[place] if place in after else self._kept[place].row
        try:
            if isinstance(item, Exception):
                raise item
            if isinstance(row, Exception):
                raise row
            row = self._steps[careful](row, item)
        except Exception as error:  # noqa: BLE001  # a fold that fails parks its row, whatever it raises
            bucket.parked[key] = Parked(
                record.topic, record.partition, record.offset, f"{type(error).__name__}: {error}"
            )
            return
        after[place] = row
        bucket.changes[key] = record.version if self.generation.stream_keyed else None
        bucket.time = max(bucket.time, record.time)

    def _flush(self, buckets: dict[int, _Bucket], after: dict[tuple[int, str], Any], reached: Position) -> None:
        flushes, kept = [], {}
        moved = self._moved(reached)
        for number, bucket in buckets.items():
            flush, rows = self._of_bucket(number, bucket, after, moved[number])
            flushes.append(flush)
            kept.update(rows)
        sent = self._store.begin_flush(flushes) if flushes else NOTHING_TO_FLUSH
        self._flying = sent, {flush.bucket: flush.mark for flush in flushes}, kept

    def _moved(self, reached: Position) -> dict[int, Position]:
        """Where each bucket's mark moves to; buckets that are at one place share one Position, and its JSON."""
        topics, keyed = self.generation.topics, self.generation.stream_keyed
        if keyed:
            return {number: mark.position | reached.only(topics, number) for number, mark in self.marks.items()}
        here = reached.only(topics)
        merged: dict[int, Position] = {}
        for mark in self.marks.values():
            place = id(mark.position)
            if place not in merged:
                both = mark.position | here
                merged[place] = here if both == here else both
        return {number: merged[id(mark.position)] for number, mark in self.marks.items()}

    def _of_bucket(
        self, number: int, bucket: _Bucket, after: dict[tuple[int, str], Any], position: Position
    ) -> tuple[BucketFlush, dict[tuple[int, str], Kept]]:
        rows, mark = self.view.rows, bucket.mark
        checksum, count = mark.checksum, mark.rows
        changes, kept = [], {}
        for key, version in bucket.changes.items():
            place = (number, key)
            row, before = after[place], self._kept[place]
            try:
                fields = None if row is None else rows.encode(row)
                indexed = None if row is None else rows.index_entries(row)
            except Exception as error:
                raise _Unstorable from error
            now = Kept(row) if fields is None else Kept(row, rows.digest(key, fields), indexed)
            checksum += now.digest - before.digest
            count += (row is not None) - (before.row is not None)
            kept[place] = now
            changes.append(RowChange(key, fields, version, before.indexed, now.indexed))
        for key in bucket.parked.keys() - mark.parked.keys():
            checksum -= (kept.get((number, key)) or self._kept[number, key]).digest
        moved = Mark(
            position,
            checksum % CHECKSUM_MODULUS,
            secrets.token_hex(8),
            mark.phase,
            count,
            bucket.parked,
            bucket.time,
        )
        return (
            BucketFlush(self.generation, number, mark.token, moved, rows.columns, rows.indexes, tuple(changes)),
            kept,
        )
