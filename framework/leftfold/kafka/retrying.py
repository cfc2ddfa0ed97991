"""Tries parked events of a reaction once more, in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from leftfold import names
from leftfold.app import App
from leftfold.engine.pending import PendingReader
from leftfold.engine.reason import reason_of
from leftfold.kafka.cluster import Cluster
from leftfold.kafka.parked import ParkedEvents
from leftfold.kafka.parking import Parking
from leftfold.kafka.places import Place
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports import RawRecord

__all__ = ["Retry", "Tried"]

_EVERY = 100


class Tried(NamedTuple):
    """What came of it: how many were done, and why others are parked again, by where they are in the log."""

    done: int
    parked: dict[str, str]


class Retry:
    """One try for each event that is parked now, with the keys that they always had.

    What fails is parked again, behind the rest. Killed on the way, it tries at most the last hundred again.
    """

    def __init__(self, app: App, name: str, settings: KafkaSettings) -> None:
        self._reaction = app.reaction(name)
        self._events = ParkedEvents(name, settings)
        self._reader = PendingReader(self._reaction)
        with Cluster(settings) as cluster:
            self._parking = Parking(name, settings, cluster.partitions(names.dead(name)))

    def run(self, tell: Callable[[int], None] = lambda count: None) -> Tried:
        """Tries them one after another; `tell` is told how many there have been."""
        done, parked = 0, dict[str, str]()
        passed: dict[Place, int] = {}
        try:
            for number, record in enumerate(self._events.read(), 1):
                original = self._events.original(record)
                error = self._try(original)
                done += error is None
                if error is not None:
                    parked[f"{original.topic}[{original.partition}]@{original.offset}"] = error
                passed[record.topic, record.partition] = record.offset + 1
                if number % _EVERY == 0:
                    self._events.passed(passed)
                tell(number)
        finally:
            self._events.passed(passed)
        return Tried(done, parked)

    def _try(self, record: RawRecord) -> str | None:
        pending = self._reader.read(record)
        if pending is None:
            return None
        try:
            if pending.error is not None:
                raise pending.error
            self._reaction.call(pending.event, pending.next_delivery())
        except Exception as error:  # noqa: BLE001  # whatever it is, the event is not done
            pending.tries += 1
            self._parking.park(pending, error)
            return reason_of(error)
        return None
