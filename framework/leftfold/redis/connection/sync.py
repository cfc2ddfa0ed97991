"""Blocking Redis clients of one server or several: each command goes to the owner of its key and is redirected."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from threading import Lock
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.driver_info import DriverInfo
from redis.retry import Retry

from leftfold.redis.connection.errors import Part, Pipeline, RedisClient, describe_command
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.connection.topology import Topology, why_no_master

__all__ = [
    "PAUSE",
    "Command",
    "RoutedClient",
    "by_server",
    "is_connection_loss",
    "is_redirect",
    "key_of",
    "open_async_node",
    "open_server",
    "redirected",
    "settled",
    "without_errors",
]


Command: TypeAlias = tuple[Part, ...]
Batches: TypeAlias = dict[str, tuple[RedisSettings, list[int]]]

PAUSE = 0.02
"""Seconds between attempts while a slot moves."""
_ELSEWHERE = (redis.exceptions.AskError, redis.exceptions.TryAgainError)
_LOST = (redis.ConnectionError, redis.TimeoutError, OSError)
_KEYLESS = frozenset(("TIME", "PING", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "ROLE", "INFO"))


def key_of(command: Command) -> bytes:
    """The key that decides where a command goes; '' for a command that any server can run."""
    name = str(command[0]).upper() if not isinstance(command[0], bytes) else command[0].decode().upper()
    match name:
        case "XREAD":
            parts = [part.decode() if isinstance(part, bytes) else str(part) for part in command]
            key: Part = command[[part.upper() for part in parts].index("STREAMS") + 1]
        case _:
            key = "" if name in _KEYLESS or len(command) < 2 else command[1]
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
            name_denied(reply, command)
            raise reply
    return replies


def name_denied(error: Exception, command: Sequence[Part]) -> None:
    """Adds the command to the error of a missing right."""
    if isinstance(error, redis.exceptions.NoPermissionError):
        error.args = (f"{describe_command(command)} ({error})",)


def redirected(commands: Sequence[Command], replies: Sequence[Any]) -> list[int]:
    """The indexes of all commands on slots of which some command was redirected.

    All commands of such a slot are sent again, in their order: a reader may draw conclusions from that order.
    """
    slots = {key_slot(key_of(c)) for c, reply in zip(commands, replies, strict=True) if is_redirect(reply)}
    return [number for number, command in enumerate(commands) if key_slot(key_of(command)) in slots] if slots else []


_DRIVER = DriverInfo()
"""The driver shown by CLIENT LIST; redis-py would read its own package's metadata for each connection."""


def open_server(settings: RedisSettings, *, leads: bool = False) -> RedisClient:
    """A client of one server for threads; when all its connections are in use, readers wait for one.

    Args:
        leads: every new connection asks whether the server is a master, and is refused where it is not.
    """

    def connected(connection: Any) -> None:
        connection.on_connect()
        connection.send_command("ROLE")
        if why := why_no_master(connection.read_response(), settings):
            raise redis.ConnectionError(why)

    pool: Any = redis.BlockingConnectionPool.from_url(
        settings.url, retry=Retry(NoBackoff(), 0), **_connection(settings, connected if leads else None)
    )
    client: RedisClient = _Server.from_pool(pool)
    return client


class _Server(redis.Redis):
    """A redis-py client that names the command in errors of missing rights; older servers leave it out."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Sends one command and returns its reply."""
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py has no types here
        except redis.exceptions.NoPermissionError as error:
            name_denied(error, args)
            raise

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> _Pipeline:
        """Commands sent together."""
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _Pipeline(redis.client.Pipeline):
    def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        """Sends a command while keys are watched."""
        try:
            return super().immediate_execute_command(*args, **options)  # type: ignore[no-untyped-call]  # nor here
        except redis.exceptions.NoPermissionError as error:
            name_denied(error, args)
            raise

    def annotate_exception(self, exception: Any, number: Any, command: Any) -> None:
        """Names a denied command; redis-py would show the beginning of what was sent, rows included."""
        if isinstance(exception, redis.exceptions.NoPermissionError):
            name_denied(exception, command)
        else:
            super().annotate_exception(exception, number, command)  # type: ignore[no-untyped-call]  # nor here


def open_async_node(settings: RedisSettings) -> Any:
    """A redis-py client of one cluster node for the running event loop."""
    pool: Any = redis.asyncio.BlockingConnectionPool.from_url(
        settings.url, retry=AsyncRetry(NoBackoff(), 0), **_connection(settings, None)
    )
    return redis.asyncio.Redis.from_pool(pool)


def _connection(settings: RedisSettings, connected: Callable[[Any], Any] | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_connections": settings.connections,
        "timeout": settings.timeout,
        "socket_timeout": settings.timeout,
        "socket_connect_timeout": settings.connect_timeout,
        "protocol": 2,
        "driver_info": _DRIVER,
    }
    if connected is not None:
        options["redis_connect_func"] = connected
    if settings.password is not None:
        options["password"] = settings.password.get_secret_value()
    if settings.encrypted and settings.ca_file is not None:
        options["ssl_ca_certs"] = str(settings.ca_file)
    return options


class WatchingPipeline:
    """A redis-py pipeline that is opened on the server of its first key.

    Nothing is sent a second time: a writer under WATCH must know whether its own write succeeded. A redirection is
    remembered, so that the next attempt goes to the right server.
    """

    def __init__(self, client: RoutedClient) -> None:
        self._client = client
        self._open = ExitStack()
        self._pipe: Any = None

    def watch(self, *names: bytes) -> Any:
        """Sends commands at once from here until `multi`."""
        return self._at(names[0]).watch(*names)

    def execute_command(self, *parts: Part) -> Any:
        """Sends a command while watching, else queues it."""
        return self._at(key_of(parts)).execute_command(*parts)

    def multi(self) -> None:
        """Queues the following commands."""
        self._pipe.multi()

    def execute(self) -> list[Any]:
        """Sends the queued commands and returns the replies; raises WatchError when a watched key changed."""
        replies: list[Any] = self._pipe.execute() if self._pipe is not None else []
        return replies

    def pipeline(self, transaction: bool = True) -> Pipeline:
        """A new pipeline."""
        return self._client.pipeline(transaction)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._client.topology.met(error)
        self._open.close()
        self._pipe = None

    def _at(self, key: bytes) -> Any:
        if self._pipe is None:
            client = self._client.of(self._client.topology.server(key))
            self._pipe = self._open.enter_context(client.pipeline())
        return self._pipe


T = TypeVar("T")
_MOST = 64


class RoutedClient:
    """Sends commands to the servers that own their keys; for any number of threads.

    Commands outside of transactions are sent once more when a connection is lost, because another server may have the
    key then: only commands that may run twice can be sent here.
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
        """Sends one command and returns its reply."""
        return self.execute([parts])[0]

    def pipeline(self, transaction: bool = True) -> Pipeline:
        """A pipeline: each server gets its commands, or one transaction on the keys of one slot."""
        return WatchingPipeline(self) if transaction else _RoutedPipeline(self)

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Sends all commands, then collects the replies; raises the first that is an error."""
        try:
            try:
                replies = self._exchange(commands)
            except Exception as error:
                if not (is_connection_loss(error) and self.topology.met(error)):
                    raise
                replies = self._exchange(commands)
            for number in redirected(commands, replies):
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
            # Always in one order: two threads that wait for each other's connections would deadlock.
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
        """Sends one command and follows redirections, for as long as a reply may take."""
        server, asking = self.topology.server(key_of(command)), False
        deadline = time.monotonic() + self.topology.settings.timeout
        while True:
            reply = self._ask(server, command, asking=asking)
            if not is_redirect(reply) or time.monotonic() > deadline:
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
    """A pipeline without a transaction; its commands may go to different servers."""

    def __init__(self, client: RoutedClient) -> None:
        self._client = client
        self._commands: list[Command] = []

    def execute_command(self, *parts: Part) -> Any:
        """Queues a command."""
        self._commands.append(parts)

    def execute(self) -> list[Any]:
        """Sends the queued commands and returns the replies in their order."""
        commands, self._commands = self._commands, []
        return self._client.execute(commands) if commands else []

    def pipeline(self, transaction: bool = True) -> Pipeline:
        """A new pipeline."""
        return self._client.pipeline(transaction)

    def watch(self, *names: bytes) -> Any:
        """Not supported: WATCH needs a transaction."""
        raise TypeError("a pipeline without a transaction watches nothing")

    def multi(self) -> None:
        """Not supported: MULTI needs a transaction."""
        raise TypeError("a pipeline without a transaction queues anyway")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._commands = []


def _reply(client: Any, connection: Any, command: Command) -> Any:
    """One reply, which may be an error."""
    try:
        return client.parse_response(connection, command[0])
    except redis.ResponseError as error:
        return error


def settled(seconds: float, work: Callable[[], T]) -> T:
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
