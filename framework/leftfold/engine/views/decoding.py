"""Decodes records for folds: once for all views that read them, with the error kept beside the event."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

from leftfold.errors import ContractError
from leftfold.model.messages import Event
from leftfold.model.position import RecordAddress
from leftfold.model.view import View
from leftfold.ports.message_codec import UNREADABLE, MessageCodec, header, is_last_of_decision
from leftfold.ports.protocols import RawRecord

__all__ = ["Decoded", "EventDecoder", "folds_record", "whole_decisions"]

# The named constructor costs twice as much.
_new: Any = tuple.__new__
_last = attrgetter("last")
_PROCESSOR_HEADERS = ("ce_type", "ce_time", "ce_sequence", "ce_decision")


class Decoded(NamedTuple):
    """A decoded record: its event or error, and its place in the log.

    `event` is None for a type that no view reads, `error` says why it cannot be read, `last` whether it ends its
    decision (k = n), `type` is its wire type.
    """

    topic: str
    partition: int
    offset: int
    key: str
    event: Event | None
    error: ContractError | None
    version: int
    last: bool
    time: str
    type: bytes = b""

    @property
    def address(self) -> RecordAddress:
        """Where the record stands in the log."""
        return RecordAddress(self.topic, self.partition, self.offset)

    @property
    def name(self) -> str:
        """The wire type without its version."""
        return _name_of(self.type)


class EventDecoder:
    """Decodes the events of several views, each class once; types that none of them reads are skipped, even broken."""

    def __init__(self, views: Iterable[View[Any, Any]]) -> None:
        classes = dict.fromkeys(cls for view in views for cls in view.events)
        self._codec: MessageCodec[Any] = MessageCodec(classes)
        self._names = _names_of(classes)

    def decode(self, record: RawRecord) -> Decoded:
        """The decoded record; a broken one carries its error."""
        return self.decode_all((record,))[0]

    def decode_all(self, records: Iterable[RawRecord]) -> list[Decoded]:
        """Decodes records; broken ones carry their error.

        Nearly all are written by command processors, with headers in a fixed order; building a dictionary of them costs
        as much as decoding the event.
        """
        wanted, found = self._codec.wanted, []
        for record in records:
            topic, partition, offset, key, value, headers, _ = record
            try:
                (a, type_), (b, time), (c, sequence), (d, decision) = headers[3], headers[5], headers[6], headers[7]
                if (a, b, c, d) != _PROCESSOR_HEADERS or not sequence.isdigit():
                    found.append(self._decode_any(record))
                    continue
                last = decision == b"1/1" or is_last_of_decision(decision)
                decoded = _new(Decoded, (
                    topic, partition, offset, key.decode(), wanted(type_, value), None, int(sequence), last,  # type: ignore[union-attr]
                    time.decode(), type_,
                ))  # fmt: skip
            except Exception:  # noqa: BLE001  # the slow path meets the same error and describes it
                decoded = self._decode_any(record)
            found.append(decoded)
        return found

    def _decode_any(self, record: RawRecord) -> Decoded:
        found = dict(record.headers)
        event, error, version, last = None, None, 0, True
        type_ = found.get("ce_type") or b""
        try:
            last = is_last_of_decision(found.get("ce_decision") or b"")
            version = int(found.get("ce_sequence") or b"0")
            event = self._codec.wanted(type_, record.value)
        except ContractError as failure:
            why = header(record.headers, UNREADABLE).decode(errors="replace")
            error = ContractError(why) if why else failure
        except ValueError as failure:
            error = ContractError(f"broken headers: {failure}")
        try:
            key = (record.key or b"").decode()
            time = (found.get("ce_time") or b"").decode()
        except UnicodeDecodeError as failure:
            key, time, error = repr(record.key), "", ContractError(f"the record's key is no UTF-8: {failure}")
        name = _name_of(type_)
        if name and name not in self._names:
            error = None
        return Decoded(record.topic, record.partition, record.offset, key, event, error, version, last, time, type_)


@lru_cache(maxsize=1024)
def _name_of(type_: bytes) -> str:
    return type_.decode(errors="replace").rpartition(".v")[0]


def folds_record(view: View[Any, Any]) -> Callable[[Decoded], bool]:
    """A predicate: whether a view folds a decoded record; broken records that may be its own count.

    An event of a subclass counts only if the view names that: whether it is decoded depends on the views beside it.
    """
    events, names = view.events, _names_of(view.events)

    def is_wanted(record: Decoded) -> bool:
        if record.error is None:
            return type(record.event) in events
        return not record.name or record.name in names

    return is_wanted


def _names_of(classes: Iterable[type[Event]]) -> set[str]:
    return {f"{cls.__leftfold__.category}.{cls.__leftfold__.name}" for cls in classes}


def whole_decisions(records: list[Decoded]) -> tuple[list[Decoded], list[Decoded]]:
    """Splits records into those up to each partition's last whole decision and the rest, for the next batch."""
    if all(map(_last, records)):
        return records, []
    latest = {(record.topic, record.partition): record.last for record in records}
    if all(latest.values()):
        return records, []
    ends: dict[tuple[str, int], int] = {}
    for record in records:
        if record.last:
            ends[record.topic, record.partition] = record.offset
    whole: list[Decoded] = []
    rest: list[Decoded] = []
    for record in records:
        (whole if record.offset <= ends.get((record.topic, record.partition), -1) else rest).append(record)
    return whole, rest
