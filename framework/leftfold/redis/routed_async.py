"""`RoutedClient` for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import redis

from leftfold.redis.commands import AsyncPipeline, Part
from leftfold.redis.pools import open_async_server
from leftfold.redis.routing import PAUSE, Command, astray, by_server, is_elsewhere, key_of, lost, without_errors
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology

__all__ = ["RoutedAsyncClient"]


class RoutedAsyncClient:
    """Sends commands to the servers that their keys are on; one event loop uses it."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._pools: dict[str, Any] = {}

    async def execute_command(self, *parts: Part) -> Any:
        """One command and its reply."""
        return (await self.execute([parts]))[0]

    def pipeline(self, transaction: bool = True) -> AsyncPipeline:
        """Commands sent together, to each server what concerns it; transactions are for threads."""
        if transaction:
            raise TypeError("say pipeline(transaction=False): what is watched is watched by threads")
        return _RoutedAsyncPipeline(self)

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Sends everything at once and returns the replies; raises the first that is an error."""
        try:
            try:
                replies = await self._exchange(commands)
            except Exception as error:
                if not (lost(error) and self.topology.met(error)):
                    raise
                replies = await self._exchange(commands)
            for number in astray(commands, replies):
                replies[number] = await self._follow(commands[number])
            return without_errors(replies)
        except Exception as error:
            self.topology.met(error)
            raise

    async def aclose(self) -> None:
        """Closes every pool."""
        pools, self._pools = list(self._pools.values()), {}
        for client in pools:
            await client.aclose()

    async def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        batches = by_server([await self._server(key_of(command)) for command in commands])
        replies: list[Any] = [None] * len(commands)

        async def ask(server: RedisSettings, numbers: list[int]) -> None:
            found = await self._ask(server, [commands[number] for number in numbers])
            for number, reply in zip(numbers, found, strict=True):
                replies[number] = reply

        outcomes = await asyncio.gather(*(ask(*batch) for batch in batches.values()), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        return replies

    async def _server(self, key: bytes) -> RedisSettings:
        """Who has a key; finding out blocks, so a thread does that."""
        server = self.topology.known(key)
        return server if server is not None else await asyncio.to_thread(self.topology.server, key)

    async def _ask(self, server: RedisSettings, commands: Sequence[Command]) -> list[Any]:
        client: Any = self._pools.get(server.url)
        if client is None:
            client = self._pools[server.url] = open_async_server(server, leads=not self.topology.spread)
        async with client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies: list[Any] = await pipe.execute(raise_on_error=False)
            return replies

    async def _follow(self, command: Command) -> Any:
        """Sends one command to wherever it is told to, for as long as a reply may take."""
        server, asking = await self._server(key_of(command)), False
        deadline = time.monotonic() + self.topology.settings.timeout
        while True:
            reply = (await self._ask(server, [("ASKING",), command] if asking else [command]))[-1]
            if not is_elsewhere(reply) or time.monotonic() > deadline:
                return reply
            self.topology.met(reply)
            asking = type(reply) is redis.exceptions.AskError
            if asking:
                server = self.topology.settings.at((reply.host or server.host, reply.port))
            else:
                await asyncio.sleep(PAUSE)
                server = await self._server(key_of(command))


class _RoutedAsyncPipeline:
    """Commands for servers that need not be the same."""

    def __init__(self, client: RoutedAsyncClient) -> None:
        self._client = client
        self._commands: list[Command] = []

    def execute_command(self, *parts: Part) -> Any:
        """Queues a command."""
        self._commands.append(parts)

    async def execute(self) -> list[Any]:
        """Sends what was queued and returns the replies in its order."""
        commands, self._commands = self._commands, []
        return await self._client.execute(commands) if commands else []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._commands = []
