"""Blocking readers that wait share one thread with an event loop, in which the subscription lives."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from leftfold.bells import ThreadBell
from leftfold.errors import InfrastructureError
from leftfold.flush import Generation
from leftfold.position import Position
from leftfold.redis.loops import LoopClient
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology

__all__ = ["Background"]

A = TypeVar("A")


class Background:
    """Hangs bells for threads; its own thread starts with the first of them and ends with `close`."""

    def __init__(self, settings: RedisSettings, topology: Topology) -> None:
        self._settings, self._topology = settings, topology
        self._lock, self._closed = threading.Lock(), False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: LoopClient | None = None

    def listen(self, generation: Generation, wanted: Position | None) -> ThreadBell:
        """A bell that rings from now on.

        Raises:
            InfrastructureError: the server cannot be reached, or refuses.
        """
        client = self._started()
        bell = client.subscriber.bells.thread_bell(generation, wanted)
        try:
            if not client.subscriber.hears(generation):
                self._run(client.subscriber.subscribe(generation))
        except BaseException:
            bell.close()
            raise
        return bell

    def close(self) -> None:
        """Ends the thread and its connections."""
        with self._lock:
            self._closed = True
            loop, thread, client = self._loop, self._thread, self._client
            self._loop = self._thread = self._client = None
        if loop is None or thread is None or client is None:
            return
        asyncio.run_coroutine_threadsafe(_ended(client), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _started(self) -> LoopClient:
        with self._lock:
            if self._closed:
                raise self._is_closed()
            if self._client is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="leftfold redis", daemon=True)
                self._thread.start()
                self._client = self._run(_made(self._settings, self._topology))
            return self._client

    def _run(self, work: Coroutine[Any, Any, A]) -> A:
        loop = self._loop
        if loop is None:
            work.close()
            raise self._is_closed()
        outcome = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return outcome.result()
        except BaseException:
            if outcome.cancelled():
                raise self._is_closed() from None
            raise

    def _is_closed(self) -> InfrastructureError:
        return InfrastructureError(f"the connection to redis at {self._settings.address} is closed")


async def _made(settings: RedisSettings, topology: Topology) -> LoopClient:
    """A client that belongs to the loop this runs in."""
    return LoopClient(settings, topology)


async def _ended(client: LoopClient) -> None:
    """Gives up what is under way in the loop, also for threads that were interrupted while they waited for it."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.aclose()
