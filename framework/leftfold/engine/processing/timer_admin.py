"""The timers of a process in its state topic, and operators' orders to fire or cancel one (decision 31)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from leftfold.engine.processing.command_wire import command_id, record_headers
from leftfold.engine.processing.process_instance import Due, InstanceCodec
from leftfold.engine.processing.process_wire import CANCEL, DUE
from leftfold.engine.processing.stream_state import state_key
from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.ports.bulk import read_to
from leftfold.ports.message_codec import utc_text
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import LogReader, RawRecord

__all__ = ["Action", "Order", "SetTimer", "TimerTable", "order_record"]


class Action(StrEnum):
    """What an operator can do with a timer."""

    FIRE = "fire"
    CANCEL = "cancel"


class SetTimer(NamedTuple):
    """A timer in the state of a process."""

    partition: int
    key: str
    name: str
    due: Due


@dataclass(frozen=True)
class Order:
    """An operator's order: the actor, the reason, and the log time, which a fired timer's command carries."""

    action: Action
    actor: str
    reason: str
    at: datetime


def order_record(app: str, process: str, timer: SetTimer, order: Order) -> Outgoing:
    """The input that fires a timer early or ends it, as the input `by` set it. Another setting is not affected.

    Each order has an id of its own, so that a trace shows which one took effect.
    """
    raw = timer.key.encode()
    value = {"name": timer.name, "at": timer.due.at, "by": timer.due.by, "actor": order.actor}
    value["reason"] = order.reason
    headers = record_headers(
        command_id(),
        f"/{app}/{process}".encode(),
        DUE if order.action is Action.FIRE else CANCEL,
        raw,
        utc_text(order.at).encode(),
        timer.due.correlation.encode(),
        timer.due.by.encode(),
    )
    return Outgoing(timer.partition, raw, json.dumps(value, separators=(",", ":")).encode(), headers)


_BATCH, _WAIT, _PATIENCE = 500, 0.1, 15.0


class TimerTable:
    """Reads a state topic, or some of its partitions, and keeps the records that have timers.

    Args:
        reader: of committed records; the caller closes it.
        starts: where the partitions to be read begin. key: the instance whose last record is kept as `instance`.
    """

    def __init__(self, reader: LogReader, topic: str, starts: Position, key: str = "") -> None:
        self._key, self.instance = key, b""
        self._reader, self._topic, self._starts = reader, topic, starts
        self._records: dict[str, tuple[int, bytes]] = {}
        self.keys: set[str] = set()
        """The keys of all instances that have a record."""

    def read(self) -> None:
        """Reads up to where the topic ends now.

        Raises:
            InfrastructureError: no records come, or they are hidden by a transaction that stays open.
        """
        ends = self._reader.ends([self._topic]).offsets[self._topic]
        wanted = Position({self._topic: {p: ends[p] for p in self._starts.offsets[self._topic]}})
        for records in read_to(self._reader, self._starts, wanted, patience=_PATIENCE, limit=_BATCH, wait=_WAIT):
            self._take(records)
        if not self._reader.position().covers(wanted):
            raise InfrastructureError(
                f"{self._topic} cannot be read up to its end: no broker answers, or a transaction is open there; "
                f"see: leftfold status"
            )

    def await_taken(self, timer: SetTimer, seconds: float) -> bool:
        """Waits until a timer's setting has ended in any way; False when it is still set after so many seconds."""
        deadline, due = time.monotonic() + seconds, timer.due
        while any((found.name, found.due.by) == (timer.name, due.by) for found in self.timers(timer.key)):
            if time.monotonic() > deadline:
                return False
            self._take(self._reader.poll(_BATCH, _WAIT))
        return True

    def timers(self, key: str = "") -> Iterator[SetTimer]:
        """The timers that are set, of one instance if a key is given."""
        named = (key,) if key in self._records else () if key else tuple(self._records)
        for one in named:
            partition, value = self._records[one]
            for name, due in InstanceCodec.timers(value).items():
                yield SetTimer(partition, one, name, due)

    def _take(self, records: Iterable[RawRecord]) -> None:
        for record in records:
            key, value = state_key(record.key or b""), record.value or b""
            if key and InstanceCodec.is_instance(value):  # a worker passes over other records, too
                self._keep(key, value, record.partition)

    def _keep(self, key: str, value: bytes, partition: int) -> None:
        self.keys.add(key)
        self.instance = value if key == self._key else self.instance
        if InstanceCodec.has_timers(value):
            self._records[key] = partition, value
        else:
            self._records.pop(key, None)
