"""Wakes readers, on threads and event loops, that wait for a generation to reach a position."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, TypeAlias, TypeVar

from leftfold.model.position import Position
from leftfold.ports.flush import Generation

__all__ = ["LoopBell", "PositionNotifier", "ThreadBell", "Waiters"]


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


class ThreadBell:
    """Rings for one waiting thread."""

    def __init__(self, take: Callable[[AnyBell], None]) -> None:
        self._take, self._rung = take, threading.Event()

    def ring(self) -> None:
        """Wakes the thread that waits, or the next that does."""
        self._rung.set()

    def wait(self, seconds: float) -> None:
        """Returns when it has rung, or after so long."""
        self._rung.wait(seconds)
        self._rung.clear()

    def close(self) -> None:
        """Nobody listens any more."""
        self._take(self)


class LoopBell:
    """Rings for one waiting coroutine of the event loop that made it."""

    def __init__(self, take: Callable[[AnyBell], None]) -> None:
        self._take, self._rung, self._loop = take, asyncio.Event(), asyncio.get_running_loop()

    def ring(self) -> None:
        """Wakes the coroutine that waits, or the next that does."""
        with suppress(RuntimeError):  # the loop is closed, and nobody waits in it
            self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, seconds: float) -> None:
        """Returns when it has rung, or after so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        except TimeoutError:
            return
        self._rung.clear()

    def close(self) -> None:
        """Nobody listens any more."""
        self._take(self)


AnyBell: TypeAlias = ThreadBell | LoopBell


class PositionNotifier:
    """Who listens to which generation, and what each still waits for; any thread may hang, take and ring."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hung: dict[AnyBell, tuple[str, str]] = {}
        self._waiters: dict[tuple[str, str], Waiters[AnyBell]] = {}

    def thread_bell(self, generation: Generation, wanted: Position | None) -> ThreadBell:
        """A bell for a thread, rung by what happens from now on."""
        bell = ThreadBell(self.take)
        self._hang(bell, generation, wanted)
        return bell

    def loop_bell(self, generation: Generation, wanted: Position | None) -> LoopBell:
        """A bell for a coroutine of the running event loop."""
        bell = LoopBell(self.take)
        self._hang(bell, generation, wanted)
        return bell

    def take(self, bell: AnyBell) -> None:
        """Nobody listens to it any more."""
        with self._lock:
            name = self._hung.pop(bell, None)
            if name is not None:
                self._waiters[name].remove(bell)
                if not self._waiters[name]:
                    del self._waiters[name]

    def generations(self) -> list[Generation]:
        """Those that somebody listens to."""
        with self._lock:
            return [waiters.generation for waiters in self._waiters.values()]

    def is_awaited(self, view: str, id_: str) -> bool:
        """Whether anybody listens to a generation."""
        return (view, id_) in self._waiters

    def reached(self, view: str, id_: str, position: Position) -> None:
        """A flush brought a generation there: rings for everybody who now has all that was waited for."""
        with self._lock:
            waiters = self._waiters.get((view, id_))
            due = waiters.reached(position) if waiters else []
        for bell in due:
            bell.ring()

    def changed(self, view: str) -> None:
        """Something else happened to a view: rings for everybody who waits for any of its generations."""
        with self._lock:
            due = [b for name, waiters in self._waiters.items() if name[0] == view for b in waiters.everybody()]
        for bell in due:
            bell.ring()

    def _hang(self, bell: AnyBell, generation: Generation, wanted: Position | None) -> None:
        name = generation.view, generation.id
        with self._lock:
            self._hung[bell] = name
            self._waiters.setdefault(name, Waiters(generation)).add(bell, wanted)
