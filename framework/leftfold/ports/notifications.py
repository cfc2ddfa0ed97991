"""Notifies readers, on threads and event loops, that wait for a generation to reach a position."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Generic, TypeAlias, TypeVar

from leftfold.model.position import Position
from leftfold.ports.flush import Generation

__all__ = ["MAX_WAIT", "AsyncWaiter", "EndedWaiters", "PositionNotifier", "Waiter", "Waiters"]

MAX_WAIT = 4e6
"""The seconds that a thread can wait at once on every platform, 46 days; `math.inf` raises OverflowError."""

W = TypeVar("W")
_FEW = 100


class EndedWaiters(Generic[W]):
    """Waiters that have ended, until they are removed under a lock for which their end never waits.

    Garbage collection closes abandoned readers and senders in any thread, also in one that holds the lock. Such a
    waiter is removed by the next holder of the lock, all others at once.

    Args:
        remove: removes a waiter; called under the lock.
    """

    def __init__(self, lock: threading.Lock, remove: Callable[[W], None]) -> None:
        self._lock, self._remove, self._ended = lock, remove, deque[W]()

    def add(self, waiter: W) -> None:
        """Removes a waiter, now or later."""
        self._ended.append(waiter)
        if self._lock.acquire(blocking=False):
            try:
                self.remove()
            finally:
                self._lock.release()

    def remove(self) -> None:
        """Removes all of them; the caller holds the lock."""
        while self._ended:
            self._remove(self._ended.popleft())


@dataclass(eq=False)
class _Registered(Generic[W]):
    """A waiter, with the number of partitions that have not reached its position."""

    who: W
    pending: int
    removed: bool = False


@dataclass
class Waiters(Generic[W]):
    """The waiters of a generation: one heap of offsets per partition, with an entry for each waiter of that partition.

    A waiter that was notified is notified of every later flush too: when it looked, its own bucket had not reached the
    position.
    """

    generation: Generation
    _all: dict[W, _Registered[W]] = field(default_factory=dict)
    _every: dict[W, None] = field(default_factory=dict)
    _heaps: dict[tuple[str, int], list[tuple[int, int, _Registered[W]]]] = field(default_factory=dict)
    _count: int = 0
    _removed: int = 0

    def __len__(self) -> int:
        return len(self._all)

    def add(self, who: W, wanted: Position | None) -> None:
        """Adds a waiter for a position, or for every flush."""
        offsets = {} if wanted is None else wanted.by_partition()
        waiter = self._all[who] = _Registered(who, len(offsets))
        if not offsets:
            self._every[who] = None
        for place, offset in offsets.items():
            self._count += 1  # the earliest waiter comes first, and waiters are never compared
            heappush(self._heaps.setdefault(place, []), (offset, self._count, waiter))

    def remove(self, who: W) -> None:
        """Removes a waiter."""
        waiter = self._all.pop(who, None)
        self._every.pop(who, None)
        if waiter is None or not waiter.pending:
            return
        waiter.removed = True
        self._removed += 1
        if self._removed > max(_FEW, len(self._all)):
            self._sweep()

    def everybody(self) -> list[W]:
        """All waiters."""
        return list(self._all)

    def reached(self, position: Position) -> list[W]:
        """The waiters to notify of a flush that brought the generation to a position."""
        for place, offset in position.by_partition().items():
            heap = self._heaps.get(place, [])
            while heap and heap[0][0] <= offset:
                waiter = heappop(heap)[2]
                waiter.pending -= 1
                if not waiter.pending and not waiter.removed:
                    self._every[waiter.who] = None
        return list(self._every)

    def _sweep(self) -> None:
        """Drops the heap entries of removed waiters."""
        for heap in self._heaps.values():
            heap[:] = [entry for entry in heap if not entry[2].removed]
            heapify(heap)
        self._removed = 0


class Waiter:
    """A notification for one waiting thread."""

    def __init__(self, take: Callable[[AnyWaiter], None]) -> None:
        self._take, self._notified = take, threading.Event()

    def notify(self) -> None:
        """Wakes the waiting thread, or the next call of `wait`."""
        self._notified.set()

    def wait(self, seconds: float) -> None:
        """Returns when notified, or after so many seconds."""
        self._notified.wait(min(seconds, MAX_WAIT))
        self._notified.clear()

    def close(self) -> None:
        """Ends the notifications."""
        self._take(self)


class AsyncWaiter:
    """A notification for one waiting coroutine of the event loop that made it."""

    def __init__(self, take: Callable[[AnyWaiter], None]) -> None:
        self._take, self._notified, self._loop = take, asyncio.Event(), asyncio.get_running_loop()

    def notify(self) -> None:
        """Wakes the waiting coroutine, or the next call of `wait`."""
        with suppress(RuntimeError):  # the loop is closed, and no coroutine waits in it
            self._loop.call_soon_threadsafe(self._notified.set)

    async def wait(self, seconds: float) -> None:
        """Returns when notified, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._notified.wait()
        except TimeoutError:
            return
        self._notified.clear()

    def close(self) -> None:
        """Ends the notifications."""
        self._take(self)


AnyWaiter: TypeAlias = Waiter | AsyncWaiter


class PositionNotifier:
    """The waiters by generation; any thread may add, remove and notify them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended: EndedWaiters[AnyWaiter] = EndedWaiters(self._lock, self._remove)
        self._names: dict[AnyWaiter, tuple[str, str]] = {}
        self._waiters: dict[tuple[str, str], Waiters[AnyWaiter]] = {}

    def waiter(self, generation: Generation, wanted: Position | None) -> Waiter:
        """A notification for a thread, for flushes from now on."""
        waiter = Waiter(self._ended.add)
        self._add(waiter, generation, wanted)
        return waiter

    def async_waiter(self, generation: Generation, wanted: Position | None) -> AsyncWaiter:
        """A notification for a coroutine of the running event loop."""
        waiter = AsyncWaiter(self._ended.add)
        self._add(waiter, generation, wanted)
        return waiter

    def generations(self) -> list[Generation]:
        """The generations that have waiters."""
        with self._lock:
            self._ended.remove()
            return [waiters.generation for waiters in self._waiters.values()]

    def is_awaited(self, view: str, id_: str) -> bool:
        """Whether a generation has waiters."""
        return (view, id_) in self._waiters

    def reached(self, view: str, id_: str, position: Position) -> None:
        """Notifies the waiters whose positions a flush of this generation has reached."""
        with self._lock:
            self._ended.remove()
            waiters = self._waiters.get((view, id_))
            due = waiters.reached(position) if waiters else []
        for waiter in due:
            waiter.notify()

    def changed(self, view: str) -> None:
        """Notifies the waiters of all generations of a view of another change."""
        with self._lock:
            self._ended.remove()
            due = [b for name, waiters in self._waiters.items() if name[0] == view for b in waiters.everybody()]
        for waiter in due:
            waiter.notify()

    def _add(self, waiter: AnyWaiter, generation: Generation, wanted: Position | None) -> None:
        name = generation.view, generation.id
        with self._lock:
            self._ended.remove()
            self._names[waiter] = name
            self._waiters.setdefault(name, Waiters(generation)).add(waiter, wanted)

    def _remove(self, waiter: AnyWaiter) -> None:
        name = self._names.pop(waiter, None)
        if name is not None:
            self._waiters[name].remove(waiter)
            if not self._waiters[name]:
                del self._waiters[name]
