"""The timers of a process as its state topic has them, from committed records alone."""

from __future__ import annotations

import time
from collections.abc import Iterator

from leftfold.engine.instance import InstanceCodec
from leftfold.engine.statemark import MARK
from leftfold.engine.timer_order import SetTimer
from leftfold.errors import InfrastructureError
from leftfold.ports import LogReader
from leftfold.position import Position

__all__ = ["TimerTable"]

_BATCH, _WAIT, _PATIENCE = 500, 0.1, 15.0


class TimerTable:
    """Reads a state topic, or some partitions of it, and keeps the records that have timers.

    Args:
        reader: of committed records; whoever made it closes it.
        starts: where the partitions begin that are to be read.
    """

    def __init__(self, reader: LogReader, topic: str, starts: Position) -> None:
        self._reader, self._topic, self._partitions = reader, topic, frozenset(starts.offsets[topic])
        self._records: dict[str, tuple[int, bytes]] = {}
        self.keys: set[str] = set()
        """Every instance that has a record."""
        reader.seek(starts)

    def read(self) -> None:
        """Reads on to where the topic ends now.

        Raises:
            InfrastructureError: nothing comes, or what is there is hidden by a transaction that stays open.
        """
        ends = self._reader.ends([self._topic]).offsets[self._topic]
        wanted = Position({self._topic: {p: ends[p] for p in self._partitions}})
        heard = time.monotonic()
        while not self._reader.position().covers(wanted):
            if self._poll():
                heard = time.monotonic()
            elif time.monotonic() - heard > _PATIENCE:
                raise InfrastructureError(
                    f"{self._topic} cannot be read up to its end: no broker answers, or a transaction is open there; "
                    f"see: leftfold status"
                )

    def await_taken(self, timer: SetTimer, seconds: float) -> bool:
        """Waits until a setting is gone, whoever ended it; False when it is still there after so many seconds."""
        deadline = time.monotonic() + seconds
        while self._stands(timer):
            if time.monotonic() > deadline:
                return False
            self._poll()
        return True

    def timers(self, key: str = "") -> Iterator[SetTimer]:
        """Those that are set, of one instance if it is named."""
        named = (key,) if key in self._records else () if key else tuple(self._records)
        for one in named:
            partition, value = self._records[one]
            for name, due in InstanceCodec.timers(value).items():
                yield SetTimer(partition, one, name, due)

    def _stands(self, timer: SetTimer) -> bool:
        return any(found.name == timer.name and found.due.by == timer.due.by for found in self.timers(timer.key))

    def _poll(self) -> bool:
        records = self._reader.poll(_BATCH, _WAIT)
        for record in records:
            if record.key is None or record.key == MARK or record.value is None:
                continue
            key = record.key.decode()
            self.keys.add(key)
            if InstanceCodec.has_timers(record.value):
                self._records[key] = record.partition, record.value
            else:
                self._records.pop(key, None)
        return bool(records)
