"""What travels around an event: who wrote it, when, why and where."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from leftfold.messages import Event
from leftfold.position import Position

__all__ = ["Receipt", "Recorded"]

E_co = TypeVar("E_co", bound=Event, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Recorded(Generic[E_co]):
    """An event as it stands in the log, with its metadata.

    `version` is the stream version 1..n, `decision` is (k, n): the k-th of n events of one decision, `time` is the
    sender's time (UTC), and `offset` is the place in `topic`/`partition`.
    """

    event: E_co
    key: str
    id: str
    time: datetime
    version: int
    decision: tuple[int, int] = (1, 1)
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""
    topic: str = ""
    partition: int = 0
    offset: int = 0

    @property
    def position(self) -> Position:
        """The position just behind this event in its own partition."""
        return Position.at(self.topic, self.partition, self.offset + 1)


@dataclass(frozen=True)
class Receipt:
    """The answer to an accepted command: read your own writes with `after=receipt.position`.

    `version` is the stream's version after the command, `events` how many events it wrote.
    """

    position: Position
    version: int
    events: int = 0
