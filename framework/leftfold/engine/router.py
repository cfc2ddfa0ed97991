"""Routing: an event becomes an input of the process instance that it concerns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from leftfold.codec import MessageCodec, event_id
from leftfold.engine.batch import HeaderList, Outgoing
from leftfold.engine.received import CONTENT_TYPE, SPEC_VERSION
from leftfold.errors import ContractError
from leftfold.ports import RawRecord
from leftfold.process import Process

__all__ = ["Router", "unroutable"]


class Router:
    """Says where an event goes: a record of `{process}.commands`, or nowhere. It sends nothing.

    Args:
        app: the name of the App, part of `ce_source`.
        partition_of: the partition of `{process}.commands` that a key belongs to.
    """

    def __init__(self, app: str, process: Process[Any, Any, Any], partition_of: Callable[[bytes], int]) -> None:
        self._process, self._partition_of = process, partition_of
        self._events: MessageCodec[Any] = MessageCodec(process.events)
        self._source = ("ce_source", f"/{app}/{process.name}".encode())

    def route(self, record: RawRecord) -> Outgoing | None:
        """The event as an input of the process, with its original bytes; None when it does not concern it.

        Raises:
            ContractError: the event cannot be read, or `correlate` fails on it; whoever goes on would lose it.
        """
        given = {name: value or b"" for name, value in record.headers}
        type_ = given.get("ce_type", b"")
        if record.key == b"@" or (event := self._events.wanted(type_, record.value)) is None:
            return None
        id_ = given.get("ce_id", b"").decode(errors="replace")
        try:
            key = self._process.correlate(event)
        except Exception as error:
            failed = f"{self._process.name}.correlate failed on {event!r}: {error!r}"
            raise ContractError(failed) from error
        if key is None:
            return None
        if not isinstance(key, str) or not key or key == "@":
            gave = f"{self._process.name}.correlate gave {key!r} for {event!r}"
            raise ContractError(f"{gave}; give a name or None")
        raw = key.encode()
        origin = f"{record.topic}/{record.partition}/{record.offset}/0".encode()
        headers: HeaderList = [
            SPEC_VERSION,
            ("ce_id", event_id(self._process.name, key, id_, 0).encode()),
            self._source,
            ("ce_type", type_),
            ("ce_subject", raw),
            ("ce_time", given.get("ce_time", b"")),
            ("ce_correlationid", given.get("ce_correlationid") or id_.encode()),
            ("ce_causationid", id_.encode()),
            CONTENT_TYPE,
            ("origin", origin),
        ]
        if traceparent := given.get("traceparent"):
            headers.append(("traceparent", traceparent))
        return Outgoing(self._partition_of(raw), raw, record.value, headers)


def unroutable(process: str, record: RawRecord, error: ContractError) -> ContractError:
    """The error of a router that does not go on behind an event, with what can be done about it."""
    place = f"{record.topic}[{record.partition}]@{record.offset}"
    return ContractError(
        f"{place} cannot be routed to {process}: {error}. Deploy code that can; where none ever will, have it passed "
        f"over: leftfold log skip {process} '{place}' --reason WHY"
    )
