"""One asyncio client per event loop, closed when its loop shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeAlias

from leftfold.redis.clients import open_async_client
from leftfold.redis.commands import AsyncClient
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology

__all__ = ["LoopClients"]

_Held: TypeAlias = AsyncGenerator[AsyncClient, None]


class LoopClients:
    """Hands out the client of the running loop.

    Each client lives in an asynchronous generator: `asyncio.run` and every other well-behaved runner ends those before
    it closes the loop, which is the only moment when connections of a loop can be closed properly.
    """

    def __init__(self, settings: RedisSettings, topology: Topology | None = None) -> None:
        self._settings, self._topology = settings, topology
        self._clients: dict[asyncio.AbstractEventLoop, tuple[AsyncClient, _Held]] = {}

    async def get(self) -> AsyncClient:
        """The client of this loop, opened at the first call."""
        loop = asyncio.get_running_loop()
        found = self._clients.get(loop)
        if found is None:
            held = self._hold(loop)
            found = await anext(held), held
            self._clients[loop] = found
        return found[0]

    async def _hold(self, loop: asyncio.AbstractEventLoop) -> _Held:
        client = open_async_client(self._settings, self._topology)
        try:
            yield client
        finally:
            self._clients.pop(loop, None)
            await client.aclose()

    async def aclose(self) -> None:
        """Closes the client of this loop now."""
        found = self._clients.get(asyncio.get_running_loop())
        if found is not None:
            await found[1].aclose()
