"""Bells for those who wait for a flush: threads and coroutines alike, rung from any thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from leftfold.flush import Generation
from leftfold.position import Position

__all__ = ["Bells", "LoopBell", "ThreadBell"]


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


class Bells:
    """Who listens to which generation, and what each still waits for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hung: dict[AnyBell, tuple[Generation, Position | None]] = {}

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
            self._hung.pop(bell, None)

    def generations(self) -> dict[tuple[str, str], Generation]:
        """Those that somebody listens to, by view and id."""
        with self._lock:
            return {(g.view, g.id): g for g, _ in self._hung.values()}

    def reached(self, view: str, id_: str, position: Position) -> None:
        """A flush brought a generation there: rings for everybody who now has all that was waited for."""
        with self._lock:
            due = []
            for bell, (generation, wanted) in self._hung.items():
                if generation.id != id_ or generation.view != view:
                    continue
                left = None if wanted is None else wanted.beyond(position)
                if left is None or not left.offsets:
                    due.append(bell)
                elif left != wanted:
                    self._hung[bell] = generation, left
        for bell in due:
            bell.ring()

    def changed(self, view: str) -> None:
        """Something else happened to a view: rings for everybody who waits for any of its generations."""
        with self._lock:
            due = [bell for bell, (generation, _) in self._hung.items() if generation.view == view]
        for bell in due:
            bell.ring()

    def _hang(self, bell: AnyBell, generation: Generation, wanted: Position | None) -> None:
        with self._lock:
            self._hung[bell] = generation, wanted
