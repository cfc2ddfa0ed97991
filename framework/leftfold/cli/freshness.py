"""How many seconds a view is behind: the age of the first event that it has not folded."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from leftfold.connection import kafka_settings, ring
from leftfold.position import Position

if TYPE_CHECKING:
    from leftfold.kafka.reader import KafkaLogReader

__all__ = ["Freshness"]

_PATIENCE = 0.5


class Freshness:
    """Looks at the log behind positions; its connection is opened when it is first needed."""

    def __init__(self, kafka: str | None) -> None:
        self._kafka = kafka
        self._reader: KafkaLogReader | None = None

    def seconds(self, position: Position, ends: Position) -> float:
        """The age of the oldest event between a position and the ends of the log; 0 when there is none.

        Transactions end with records that are no events, so a position short of the end need not miss any.
        """
        behind = [
            (topic, partition)
            for topic, partitions in ends.offsets.items()
            for partition, end in partitions.items()
            if topic in position.offsets and position.next_offset(topic, partition) < end
        ]
        times = [found for topic, partition in behind if (found := self._next(position, topic, partition))]
        return max(0.0, time.time() - min(times) / 1000) if times else 0.0

    def _next(self, position: Position, topic: str, partition: int) -> int:
        """When the next event of a partition was appended, in ms since 1970; 0 = there is none yet."""
        if self._reader is None:
            self._reader = ring("leftfold.kafka.reader").KafkaLogReader(kafka_settings(self._kafka))
        self._reader.seek(Position.at(topic, partition, position.next_offset(topic, partition)))
        found = self._reader.poll(1, _PATIENCE)
        return found[0].time if found else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._reader is not None:
            self._reader.close()
