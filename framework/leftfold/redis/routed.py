"""A client of several servers: each command goes to where its key is, and follows it when it moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeVar

import redis

from leftfold.redis.commands import Part, Pipeline
from leftfold.redis.pools import open_server
from leftfold.redis.routing import PAUSE, Command, astray, by_server, is_elsewhere, key_of, lost, without_errors
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology
from leftfold.redis.watching import WatchingPipeline

__all__ = ["RoutedClient", "settled"]

T = TypeVar("T")
_MOST = 64


class RoutedClient:
    """Sends commands to the servers that their keys are on; for any number of threads.

    Commands outside of transactions are sent once more when a connection is lost, because the next server may know:
    only such may be sent here as do no harm when they happen twice.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._lock = Lock()
        self._pools: dict[str, Any] = {}

    def of(self, server: RedisSettings) -> Any:
        """The redis-py client of a server."""
        with self._lock:
            client = self._pools.pop(server.url, None) or open_server(server, leads=not self.topology.spread)
            self._pools[server.url] = client
            if len(self._pools) > _MOST:
                self._pools.pop(next(iter(self._pools))).close()
            return client

    def execute_command(self, *parts: Part) -> Any:
        """One command and its reply."""
        return self.execute([parts])[0]

    def pipeline(self, transaction: bool = True) -> Pipeline:
        """Commands sent together: to each server what concerns it, or one transaction on the keys of one slot."""
        return WatchingPipeline(self) if transaction else _RoutedPipeline(self)

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Sends everything, then collects the replies; raises the first that is an error."""
        try:
            try:
                replies = self._exchange(commands)
            except Exception as error:
                if not (lost(error) and self.topology.met(error)):
                    raise
                replies = self._exchange(commands)
            for number in astray(commands, replies):
                replies[number] = self._follow(commands[number])
            return without_errors(commands, replies)
        except Exception as error:
            self.topology.met(error)
            raise

    def close(self) -> None:
        """Closes every pool."""
        with self._lock:
            pools, self._pools = list(self._pools.values()), {}
        for client in pools:
            client.close()

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        batches = by_server(self.topology.server(key_of(command)) for command in commands)
        replies: list[Any] = [None] * len(commands)
        taken: list[tuple[Any, Any, list[int]]] = []
        try:
            # Always in one order: two threads must not wait for each other with a connection of the other's in hand.
            for server, numbers in sorted(batches.values(), key=lambda batch: batch[0].url):
                client = self.of(server)
                connection = client.connection_pool.get_connection()
                taken.append((client, connection, numbers))
                connection.send_packed_command(connection.pack_commands([commands[n] for n in numbers]))
            for client, connection, numbers in taken:
                for number in numbers:
                    replies[number] = _reply(client, connection, commands[number])
        except BaseException:
            for _, connection, _ in taken:
                connection.disconnect()
            raise
        finally:
            for client, connection, _ in taken:
                client.connection_pool.release(connection)
        return replies

    def _follow(self, command: Command) -> Any:
        """Sends one command to wherever it is told to, for as long as a reply may take."""
        server, asking = self.topology.server(key_of(command)), False
        deadline = time.monotonic() + self.topology.settings.timeout
        while True:
            reply = self._ask(server, command, asking=asking)
            if not is_elsewhere(reply) or time.monotonic() > deadline:
                return reply
            self.topology.met(reply)
            asking = type(reply) is redis.exceptions.AskError
            if asking:
                server = self.topology.settings.at((reply.host or server.host, reply.port))
            else:
                time.sleep(PAUSE)
                server = self.topology.server(key_of(command))

    def _ask(self, server: RedisSettings, command: Command, *, asking: bool) -> Any:
        with self.of(server).pipeline(transaction=False) as pipe:
            if asking:
                pipe.execute_command("ASKING")
            pipe.execute_command(*command)
            return pipe.execute(raise_on_error=False)[-1]


class _RoutedPipeline:
    """Commands for servers that need not be the same."""

    def __init__(self, client: RoutedClient) -> None:
        self._client = client
        self._commands: list[Command] = []

    def execute_command(self, *parts: Part) -> Any:
        """Queues a command."""
        self._commands.append(parts)

    def execute(self) -> list[Any]:
        """Sends what was queued and returns the replies in its order."""
        commands, self._commands = self._commands, []
        return self._client.execute(commands) if commands else []

    def pipeline(self, transaction: bool = True) -> Pipeline:
        """Another one."""
        return self._client.pipeline(transaction)

    def watch(self, *names: bytes) -> Any:
        """Never: what is watched needs a transaction."""
        raise TypeError("a pipeline without a transaction watches nothing")

    def multi(self) -> None:
        """Never, for the same reason."""
        raise TypeError("a pipeline without a transaction queues anyway")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._commands = []


def _reply(client: Any, connection: Any, command: Command) -> Any:
    """One reply, errors of commands among them."""
    try:
        return client.parse_response(connection, command[0])
    except redis.ResponseError as error:
        return error


def settled(seconds: float, work: Callable[[], T]) -> T:
    """Does work on the keys of one slot, again while the slot moves: a transaction that was sent elsewhere did nothing.

    Args:
        seconds: for how long.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except (redis.exceptions.AskError, redis.exceptions.TryAgainError):
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)
