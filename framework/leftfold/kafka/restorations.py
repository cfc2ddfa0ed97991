"""The restorations that a worker has under way."""

from __future__ import annotations

from collections.abc import Collection

from leftfold.app import App
from leftfold.kafka.member import Member
from leftfold.kafka.restore import Restoration, Restored
from leftfold.kafka.workshop import Workshop

__all__ = ["Restorations"]


class Restorations:
    """Restores new partitions a little further at each step, while others are served."""

    def __init__(self, app: App, name: str, workshop: Workshop, member: Member) -> None:
        self._app, self._name, self._shop, self._member = app, name, workshop, member
        self._going: list[Restoration] = []

    def step(self) -> list[Restored]:
        """Begins what is new and goes on; the partitions that are complete now."""
        new = self._member.new - {p for going in self._going for p in going.found}
        if new:
            ports = self._shop.restore_ports(self._member)
            self._going.append(Restoration(self._app, self._name, sorted(new), self._shop.new_store, ports))
        complete: list[Restored] = []
        for restoration in [going for going in self._going if going.step()]:
            self._going.remove(restoration)
            restoration.close()
            complete += restoration.found.values()
        return complete

    def drop(self, partitions: Collection[int]) -> None:
        """These are not ours any more."""
        for restoration in self._going:
            for partition in partitions:
                restoration.drop(partition)

    def close(self) -> None:
        """Lets go of readers."""
        for restoration in self._going:
            restoration.close()

    def __bool__(self) -> bool:
        return bool(self._going)
