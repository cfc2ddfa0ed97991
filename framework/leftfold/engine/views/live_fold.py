"""The fold of a projector: folds events into rows in memory from given checkpoints on, and parks rows that fail."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from math import inf
from typing import Any

from leftfold.engine.views.decoding import Decoded, folds_record
from leftfold.engine.views.folded_rows import FoldedBucket, FoldedRow, RowAddress, bucket_of, stored_row, stream_row
from leftfold.engine.views.parking import RowEncodingError, StepwiseFold, parked_at
from leftfold.errors import LeftfoldError
from leftfold.model.view import View
from leftfold.ports.flush import Checkpoint, Generation, Parked, RowChange, Snapshot
from leftfold.safety import shown

__all__ = ["LiveFold"]


class LiveFold:
    """Folds records into the rows of one generation; records that its checkpoints include are skipped.

    `stopped` says why it cannot continue ('' = it can), `is_ahead` whether some checkpoint may be ahead of the next
    record.

    Args:
        checkpoints: of the buckets to fold into; records of other buckets are left out.
        tracked: the rows to be checked after every event, because they could not be stored at an earlier flush.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generation: Generation,
        checkpoints: Mapping[int, Checkpoint],
        tracked: Collection[RowAddress] = (),
    ) -> None:
        self._view, self._generation, self.stopped = view, generation, ""
        self._is_mine = folds_record(view)
        self.buckets = {number: FoldedBucket.of(checkpoint) for number, checkpoint in checkpoints.items()}
        self.skip(checkpoints)
        self.step = view.evolve
        self._take = self._take_streams if generation.stream_keyed else self._take_others
        # By bucket and the name of the row in records: the stream's key for a stream-keyed view, else its own encoded
        # key.
        self.rows: dict[RowAddress, FoldedRow] = {}
        self.unsent: dict[RowAddress, FoldedRow] = {}
        self._to_track = frozenset(tracked)
        self._tracked: dict[RowAddress, tuple[FoldedRow, StepwiseFold]] = {}
        self._unread: dict[RowAddress, tuple[str, list[tuple[Any, Decoded]]]] = {}

    def skip(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Skips from now on what these checkpoints include: the log is read again from a position before them."""
        self._done, self.is_ahead = _Done(checkpoints), True

    def take(self, records: Sequence[Decoded]) -> list[RowAddress]:
        """Folds records; returns the rows, by bucket and key, that `enter` needs before anything else.

        Records of rows that are not in memory yet wait for it.
        """
        if not self.stopped:
            self._take(records)
        return self.missing()

    def missing(self) -> list[RowAddress]:
        """The rows, by bucket and key, that `enter` needs."""
        return [(bucket, key) for (bucket, _), (key, _) in self._unread.items()]

    def enter(self, read: Snapshot) -> None:
        """Takes the rows that `take` named and folds the records that waited for them."""
        unread, self._unread = self._unread, {}
        for (place, (key, items)), fields in zip(unread.items(), read.rows, strict=True):
            self._enter(place, stored_row(self._view, self.buckets[place[0]], key, fields))
            for item, record in items:
                self.give(place, key, item, record)

    def give(self, place: RowAddress, key: str, item: Any, record: Decoded) -> None:
        """Folds one item into its row, or keeps it until the row has been read."""
        row = self.rows.get(place)
        if row is None:
            if place in self._tracked:
                self._tracked[place][1].fold(item, record)
                return
            bucket = self.buckets[place[0]]
            if key in bucket.parked:
                bucket.parked[key] = bucket.parked[key].with_another_event()
                return
            if not bucket.is_whole:
                self._unread.setdefault(place, (key, []))[1].append((item, record))
                return
            self._enter(place, FoldedRow(bucket, key, None))
            self.give(place, key, item, record)
            return
        try:
            for trouble in (row.row, item):
                if isinstance(trouble, Exception):
                    raise trouble
            row.row = self.step(row.row, item)
        except Exception as error:  # noqa: BLE001  # a fold that fails parks its row, whatever it raises
            self._park(self.rows.pop(place), parked_at(record, error))
            return
        row.version = record.version if self._generation.stream_keyed else None
        row.bucket.time = max(row.bucket.time, record.time)
        self.unsent[place] = row

    def changes(self) -> dict[int, list[RowChange]]:
        """The row changes to flush, by bucket; they count as sent from now on.

        Raises:
            RowEncodingError: some rows cannot be encoded; this fold must not be used any further.
        """
        unsent, self.unsent = self.unsent, {}
        changes: dict[int, list[RowChange]] = {number: [] for number in self.buckets}
        view, wrong = self._view, dict[RowAddress, Exception]()
        for place, row in unsent.items():
            try:
                changes[place[0]].append(row.change(view))
            except Exception as error:  # noqa: BLE001  # whatever it is, the row cannot be stored
                wrong[place] = error
        if wrong:
            raise RowEncodingError(wrong, next(iter(wrong.values())))
        for folded in self.buckets.values():
            folded.settle()
        return changes

    def settle(self) -> None:
        """Parks the tracked rows that cannot be stored now, and ends the tracking."""
        for place, (row, found) in self._tracked.items():
            if found.good_at is not None:
                row.row, row.version = found.good, found.version
                row.bucket.time, self.unsent[place] = max(row.bucket.time, found.time), row
            if found.parked is None:
                self.rows[place] = row
            else:
                self._park(row, found.parked)
        self._tracked, self._to_track = {}, frozenset()

    def evict(self, most: int) -> None:
        """Evicts rows whose flush has landed, the oldest first, until so many are left."""
        over = len(self.rows) - most
        for place in list(islice((place for place in self.rows if place not in self.unsent), max(0, over))):
            self.rows.pop(place).bucket.is_whole = False

    def _take_streams(self, records: Sequence[Decoded]) -> None:
        """Folds records of a stream-keyed view; nearly all are of rows in memory and take the fast path."""
        rows, unsent, step, events, ahead = self.rows, self.unsent, self.step, self._view.events, self.is_ahead
        (topic,) = self._generation.topics
        for record in records:
            of, partition, _, name, event, error, version, _, time, _ = record
            place = partition, name
            row = rows.get(place)
            if row is None or ahead or error is not None or of != topic or type(event) not in events:
                self._take_stream(record)
                continue
            try:
                row.row = step(row.row, event)
            except Exception as trouble:  # noqa: BLE001  # a fold that fails parks its row, whatever it raises
                self._park(rows.pop(place), parked_at(record, trouble))
                continue
            row.version, unsent[place], bucket = version, row, row.bucket
            if time > bucket.time:  # noqa: PLR1730  # max() costs three times as much
                bucket.time = time

    def _take_stream(self, record: Decoded) -> None:
        """Folds one record of a stream-keyed view on the slow path."""
        if not self._is_wanted(record) or record.offset < self._done[record.partition, record.topic, record.partition]:
            return
        name, key, item = stream_row(self._view, record)
        self.give((record.partition, name), key, item, record)

    def _take_others(self, records: Sequence[Decoded]) -> None:
        """Folds records of a view whose events name the rows."""
        done, generation, view, touches = self._done, self._generation, self._view, self._view.touches
        for record in records:
            if not self._is_wanted(record):
                continue
            try:
                if record.error is not None:
                    raise record.error
                pairs = tuple(touches(record.event, record.key))  # type: ignore[arg-type]  # an event that is wanted
            except Exception as error:  # noqa: BLE001  # user code and broken records alike
                if isinstance(error, LeftfoldError):
                    why = str(error)
                else:
                    why = f"{view.name} cannot name the rows of {shown(record.event)}: {shown(error)}"
                self.stopped = f"{record.address}: {why}"
                return
            for key, item in pairs:
                bucket = bucket_of(generation, key, record.partition)
                if record.offset >= done[bucket, record.topic, record.partition]:
                    self.give((bucket, key), key, item, record)

    def _is_wanted(self, record: Decoded) -> bool:
        return record.topic in self._generation.topics and self._is_mine(record)

    def _enter(self, place: RowAddress, row: FoldedRow) -> None:
        if place in self._to_track and not isinstance(row.row, Exception):
            self._tracked[place] = row, StepwiseFold(self._view, row.row)
        else:
            self.rows[place] = row

    def _park(self, row: FoldedRow, parked: Parked) -> None:
        row.bucket.parked[row.key] = parked
        row.bucket.stuck.append(row)


class _Done(dict[tuple[int, str, int], float]):
    """The offset from which a bucket folds a partition's records; infinite for buckets that are not folded here."""

    def __init__(self, checkpoints: Mapping[int, Checkpoint]) -> None:
        super().__init__()
        self._positions = {bucket: checkpoint.position for bucket, checkpoint in checkpoints.items()}

    def __missing__(self, place: tuple[int, str, int]) -> float:
        bucket, topic, partition = place
        position = self._positions.get(bucket)
        found = self[place] = inf if position is None else position.next_offset(topic, partition)
        return found
