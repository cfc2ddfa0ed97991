"""The asyncio client of a cluster: each command goes to the owner of its key and is redirected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import redis

from leftfold.redis.connection.asyncio import Multiplexer
from leftfold.redis.connection.errors import Command, translated
from leftfold.redis.connection.protocol import AsyncClient, RedisQuery
from leftfold.redis.connection.server import open_async_server
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.connection.sync import (
    PAUSE,
    by_server,
    is_connection_loss,
    is_redirect,
    key_of,
    redirected,
    without_errors,
)
from leftfold.redis.connection.topology import Topology

__all__ = ["open_async_client"]


A = TypeVar("A")


class RoutedAsyncClient:
    """Sends commands to the cluster nodes that own their keys; for one event loop.

    Looking up the owner of a key blocks, also when another thread is looking it up, so threads do that.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._pools: dict[str, Any] = {}

    async def ask(self, query: RedisQuery[A]) -> A:
        """The answer to a query.

        Raises:
            InfrastructureError: a node cannot be reached, or refuses a command.
            ConfigurationError: the user may not run that query.
        """
        with translated(self.topology.settings):
            return query.answer(await self.execute(query.commands))

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Sends all commands at once and returns the replies; raises the first that is an error."""
        try:
            try:
                replies = await self._exchange(commands)
            except Exception as error:
                if not (is_connection_loss(error) and await self._handle_error(error)):
                    raise
                replies = await self._exchange(commands)
            for number in redirected(commands, replies):
                replies[number] = await self._follow(commands[number])
            return without_errors(commands, replies)
        except Exception as error:
            await self._handle_error(error)
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
        """The node that owns a key."""
        server = self.topology.known_server(key)
        return server if server is not None else await asyncio.to_thread(self.topology.server, key)

    async def _handle_error(self, error: BaseException) -> bool:
        """Whether an error means that a key may be on another node now."""
        return await asyncio.to_thread(self.topology.handle_error, error)

    async def _ask(self, server: RedisSettings, commands: Sequence[Command]) -> list[Any]:
        client: Any = self._pools.get(server.url)
        if client is None:
            client = self._pools[server.url] = open_async_server(server)
        async with client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies: list[Any] = await pipe.execute(raise_on_error=False)
            return replies

    async def _follow(self, command: Command) -> Any:
        """Sends one command and follows redirections, for as long as a reply may take."""
        server, asking = await self._server(key_of(command)), False
        deadline = time.monotonic() + self.topology.settings.timeout
        while True:
            reply = (await self._ask(server, [("ASKING",), command] if asking else [command]))[-1]
            if not is_redirect(reply) or time.monotonic() > deadline:
                return reply
            await self._handle_error(reply)
            asking = type(reply) is redis.exceptions.AskError
            if asking:
                server = self.topology.settings.at((reply.host or server.host, reply.port))
            else:
                await asyncio.sleep(PAUSE)
                server = await self._server(key_of(command))


def open_async_client(settings: RedisSettings, topology: Topology) -> AsyncClient:
    """The client for coroutines of the running event loop; it connects at the first query."""
    return RoutedAsyncClient(topology) if topology.is_cluster else Multiplexer(settings, topology)
