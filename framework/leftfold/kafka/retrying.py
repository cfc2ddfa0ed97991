"""Tries parked events of a reaction once more, in this process."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import NamedTuple

from leftfold import names
from leftfold.app import App
from leftfold.engine.acting import Acting, Left
from leftfold.engine.pending import Pending
from leftfold.engine.reason import reason_of
from leftfold.engine.suspects import CLEAN
from leftfold.kafka.cluster import Cluster
from leftfold.kafka.parked import ParkedEvents
from leftfold.kafka.parking import Parking
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports import RawRecord

__all__ = ["Retry", "Tried"]

_EVERY, _WAIT, _LEAVE_SECONDS = 100, 0.05, 10.0


class Tried(NamedTuple):
    """What came of it: how many were done, and why others are parked again, by where they are in the log."""

    done: int
    parked: dict[str, str]


class Retry:
    """One try for each event that is parked now, with the keys that they always had.

    Streams are tried `at_once`, as the reaction itself does, and the events of one in their order. What fails is parked
    again, behind the rest. Killed on the way, it tries again what was done behind the oldest that was not.
    """

    def __init__(self, app: App, name: str, settings: KafkaSettings) -> None:
        once = copy(app.reaction(name))
        once.attempts = 1
        self._events = ParkedEvents(name, settings)
        with Cluster(settings) as cluster:
            parking = Parking(name, settings, cluster.partitions(names.dead(name)))
        self._acting = Acting(once, parking.park, told=self._failed)
        self._taken = self._passed = 0
        self._parked: dict[str, str] = {}

    def run(self, tell: Callable[[int], None] = lambda count: None) -> Tried:
        """Tries them all; `tell` is told how many have been tried."""
        try:
            for record in self._events.read():
                self._take(record)
                self._step(0.0, tell)
                while self._acting.frontier.is_full((record.topic, record.partition)):
                    self._step(_WAIT, tell)
            while self._step(_WAIT, tell):
                pass
        finally:
            self._acting.settle(None, _LEAVE_SECONDS)
            self._events.passed(self._acting.frontier.offsets())
        return Tried(self._taken - len(self._parked), self._parked)

    def _take(self, record: RawRecord) -> None:
        place = record.topic, record.partition
        if not self._acting.frontier.holds(place):
            self._acting.hold(place, Left(record.offset, CLEAN))
        self._acting.take(self._events.original(record), (place, record.offset))
        self._taken += 1

    def _step(self, wait: float, tell: Callable[[int], None]) -> bool:
        """Acts a little further; whether anything was under way."""
        busy = self._acting.step(wait)
        tried = self._taken - self._acting.frontier.open
        if tried >= self._passed + _EVERY:
            self._events.passed(self._acting.frontier.offsets())
            self._passed = tried
        tell(tried)
        return busy

    def _failed(self, pending: Pending, error: BaseException, is_parked: bool) -> None:
        at = f"{pending.record.topic}[{pending.record.partition}]@{pending.record.offset}"
        self._parked[at] = reason_of(error)
