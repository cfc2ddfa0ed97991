"""Who waits for what in one generation, so that a flush looks only at those whose position it reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from leftfold.flush import Generation
from leftfold.position import Position

__all__ = ["Waiters"]

W = TypeVar("W")
_FEW = 100


@dataclass(eq=False)
class _Waiter(Generic[W]):
    """Somebody, with how many partitions are still to be reached."""

    who: W
    left: int
    gone: bool = False


@dataclass
class Waiters(Generic[W]):
    """Heaps of offsets by partition; a waiter is in one for each partition that it waits for.

    Who has been told is told again of every flush: it looked, and found that its own bucket is not there yet.
    """

    generation: Generation
    _all: dict[W, _Waiter[W]] = field(default_factory=dict)
    _every: dict[W, None] = field(default_factory=dict)
    _heaps: dict[tuple[str, int], list[tuple[int, int, _Waiter[W]]]] = field(default_factory=dict)
    _count: int = 0
    _gone: int = 0

    def __len__(self) -> int:
        return len(self._all)

    def add(self, who: W, wanted: Position | None) -> None:
        """Waits for a position, or for every flush."""
        offsets = [] if wanted is None else [(t, p, o) for t, ps in wanted.offsets.items() for p, o in ps.items()]
        waiter = self._all[who] = _Waiter(who, len(offsets))
        if not offsets:
            self._every[who] = None
        for topic, partition, offset in offsets:
            self._count += 1  # the first to come is the first to be told, and waiters are never compared
            heappush(self._heaps.setdefault((topic, partition), []), (offset, self._count, waiter))

    def remove(self, who: W) -> None:
        """Waits no more."""
        waiter = self._all.pop(who, None)
        self._every.pop(who, None)
        if waiter is None or not waiter.left:
            return
        waiter.gone = True
        self._gone += 1
        if self._gone > max(_FEW, len(self._all)):
            self._sweep()

    def everybody(self) -> list[W]:
        """All who wait."""
        return list(self._all)

    def reached(self, position: Position) -> list[W]:
        """Who is to be told of a flush that came this far."""
        for topic, partitions in position.offsets.items():
            for partition, offset in partitions.items():
                heap = self._heaps.get((topic, partition), [])
                while heap and heap[0][0] <= offset:
                    waiter = heappop(heap)[2]
                    waiter.left -= 1
                    if not waiter.left and not waiter.gone:
                        self._every[waiter.who] = None
        return list(self._every)

    def _sweep(self) -> None:
        """Forgets those who have gone."""
        for heap in self._heaps.values():
            heap[:] = [entry for entry in heap if not entry[2].gone]
            heapify(heap)
        self._gone = 0
