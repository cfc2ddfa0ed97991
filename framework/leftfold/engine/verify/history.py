"""The history of rows: their events in the order of the fold, step by step, and again for parked rows."""

from __future__ import annotations

import heapq
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any
from urllib.parse import unquote

from leftfold.engine.rebuild.planner import ranges_to
from leftfold.engine.views.decoding import Decoded, EventDecoder
from leftfold.engine.views.folded_rows import NO_KEY, FoldedBucket, place_of, stored_row, stream_row
from leftfold.engine.views.generations import whole_checkpoints
from leftfold.engine.views.parking import StepwiseFold
from leftfold.errors import ContractError, InfrastructureError
from leftfold.model.keys import NO_ROW
from leftfold.model.position import Position
from leftfold.model.row_codec import CHECKSUM_MODULUS
from leftfold.model.view import View
from leftfold.ports.bulk import BulkLog, BulkRecord, OffsetRange, OpenBulkLog, raw, type_of
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import RawRecord, ViewStore
from leftfold.safety import shown

__all__ = ["History", "Retried", "RowRetry", "RowStep", "RowsFold", "explain"]


@dataclass(frozen=True)
class RowUpdate:
    """One event that changes a row; `item` is the fold's argument, or an exception if it cannot be read."""

    key: str
    item: Any
    record: RawRecord
    decoded: Decoded


class History:
    """Reads the updates of some rows, each up to its own end offsets.

    Args:
        wanted: the end offsets of each encoded row key.
        since: the start offsets of each; None = the start of the log.
        tell: called with the number of events read.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generation: Generation,
        wanted: Mapping[str, Position],
        tell: Callable[[int], None] = lambda count: None,
        since: Mapping[str, Position] | None = None,
    ) -> None:
        self._view, self._wanted, self._tell = view, wanted, tell
        self._since = since if since is not None else dict.fromkeys(wanted, Position())
        self._decoder = EventDecoder([view])
        self._passed: set[bytes] = set()
        self._streams = {unquote(key).encode() for key in wanted} if generation.stream_keyed else None
        cuts: dict[int, Position] = {}
        for key, cut in wanted.items():
            bucket = place_of(generation, key)[0]
            cuts[bucket] = cuts.get(bucket, Position()) | cut
        start = reduce(and_, self._since.values()) if self._since else Position()
        parts = (
            part._replace(start=start.next_offset(part.topic, part.partition)) for part in ranges_to(generation, cuts)
        )
        self.ranges = tuple(part for part in parts if part.start < part.end)

    @property
    def events(self) -> int:
        """How many events are read at most."""
        return sum(part.end - part.start for part in self.ranges)

    def of(self, log: BulkLog, part: OffsetRange) -> Iterator[RowUpdate]:
        """The updates in one of the `ranges`, in their order.

        Raises:
            ContractError: an event cannot be read or assigned to rows; a view that is not stream-keyed stops there.
        """
        for records in log.read(part):
            for record in records:
                if not self._is_passed(record):
                    yield from self._touches(part, record)
            self._tell(len(records))

    def _is_passed(self, record: BulkRecord) -> bool:
        """Whether a record is of another stream, or of a type that the view does not read."""
        if self._streams is not None and record.key() not in self._streams:
            return True
        headers = record.headers()
        return bool(self._passed and headers and header(headers, "ce_type") in self._passed)

    def _touches(self, part: OffsetRange, record: BulkRecord) -> Iterator[RowUpdate]:
        whole = raw(part, record)
        decoded = self._decoder.decode(whole)
        if decoded.error is None and decoded.event is None:
            self._passed.add(type_of(whole))
            return
        for key, item in self._pairs(decoded):
            cut = self._wanted.get(key)
            if cut is None or whole.offset >= cut.next_offset(part.topic, part.partition):
                continue
            if whole.offset >= self._since[key].next_offset(part.topic, part.partition):
                yield RowUpdate(key, item, whole, decoded)

    def _pairs(self, decoded: Decoded) -> list[tuple[str, Any]]:
        if self._streams is not None:
            return [stream_row(self._view, decoded)[1:]]
        try:
            if decoded.error is not None:
                raise decoded.error
            return list(self._view.touches(decoded.event, decoded.key))  # type: ignore[arg-type]  # no error, so an event
        except Exception as error:
            raise ContractError(f"view {self._view.name} stops at {decoded.address}: {shown(error, str)}") from error


@dataclass(frozen=True)
class RowStep:
    """The effect of one event on a row. `error` says why it could not be folded, or what it waits for.

    After an event that leaves a row which cannot be stored, a later event may make the row storable with both included.
    """

    touch: RowUpdate
    before: Any
    after: Any
    error: str = ""


class RowsFold:
    """Folds some rows from the start of the log up to given positions, and further from there.

    Args:
        wanted: the position of each encoded key.
    """

    def __init__(
        self, view: View[Any, Any], generation: Generation, log: BulkLog, wanted: Mapping[str, Position]
    ) -> None:
        self._view, self._generation, self._log = view, generation, log
        self.rows = {key: StepwiseFold(view) for key in wanted}
        self._reached: Mapping[str, Position] = dict.fromkeys(wanted, Position())
        self._fold(wanted)

    def go_on(self, position: Position) -> None:
        """Folds every row further to a position, or from the start where the store went back behind that."""
        if not all(position.covers(reached) for reached in self._reached.values()):
            self.rows = {key: StepwiseFold(self._view) for key in self.rows}
            self._reached = dict.fromkeys(self.rows, Position())
        self._fold(dict.fromkeys(self.rows, position))

    def _fold(self, wanted: Mapping[str, Position]) -> None:
        history = History(self._view, self._generation, wanted, since=self._reached)
        for part in history.ranges:
            for touch in history.of(self._log, part):
                self.rows[touch.key].fold(touch.item, touch.decoded)
        self._reached = wanted


def explain(
    view: View[Any, Any],
    generation: Generation,
    key: str,
    upto: Position,
    open_log: OpenBulkLog,
    *,
    tell: Callable[[int], None] = lambda count: None,
) -> Iterator[RowStep]:
    """The history of a row, event by event, up to a position of the log.

    Events of one partition stay in their order; those of several are merged by their time, which makes no difference to
    the final row.

    Args:
        key: encoded.

    Raises:
        ContractError: an event cannot be read or assigned to rows; the view stops there.
    """
    history, row = History(view, generation, {key: upto}, tell), StepwiseFold(view)
    found = [_timed(history, part, open_log) for part in history.ranges]
    for _, touch in heapq.merge(*found, key=lambda pair: pair[0]):
        before = row.good
        row.fold(touch.item, touch.decoded)
        error = ""
        if row.parked is not None:
            error = row.parked.error if row.parked.waiting == 1 else "waits behind the event that cannot be folded"
        yield RowStep(touch, before, row.good, error)


def _timed(history: History, part: OffsetRange, open_log: OpenBulkLog) -> Iterator[tuple[str, RowUpdate]]:
    """The updates of a partition, each with the latest time so far: that of a later one may be earlier."""
    latest = ""
    with closing(open_log()) as log:
        touches = list(history.of(log, part))
    for touch in touches:
        latest = max(latest, touch.decoded.time)
        yield latest, touch


_PATIENCE = 60.0


@dataclass(frozen=True)
class Retried:
    """The result of a retry: the freed keys, and those that stay parked with the reason."""

    freed: tuple[str, ...]
    parked: Mapping[str, str]


class RowRetry:
    """Frees parked keys of one generation while projectors run.

    Each bucket is flushed under its token, as projectors flush it.
    """

    def __init__(self, view: View[Any, Any], store: ViewStore, open_log: OpenBulkLog) -> None:
        self.view, self._store, self._open_log = view, store, open_log

    def run(self, generation: Generation, keys: Collection[str] = ()) -> Retried:
        """Folds parked keys again; those whose fold succeeds get their row and are freed.

        Args:
            keys: encoded; all parked ones when none is named.

        Raises:
            ContractError: one of the keys is not parked.
            InfrastructureError: projectors wrote all the time, and no flush succeeded within a minute.
        """
        checkpoints = whole_checkpoints(self._store, generation)
        parked = {key: bucket for bucket, checkpoint in checkpoints.items() for key in checkpoint.parked}
        for key in keys:
            if key not in parked:
                there = f"parked are {', '.join(sorted(parked))}" if parked else "nothing is parked there"
                raise ContractError(f"{key} is not parked in view {self.view.name}; {there}")
        unread = "no event has this key, as far as keys can be read; correct the log or rebuild"
        unknown, why = NO_ROW, "its events name no row; if they belong to rows, correct key= and rebuild"
        if generation.stream_keyed:
            unknown, why = self.view.keys.encode(NO_KEY), "its events have no readable key; correct the log or rebuild"
        wanted = {key: bucket for key, bucket in parked.items() if (not keys or key in keys) and key != unknown}
        freed: list[str] = []
        still = {unknown: why} if unknown in parked else {}
        with closing(self._open_log()) as log:
            for bucket in sorted(set(wanted.values())):
                mine = [key for key, of in wanted.items() if of == bucket]
                rows = RowsFold(self.view, generation, log, dict.fromkeys(mine, checkpoints[bucket].position))
                freed += self._free(generation, bucket, rows)
                still |= {key: row.parked.error for key, row in rows.rows.items() if row.parked is not None}
                still |= dict.fromkeys(
                    (k for k, row in rows.rows.items() if not row.parked and not row.good_at), unread
                )
        return Retried(tuple(sorted(freed)), still)

    def _free(self, generation: Generation, bucket: int, fold: RowsFold) -> list[str]:
        """Folds the rows up to the bucket's checkpoint and writes them, again whenever a projector was faster."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            checkpoint = whole_checkpoints(self._store, generation)[bucket]
            fold.go_on(checkpoint.position)
            # A parked key without any event is the name of one whose key cannot be read.
            folded = {key: row for key, row in fold.rows.items() if row.parked is None and row.good_at is not None}
            whole = {key: row for key, row in folded.items() if key in checkpoint.parked}
            if not whole or self._store.flush([self._flush(generation, bucket, checkpoint, whole)]):
                return list(whole)
        raise InfrastructureError(
            f"view {self.view.name}: bucket {bucket} of {generation.id} was written all the while; try again, or stop "
            f"the projectors for a moment"
        )

    def _flush(
        self, generation: Generation, bucket: int, checkpoint: Checkpoint, rows: Mapping[str, StepwiseFold]
    ) -> BucketFlush:
        codec, changes = self.view.rows, []
        folded = FoldedBucket.of(checkpoint)
        stored = self._store.read(generation, [(bucket, key) for key in rows]).rows
        for (key, replayed), fields in zip(rows.items(), stored, strict=True):
            row = stored_row(self.view, folded, key, fields)
            if isinstance(row.row, ContractError):
                raise row.row
            # The checksum leaves out a parked row.
            row.row, row.version, row.digest = replayed.good, replayed.version, 0
            changes.append(row.change(self.view))
            del folded.parked[key]
        checksum, token = folded.checksum % CHECKSUM_MODULUS, secrets.token_hex(8)
        moved = replace(checkpoint, checksum=checksum, rows=folded.rows, token=token, parked=folded.parked)
        return BucketFlush(
            generation, bucket, checkpoint.token, moved, codec.columns, codec.indexes, tuple(changes), False
        )
