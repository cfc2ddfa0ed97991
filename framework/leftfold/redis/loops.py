"""What belongs to one event loop: its connections and its subscription, closed when the loop shuts down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeAlias

from leftfold.redis.clients import open_asker
from leftfold.redis.settings import RedisSettings
from leftfold.redis.subscriber import Subscriber
from leftfold.redis.topology import Topology

__all__ = ["LoopClient", "LoopClients"]


class LoopClient:
    """The connections and the subscription of one event loop; none is opened before it is used."""

    def __init__(self, settings: RedisSettings, topology: Topology) -> None:
        self.asker = open_asker(settings, topology)
        self.subscriber = Subscriber(settings, self.asker, topology)

    async def aclose(self) -> None:
        """Closes both."""
        await self.subscriber.aclose()
        await self.asker.aclose()


_Held: TypeAlias = AsyncGenerator[LoopClient, None]


class LoopClients:
    """Hands out the client of the running loop.

    Each client lives in an asynchronous generator: `asyncio.run` and every other well-behaved runner ends those before
    it closes the loop, which is the only moment when connections of a loop can be closed properly.
    """

    def __init__(self, settings: RedisSettings, topology: Topology) -> None:
        self._settings, self._topology = settings, topology
        self._clients: dict[asyncio.AbstractEventLoop, tuple[LoopClient, _Held]] = {}

    def found(self) -> LoopClient | None:
        """The client of this loop, if there is one yet."""
        found = self._clients.get(asyncio.get_running_loop())
        return None if found is None else found[0]

    async def get(self) -> LoopClient:
        """The client of this loop, made at the first call."""
        loop = asyncio.get_running_loop()
        found = self._clients.get(loop)
        if found is None:
            held = self._hold(loop)
            found = await anext(held), held
            self._clients[loop] = found
        return found[0]

    async def _hold(self, loop: asyncio.AbstractEventLoop) -> _Held:
        client = LoopClient(self._settings, self._topology)
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
