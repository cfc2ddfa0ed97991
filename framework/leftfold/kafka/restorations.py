"""The restorations that a worker has under way."""

from __future__ import annotations

from collections.abc import Collection

from leftfold.app import App
from leftfold.kafka.member import Member
from leftfold.kafka.restore import Report, Restoration, Restored
from leftfold.kafka.workshop import Workshop

__all__ = ["Restorations"]


class Restorations:
    """Restores new partitions a little further at each step, while others are served."""

    def __init__(self, app: App, name: str, workshop: Workshop, member: Member, report: Report) -> None:
        self._app, self._name, self._shop, self._member, self._report = app, name, workshop, member, report
        self._going: list[Restoration] = []
        self._complete: dict[int, Restored] = {}

    def step(self) -> list[Restored]:
        """Begins what is new and goes on; the partitions that are complete, until they are dropped as served."""
        new = self._member.new - {p for going in self._going for p in going.found} - self._complete.keys()
        if new:
            ports = self._shop.restore_ports(self._member)
            self._going.append(
                Restoration(self._app, self._name, sorted(new), self._shop.new_store, ports, report=self._report)
            )
        for restoration in [going for going in self._going if going.step()]:
            self._going.remove(restoration)
            restoration.close()
            self._complete |= restoration.found
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

    def close(self) -> None:
        """Lets go of readers."""
        for restoration in self._going:
            restoration.close()

    def __bool__(self) -> bool:
        return bool(self._going or self._complete)
