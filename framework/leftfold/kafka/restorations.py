"""The restorations that a worker has under way."""

from __future__ import annotations

import time
from collections.abc import Collection

from leftfold.app import App
from leftfold.engine.dead_letter import dead_letter
from leftfold.engine.duty import duty_of
from leftfold.position import Place
from leftfold.errors import LeftfoldError
from leftfold.kafka.member import Member
from leftfold.kafka.one_record import write_record
from leftfold.kafka.restore import Report, Restoration
from leftfold.kafka.restored import Restored, Stopped
from leftfold.kafka.workshop import Workshop

__all__ = ["Restorations"]

_PAUSE, _LONGEST_PAUSE, _OVERHEAD = 5.0, 60.0, 4096


class Restorations:
    """Restores new partitions a little further at each step, while others are served.

    One that stopped at an event which cannot be folded is tried again from time to time, and told of each time.
    """

    def __init__(self, app: App, name: str, workshop: Workshop, member: Member, report: Report) -> None:
        self._app, self._name, self._shop, self._member, self._report = app, name, workshop, member, report
        self._going: list[Restoration] = []
        self._complete: dict[int, Restored] = {}
        self._stopped: dict[int, tuple[float, float]] = {}

    def step(self) -> list[Restored]:
        """Begins what is new and goes on; the partitions that are complete, until they are dropped as served."""
        waiting = {p for p, (until, _) in self._stopped.items() if time.monotonic() < until}
        new = self._member.new - {p for going in self._going for p in going.found} - self._complete.keys() - waiting
        if new:
            ports = self._shop.restore_ports(self._member)
            self._going.append(
                Restoration(self._app, self._name, sorted(new), self._shop.new_store, ports, report=self._report)
            )
        for restoration in [going for going in self._going if going.step()]:
            self._going.remove(restoration)
            restoration.close()
            self._complete |= restoration.found
            for partition in restoration.found:
                self._stopped.pop(partition, None)
            for partition in restoration.stopped.keys() & self._member.new:
                self._stop(partition, restoration.stopped[partition])
            if refused := sum(restored.refold.refused for restored in restoration.found.values()):
                self._report("refused in folding", {"of": self._name, "records": refused})
        return list(self._complete.values())

    def drop(self, partitions: Collection[int]) -> None:
        """These are not ours any more."""
        for restoration in self._going:
            for partition in partitions:
                restoration.drop(partition)
        for partition in partitions:
            self._complete.pop(partition, None)
            self._stopped.pop(partition, None)

    def _stop(self, partition: int, stopped: Stopped) -> None:
        """Tells of a partition that is not served, notes it where status looks, and puts the next try off."""
        _, pause = self._stopped.get(partition, (0.0, _PAUSE))
        until = time.monotonic() + max(pause, 2 * stopped.seconds)
        self._stopped[partition] = until, min(_LONGEST_PAUSE, 2 * pause)
        record, duty = stopped.record, duty_of(self._app, self._name)
        place = Place(record.topic, record.partition, record.offset)
        way_out = f"leftfold log skip {self._name} '{place}' --reason WHY"
        self._report("a partition stands still", {"at": str(place), "why": stopped.why, "do": way_out})
        if not stopped.is_noted:
            letter = dead_letter(record, stopped.why, partition, self._shop.room(duty) - _OVERHEAD)
            try:
                write_record(self._shop.settings, duty.refusals, letter)
            except LeftfoldError as error:
                self._report("not noted", {"at": str(place), "why": str(error)})

    def close(self) -> None:
        """Lets go of readers."""
        for restoration in self._going:
            restoration.close()

    def __bool__(self) -> bool:
        return bool(self._going or self._complete)
