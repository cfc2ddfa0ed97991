"""Folds one generation of one view: events in, one flush out, nothing remembered that the store does not confirm."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from leftfold.engine.bulk_evolve import evolver
from leftfold.engine.decoded import Decoded
from leftfold.engine.touches import Place, Touches, Touching
from leftfold.errors import ContractError, ViewNotBuilt
from leftfold.flush import NOTHING_TO_FLUSH, BucketFlush, Generation, Mark, Parked, RowChange, Snapshot, covered
from leftfold.ports import Flushing, ViewStore
from leftfold.position import Position
from leftfold.rows import CHECKSUM_MODULUS
from leftfold.view import View

__all__ = ["Follower", "Kept"]

MAX_PARKED = 100


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
        self._touching = Touching(view, generation)
        self._kept: dict[Place, Kept] = {}
        self.marks: dict[int, Mark] = {}
        self._touches: Touches = {}
        self.missing: list[Place] = []
        self._flying: tuple[Flushing, dict[int, Mark], dict[Place, Kept]] | None = None
        self.reread()

    def reread(self) -> None:
        """Forgets everything and reads the marks again: after a conflict, or when the store went back in time.

        Raises:
            ViewNotBuilt: a mark is missing, so this generation is lost.
        """
        self._kept.clear()
        self._touches, self._flying = {}, None
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

    def look(self, records: Sequence[Decoded]) -> list[Place]:
        """Takes the next records in and names the rows, by bucket and key, that must be read before `begin`."""
        self._touches = self._touched(records)
        kept = self._kept
        while len(kept) > self._most:
            del kept[next(iter(kept))]
        # A bucket without rows needs no reading; whoever has put some there meanwhile has changed its token.
        empty = {bucket for bucket, mark in self.marks.items() if not mark.rows}
        missing = []
        for place in () if self.stopped else self._touches:
            if place in kept:
                continue
            if place[0] in empty:
                kept[place] = Kept(None)
            else:
                missing.append(place)
        self.missing = missing
        return missing

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
        after: dict[Place, Any] = {}
        step = self._steps[careful]
        for place, items in self._touches.items():
            self._evolve(buckets[place[0]], place, items, step, after)
        if sum(len(b.parked) for b in buckets.values()) > self._max_parked:
            self.stopped = f"more than {self._max_parked} keys are parked; mend the fold and rebuild"
            return
        self._flush(buckets, after, reached)

    def _touched(self, records: Sequence[Any]) -> Touches:
        touched, why = self._touching.of(records, self.marks)
        self.stopped = self.stopped or why
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
        place: Place,
        items: Sequence[tuple[Any, Decoded]],
        step: Callable[[Any, Any], Any],
        after: dict[Place, Any],
    ) -> None:
        key, row, done, latest = place[1], self._kept[place].row, 0, bucket.time
        parked = bucket.parked.get(key)
        if parked is not None:
            bucket.parked[key] = replace(parked, waiting=parked.waiting + len(items))
            return
        try:
            if isinstance(row, Exception):
                raise row
            for item, record in items:
                if isinstance(item, Exception):
                    raise item
                row = step(row, item)
                done += 1
                latest = max(latest, record.time)
        except Exception as error:  # noqa: BLE001  # a fold that fails parks its row, whatever it raises
            first, why = items[done][1], f"{type(error).__name__}: {error}"
            bucket.parked[key] = Parked(first.topic, first.partition, first.offset, why, len(items) - done)
        if done:
            after[place], bucket.time = row, latest
            bucket.changes[key] = items[done - 1][1].version if self.generation.stream_keyed else None

    def _flush(self, buckets: dict[int, _Bucket], after: dict[Place, Any], reached: Position) -> None:
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
        self, number: int, bucket: _Bucket, after: dict[Place, Any], position: Position
    ) -> tuple[BucketFlush, dict[Place, Kept]]:
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
