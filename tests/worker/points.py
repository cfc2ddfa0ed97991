"""Named points in a worker's life at which a test lets something happen to it."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException

__all__ = ["TRANSACTION", "Point", "Points"]

TRANSACTION = (
    "fetched",
    "decided",
    "after begin_transaction",
    "half produced",
    "after flush",
    "before send_offsets_to_transaction",
    "after send_offsets_to_transaction",
    "before commit_transaction",
    "after commit_transaction",
)
"""The points of one batch, in order; the last one is passed before anybody is answered."""


@dataclass(frozen=True)
class Point:
    """At the `nth` passing of a point the process is killed, is stopped until continued, hangs, or sees a call fail."""

    at: str
    do: str = "kill"
    nth: int = 1


class Points:
    """What is to happen where; `tell` hears of it before it does."""

    def __init__(self, planned: Iterable[Point], tell: Callable[[str], None]) -> None:
        self._planned, self._tell = tuple(planned), tell
        self._passed = Counter[str]()

    def planned(self, at: str) -> bool:
        """Whether anything will happen there."""
        return any(point.at == at for point in self._planned)

    def reach(self, at: str) -> None:
        """Passes a point."""
        self._passed[at] += 1
        for point in self._planned:
            if point.at == at and point.nth == self._passed[at]:
                self._tell(at)
                self._act(point.do)

    def _act(self, do: str) -> None:
        match do:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hang":
                threading.Event().wait()
            case "fail":
                raise KafkaException(KafkaError(KafkaError._TRANSPORT, f"as planned at {self._passed}"))
            case _:
                raise ValueError(do)
