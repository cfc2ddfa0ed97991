"""The blocking Redis client of one server or several: each command goes to the owner of its key and is redirected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, TypeAlias, TypeVar

import redis
from redis.crc import key_slot

from leftfold.redis.connection.errors import Command, Part, Pipeline, ended, name_command
from leftfold.redis.connection.server import open_server
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.connection.topology import Topology

__all__ = [
    "PAUSE",
    "RoutedClient",
    "by_server",
    "is_connection_loss",
    "is_redirect",
    "key_of",
    "redirected",
    "reply_to_last",
    "retry_while_moving",
    "without_errors",
]


Batches: TypeAlias = dict[str, tuple[RedisSettings, list[int]]]

PAUSE = 0.02
"""Seconds between attempts while a slot moves."""
_ELSEWHERE = (redis.exceptions.AskError, redis.exceptions.TryAgainError)
_LOST = (redis.ConnectionError, redis.TimeoutError, OSError)


def key_of(command: Command) -> bytes:
    """The key that decides where a command goes, its second word; '' for TIME, which any server can run."""
    key = command[1] if len(command) > 1 else ""
    return key if isinstance(key, bytes) else str(key).encode()


def by_server(servers: Iterable[RedisSettings]) -> Batches:
    """Groups commands by their servers; the values hold the indexes of the commands."""
    batches: Batches = {}
    for number, server in enumerate(servers):
        batches.setdefault(server.url, (server, []))[1].append(number)
    return batches


def is_redirect(reply: Any) -> bool:
    """Whether a node answered MOVED, ASK or TRYAGAIN."""
    return isinstance(reply, _ELSEWHERE)


def is_connection_loss(error: BaseException) -> bool:
    """Whether an error means a lost connection."""
    return isinstance(error, _LOST)


def without_errors(commands: Sequence[Command], replies: list[Any]) -> list[Any]:
    """The replies; raises the first error among them, which names a command that was denied."""
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(reply, Exception):
            name_command(reply, command)
            raise reply
    return replies


def redirected(commands: Sequence[Command], replies: Sequence[Any]) -> list[int]:
    """The indexes of all commands on slots of which some command was redirected.

    All commands of such a slot are sent again, in their order: a reader may draw conclusions from that order.
    """
    slots = {key_slot(key_of(c)) for c, reply in zip(commands, replies, strict=True) if is_redirect(reply)}
    return [number for number, command in enumerate(commands) if key_slot(key_of(command)) in slots] if slots else []


T = TypeVar("T")
_MOST_POOLS = 64


class RoutedClient:
    """Sends commands to the servers that own their keys; for any number of threads, which wait for its connections.

    Commands outside of transactions are sent once more when a connection is lost, if another server may have the key
    then: only commands that may run twice can be sent here.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._lock = Lock()
        self._pools: dict[str, Any] = {}
        self._is_closed = False

    def client_of(self, server: RedisSettings) -> Any:
        """The redis-py client of a server.

        Raises:
            InfrastructureError: this client is closed.
        """
        with self._lock:
            if self._is_closed:
                raise ended(self.topology.settings)
            client = self._pools.pop(server.url, None)
            if client is None:
                client = open_server(server, require_master=self.topology.settings.kind == "sentinel")
            self._pools[server.url] = client
            if len(self._pools) > _MOST_POOLS:
                self._pools.pop(next(iter(self._pools))).close()
            return client

    def execute_command(self, *parts: Part) -> Any:
        """Sends one command and returns its reply."""
        return self.execute([parts])[0]

    @contextmanager
    def open_transaction(self, key: bytes) -> Iterator[Pipeline]:
        """A redis-py pipeline on the server of a key.

        Nothing is sent a second time: a writer under WATCH must know whether its own write succeeded. A redirection is
        remembered, so that the next attempt goes to the right server.
        """
        try:
            with self.client_of(self.topology.server(key)).pipeline() as pipe:
                yield pipe
        except Exception as error:
            self.topology.handle_error(error)
            raise

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Sends all commands, then collects the replies; raises the first that is an error."""
        try:
            try:
                replies = self._exchange(commands)
            except Exception as error:
                if not (is_connection_loss(error) and self.topology.handle_error(error)):
                    raise
                replies = self._exchange(commands)
            for number in redirected(commands, replies) if self.topology.is_cluster else ():
                replies[number] = self._follow(commands[number])
            return without_errors(commands, replies)
        except Exception as error:
            self.topology.handle_error(error)
            raise

    def close(self) -> None:
        """Closes every pool, and opens none again."""
        with self._lock:
            pools, self._pools, self._is_closed = list(self._pools.values()), {}, True
        for client in pools:
            client.close()

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        batches = by_server(self.topology.server(key_of(command)) for command in commands)
        replies: list[Any] = [None] * len(commands)
        used: list[tuple[Any, Any, list[int]]] = []
        try:
            # Always in one order: two threads that wait for each other's connections would deadlock.
            for server, numbers in sorted(batches.values(), key=lambda batch: batch[0].url):
                client = self.client_of(server)
                connection = client.connection_pool.get_connection()
                used.append((client, connection, numbers))
                connection.send_packed_command(connection.pack_commands([commands[n] for n in numbers]))
            for client, connection, numbers in used:
                for number in numbers:
                    replies[number] = _reply(client, connection, commands[number])
        except BaseException:
            for _, connection, _ in used:
                connection.disconnect()
            raise
        finally:
            for client, connection, _ in used:
                client.connection_pool.release(connection)
        return replies

    def _follow(self, command: Command) -> Any:
        """Sends one command and follows redirections, for as long as a reply may take."""
        server, asking = self.topology.server(key_of(command)), False
        deadline = time.monotonic() + self.topology.settings.timeout
        while True:
            reply = self._ask(server, command, asking=asking)
            if not is_redirect(reply) or time.monotonic() > deadline:
                return reply
            self.topology.handle_error(reply)
            asking = type(reply) is redis.exceptions.AskError
            if asking:
                server = self.topology.settings.at((reply.host or server.host, reply.port))
            else:
                time.sleep(PAUSE)
                server = self.topology.server(key_of(command))

    def _ask(self, server: RedisSettings, command: Command, *, asking: bool) -> Any:
        with self.client_of(server).pipeline(transaction=False) as pipe:
            if asking:
                pipe.execute_command("ASKING")
            pipe.execute_command(*command)
            return reply_to_last(pipe.execute(raise_on_error=False))


def reply_to_last(replies: Sequence[Any]) -> Any:
    """The reply to the last command, or the denial of the ASKING before it, without which the last is redirected."""
    if isinstance(replies[0], redis.exceptions.NoPermissionError):
        return replies[0]
    return replies[-1]


def _reply(client: Any, connection: Any, command: Command) -> Any:
    """One reply, which may be an error."""
    try:
        return client.parse_response(connection, command[0])
    except redis.ResponseError as error:
        return error


def retry_while_moving(seconds: float, work: Callable[[], T]) -> T:
    """Does work on the keys of one slot, again while the slot moves: a redirected transaction wrote nothing.

    Args:
        seconds: how long to try.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return work()
        except (redis.exceptions.AskError, redis.exceptions.TryAgainError):
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)
