"""The bulk fold of a stream-keyed view: folds one partition into a dict of rows, as a ProjectionWriter would."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from leftfold.engine.views.decoding import Decoded, EventDecoder, folds_record
from leftfold.engine.views.folded_rows import stream_row
from leftfold.engine.views.parking import RowEncodingError, StepwiseFold, parked_at
from leftfold.model.row_codec import CHECKSUM_MODULUS
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, BulkRecord, BulkRow, ColumnarRecords, OffsetRange, raw, type_of
from leftfold.ports.flush import Parked
from leftfold.ports.message_codec import MessageCodec
from leftfold.ports.protocols import RawRecord

__all__ = ["StreamFold"]


class StreamFold:
    """Folds the records of one partition; `add` them in order, then take `rows` and `result`.

    Nearly all records are written by command processors: known types, headers in a fixed order. Those take the fast
    path through `add`; any other, and any that fails on it, takes the slow path, which decodes and parks as a
    ProjectionWriter does.

    Args:
        tracked: the keys of rows to be checked after every event, because the final row could not be stored.
    """

    def __init__(self, view: View[Any, Any], part: OffsetRange, *, tracked: Collection[str] = ()) -> None:
        self._view, self._part = view, part
        self._evolve = view.evolve
        self._tracked: dict[str, StepwiseFold] = {key: StepwiseFold(view) for key in tracked}
        self._codec: MessageCodec[Any] = MessageCodec(view.events)
        self._decoder, self._is_mine = EventDecoder([view]), folds_record(view)
        self._reads: dict[bytes, Callable[[bytes | None], Any]] = {
            type_: cls.__pydantic_validator__.validate_json for cls, type_ in self._codec.types.items()
        }
        self._passed: set[bytes] = set()
        # By the record's key: the row, the version as text or number, and the row's key.
        self._states: dict[bytes, list[Any]] = {}
        self._stuck: dict[str, list[Any]] = {}
        self._time = b""
        self.parked: dict[str, Parked] = {}

    def add(self, records: Sequence[BulkRecord]) -> None:
        """Folds the next records."""
        fields = records.header_columns() if isinstance(records, ColumnarRecords) else None
        if fields is None:
            self._add_read(records)
        else:
            self._add_fields(records, fields)

    def _add_read(self, records: Sequence[BulkRecord]) -> None:
        reads, passed, states, evolve, latest = self._reads, self._passed, self._states, self._evolve, self._time
        for record in records:
            try:
                headers: Any = record.headers()
                (a, type_), (b, at), (c, sequence) = headers[3], headers[5], headers[6]
                if type_ in passed and a == "ce_type":
                    continue
                if a != "ce_type" or b != "ce_time" or c != "ce_sequence" or not (sequence.isdigit() and at.isascii()):
                    raise ValueError
                key = record.key()
                state = states.get(key) or self._begin(key)  # type: ignore[arg-type]  # None fails there
                state[0] = evolve(state[0], reads[type_](record.value()))
            except Exception:  # noqa: BLE001  # the slow path meets the same error and describes it
                self._time = latest
                self._add_slowly(record)
                latest = self._time
            else:
                state[1] = sequence
                if at > latest:  # noqa: PLR1730  # max() costs three times as much
                    latest = at
        self._time = latest

    def _add_fields(self, records: Sequence[BulkRecord], fields: Iterable[tuple[Any, ...]]) -> None:
        reads, passed, states, evolve, latest = self._reads, self._passed, self._states, self._evolve, self._time
        for place, (type_, at, sequence, key, value) in enumerate(fields):
            if type_ in passed:
                continue
            try:
                if not (sequence.isdigit() and at.isascii()):
                    raise ValueError
                state = states.get(key) or self._begin(key)
                state[0] = evolve(state[0], reads[type_](value))
            except Exception:  # noqa: BLE001  # as above
                self._time = latest
                self._add_slowly(records[place])
                latest = self._time
            else:
                state[1] = sequence
                if at > latest:  # noqa: PLR1730  # as above
                    latest = at
        self._time = latest

    def rows(self) -> list[BulkRow]:
        """The existing rows, encoded.

        Raises:
            RowEncodingError: some of them cannot be encoded; fold the partition again with these keys `tracked`.
        """
        self._settle()
        codec, found, wrong = self._view.rows, [], dict[str, Exception]()
        for row, sequence, key in (*self._states.values(), *self._stuck.values()):
            if row is not None:
                try:
                    entries = codec.index_entries(row) if codec.indexes else ()
                    found.append(BulkRow(key, codec.encode(row), int(sequence), entries))
                except Exception as error:  # noqa: BLE001  # whatever it is, the row cannot be stored
                    wrong[key] = error
        if wrong:
            raise RowEncodingError(wrong, next(iter(wrong.values())))
        return found

    def result(self, rows: Sequence[BulkRow], aside: Collection[str] = ()) -> BucketResult:
        """The result of these rows; its checksum leaves out keys that are parked or `aside`."""
        digest, parked = self._view.rows.digest, self.parked
        checksum = sum(digest(key, fields) for key, fields, _, _ in rows if key not in parked and key not in aside)
        return BucketResult(
            self._part.partition, checksum % CHECKSUM_MODULUS, len(rows), self._time.decode(), dict(parked)
        )

    def _begin(self, key: bytes) -> list[Any]:
        text = self._view.keys.encode(key.decode())
        if text in self.parked or text in self._tracked:
            raise KeyError(text)
        state = self._states[key] = [None, b"0", text]
        return state

    def add_decoded(self, records: Iterable[tuple[RawRecord, Decoded]]) -> None:
        """Folds the next records, which were decoded once for several views."""
        states, evolve, events, latest = self._states, self._evolve, self._view.events, self._time.decode()
        for whole, decoded in records:
            if decoded.error is None and type(decoded.event) not in events:
                continue
            try:
                if decoded.error is not None:
                    raise decoded.error
                state = states[whole.key]  # type: ignore[index]  # None is not there
                state[0] = evolve(state[0], decoded.event)
            except Exception:  # noqa: BLE001  # as above
                self._time = latest.encode()
                if self._is_mine(decoded):
                    self._add_decoded(decoded)
                latest = self._time.decode()
            else:
                state[1] = decoded.version
                if decoded.time > latest:  # noqa: PLR1730  # as above
                    latest = decoded.time
        self._time = latest.encode()

    def _add_slowly(self, record: BulkRecord) -> None:
        whole = raw(self._part, record)
        decoded, type_ = self._decoder.decode(whole), type_of(whole)
        if decoded.error is None and decoded.event is None:
            self._passed.add(type_)
            return
        self._add_decoded(decoded)
        if decoded.error is None:
            self._reads.setdefault(type_, partial(self._codec.wanted, type_))

    def _add_decoded(self, decoded: Decoded) -> None:
        """Folds one record or parks its row, as a ProjectionWriter does."""
        name, text, item = stream_row(self._view, decoded)
        if text in self._tracked:
            self._tracked[text].fold(item, decoded)
            return
        if text in self.parked:
            self.parked[text] = self.parked[text].with_another_event()
            return
        key = name.encode()
        state = self._states.get(key) or self._begin(key)
        try:
            if isinstance(item, Exception):
                raise item
            state[0] = self._evolve(state[0], item)
        except Exception as error:  # noqa: BLE001  # a fold that fails parks its row, whatever it raises
            self.parked[text], self._stuck[text] = parked_at(decoded, error), self._states.pop(key)
            return
        state[1] = b"%d" % decoded.version
        self._time = max(self._time, decoded.time.encode())

    def _settle(self) -> None:
        """Parks the tracked rows whose final row cannot be stored."""
        for text, row in self._tracked.items():
            self._stuck[text] = [row.good, row.version or 0, text]
            self._time = max(self._time, row.time.encode())
            if row.parked is not None:
                self.parked[text] = row.parked
