"""The projection writer: folds events into one generation of one view and flushes its rows."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from typing import Any

from leftfold.engine.views.folded_rows import RowAddress
from leftfold.engine.views.live_fold import LiveFold
from leftfold.engine.views.parking import RowEncodingError
from leftfold.errors import ContractError, ViewNotBuilt
from leftfold.model.position import Position
from leftfold.model.row_codec import CHECKSUM_MODULUS
from leftfold.model.view import View
from leftfold.ports.flush import (
    NOTHING_TO_FLUSH,
    BucketFlush,
    Checkpoint,
    Generation,
    Landed,
    RowChange,
    Snapshot,
    covered,
)
from leftfold.ports.protocols import Flushing, ViewStore

__all__ = ["ProjectionWriter"]

MAX_PARKED = 100


class ProjectionWriter:
    """Folds events into some buckets of one generation; `checkpoints` are those that the store confirmed last.

    `look` folds what it can and names the rows that must be read for the rest, and `enter` takes these. This repeats
    until `begin` sends everything in one flush, and `landed` waits for it. The next events may be folded meanwhile.
    When a flush is not confirmed, the writer drops its state and reads the checkpoints again.

    Args:
        buckets: those it folds; all of them by default.
        most: how many rows stay in memory.
        max_parked: how many keys may be parked before the view stops.
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
        self.checkpoints: dict[int, Checkpoint] = {}
        self._store, self._most, self._max_parked = store, most, max_parked
        self._flying: tuple[Flushing, dict[int, Checkpoint]] | None = None
        self._unstorable = frozenset[RowAddress]()
        """Rows that could not be encoded at the last failed flush."""
        self._dirty, self._fold = False, LiveFold(view, generation, {})
        self.reread()

    def reread(self) -> None:
        """Drops all state and reads the checkpoints again: after a conflict, or when the store went back in time.

        Raises:
            ViewNotBuilt: a checkpoint is missing, so this generation is lost.
            ContractError: a checkpoint is unreadable.
        """
        found = self._store.checkpoints(self.generation)
        missing = sorted(set(range(self.generation.buckets)) - set(found))
        self._begin_at({bucket: checkpoint for bucket, checkpoint in found.items() if bucket in self.buckets})
        if missing:
            raise ViewNotBuilt(
                f"generation {self.generation.id} of view {self.view.name} lost the checkpoints of buckets "
                f"{missing[:5]}; build it again: leftfold rebuild {self.view.name}"
            )

    def rewind(self) -> None:
        """Drops what has not landed; the log must be read again from `position()`."""
        if self._dirty or self._flying is not None:
            self._begin_at(self.checkpoints)
        self._fold.skip(self.checkpoints)

    def is_confirmed(self) -> bool:
        """Whether the store still has the checkpoints that were written last, by their tokens."""
        try:
            found = self._store.checkpoints(self.generation)
        except ContractError:
            return False
        return all(
            bucket in found and found[bucket].token == checkpoint.token
            for bucket, checkpoint in self.checkpoints.items()
        )

    def position(self) -> Position:
        """Where reading must start so that no bucket misses an event: per partition the least of the checkpoints."""
        return covered(self.generation, self.checkpoints)

    def unsent(self) -> int:
        """How many rows the next flush holds."""
        return len(self._fold.unsent)

    def fold(self, records: Sequence[Any], reached: Position) -> bool:
        """Runs `look`, `enter`, `begin` and `landed` for some records."""
        try:
            self._sent(records, reached)
        except RowEncodingError:
            self.rewind()
            self._sent(records, reached)
        return self.landed()

    def look(self, records: Sequence[Any]) -> list[RowAddress]:
        """Folds the next records; returns the rows, by bucket and key, that `enter` needs first."""
        self._dirty = self._dirty or bool(records)
        missing = self._take(records)
        self.stopped = self.stopped or self._fold.stopped
        return missing

    def enter(self, read: Snapshot) -> None:
        """Takes the rows that `look` named and folds the records that waited for them."""
        self._fold.enter(read)

    def begin(self, reached: Position) -> None:
        """Sends one flush of all folded rows; every bucket's checkpoint moves to `reached`, changed or not.

        Raises:
            RowEncodingError: some rows cannot be encoded. After a `rewind` these are checked after each event, which
                shows where to park them if they cannot be stored then either.
        """
        self._fold.settle()
        if not self._may_continue():
            return
        moved = self._moved(reached)
        try:
            changes = self._fold.changes()
        except RowEncodingError as error:
            if error.rows <= self._unstorable:
                self.stopped = f"a row could be stored before and cannot now; fix its type and rebuild: {error}"
                return
            self._unstorable |= error.rows
            raise
        self._unstorable = frozenset()
        flushes = [self._flush(number, moved[number], changes[number]) for number in self.checkpoints]
        sent = self._store.begin_flush(flushes) if flushes else NOTHING_TO_FLUSH
        self._flying, self._dirty = (sent, {flush.bucket: flush.checkpoint for flush in flushes}), False

    def landed(self) -> bool:
        """Waits for the flush; True when the records before it are done.

        False: another writer was here or the store went back; `reread` and read the log again from `position()`.
        """
        if self._flying is None:
            return True
        flush, checkpoints = self._flying
        if not flush.landed():
            return False
        self._flying, self.checkpoints = None, checkpoints
        for number, checkpoint in checkpoints.items():
            if not checkpoint.rows:
                self._fold.buckets[number].is_whole = True
        self._fold.evict(self._most)
        return True

    def _may_continue(self) -> bool:
        """Whether the view may continue; too many parked keys stop it, unless other writers changed the rows."""
        parked = sum(len(bucket.parked) for bucket in self._fold.buckets.values())
        if parked > self._max_parked and not self.stopped:
            if not self.is_confirmed():
                self._flying = Landed(written=False), {}
                return False
            self.stopped = f"more than {self._max_parked} keys are parked; fix the fold and rebuild"
        return not self.stopped

    def _begin_at(self, checkpoints: dict[int, Checkpoint]) -> None:
        self.checkpoints, self._flying, self._dirty = checkpoints, None, False
        self._fold = LiveFold(self.view, self.generation, checkpoints, self._unstorable)

    def _take(self, records: Sequence[Any]) -> list[RowAddress]:
        return self._fold.take(records)

    def _sent(self, records: Sequence[Any], reached: Position) -> None:
        missing = self.look(records)
        if missing:
            self.enter(self._read(missing))
        self.begin(reached)

    def _read(self, places: Sequence[RowAddress]) -> Snapshot:
        return self._store.read(self.generation, places)

    def _flush(self, number: int, position: Position, changes: Sequence[RowChange]) -> BucketFlush:
        bucket, before, rows = self._fold.buckets[number], self.checkpoints[number], self.view.rows
        checksum, token, parked = bucket.checksum % CHECKSUM_MODULUS, self._token(), dict(bucket.parked)
        moved = Checkpoint(position, checksum, token, before.phase, bucket.rows, parked, bucket.time)
        return BucketFlush(self.generation, number, before.token, moved, rows.columns, rows.indexes, tuple(changes))

    def _moved(self, reached: Position) -> dict[int, Position]:
        """The next position of each bucket; buckets with equal checkpoints share one Position, and its JSON."""
        topics, keyed = self.generation.topics, self.generation.stream_keyed
        here = Position() if keyed else reached.only(topics)
        merged: dict[Any, Position] = {}
        moved, ahead = {}, False
        for number, checkpoint in self.checkpoints.items():
            place = number if keyed else id(checkpoint.position)
            if place not in merged:
                mine = reached.only(topics, number) if keyed else here
                both = checkpoint.position | mine
                merged[place] = mine if both == mine else both
                ahead = ahead or both != mine
            moved[number] = merged[place]
        self._fold.is_ahead = ahead
        return moved

    def _token(self) -> str:
        """A random token for the next flush."""
        return secrets.token_hex(8)
