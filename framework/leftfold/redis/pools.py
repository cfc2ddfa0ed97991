"""redis-py clients of one server: pooled, never retrying on their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.retry import Retry

from leftfold.redis.commands import Client
from leftfold.redis.routing import name_denied
from leftfold.redis.sentinels import why_no_master
from leftfold.redis.settings import RedisSettings

__all__ = ["open_async_node", "open_server"]

_DRIVER = DriverInfo()
"""What CLIENT LIST shows of a connection; redis-py would read its own package's metadata for each one."""


def open_server(settings: RedisSettings, *, leads: bool = False) -> Client:
    """A client of one server for threads; more readers than connections wait for one.

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
    client: Client = _Server.from_pool(pool)
    return client


class _Server(redis.Redis):
    """A client whose errors of missing rights name the command, which those of older servers leave out."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """One command and its reply."""
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
        """A command while something is watched."""
        try:
            return super().immediate_execute_command(*args, **options)  # type: ignore[no-untyped-call]  # nor here
        except redis.exceptions.NoPermissionError as error:
            name_denied(error, args)
            raise

    def annotate_exception(self, exception: Any, number: Any, command: Any) -> None:
        """redis-py lets errors show the beginning of what was sent, rows included; those of rights need less."""
        if isinstance(exception, redis.exceptions.NoPermissionError):
            name_denied(exception, command)
        else:
            super().annotate_exception(exception, number, command)  # type: ignore[no-untyped-call]  # nor here


def open_async_node(settings: RedisSettings) -> Any:
    """A redis-py client of one node of a cluster for the running event loop."""
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
