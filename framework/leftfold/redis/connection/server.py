"""redis-py's clients of one server, with the timeouts, the login and the certificates of the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.retry import Retry

from leftfold.redis.connection.errors import name_command
from leftfold.redis.connection.protocol import why_no_master
from leftfold.redis.connection.settings import RedisSettings

__all__ = ["open_server"]


_DRIVER = DriverInfo()
"""The driver shown by CLIENT LIST; redis-py would read its own package's metadata for each connection."""


def open_server(settings: RedisSettings, *, require_master: bool = False) -> Any:
    """A client of one server for threads; when all its connections are in use, readers wait for one.

    Args:
        require_master: every new connection asks for the server's role, and refuses a replica.
    """

    def check_role(connection: Any) -> None:
        connection.on_connect()
        connection.send_command("ROLE")
        if why := why_no_master(connection.read_response(), settings):
            raise redis.ConnectionError(why)

    pool: Any = redis.BlockingConnectionPool.from_url(
        settings.url, retry=Retry(NoBackoff(), 0), **_connection(settings, check_role if require_master else None)
    )
    return _Server.from_pool(pool)


class _Server(redis.Redis):
    """A redis-py client that names the command in errors of missing rights; older servers leave it out."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Sends one command and returns its reply."""
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py has no types here
        except redis.exceptions.NoPermissionError as error:
            name_command(error, args)
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
            name_command(error, args)
            raise

    def annotate_exception(self, exception: Any, number: Any, command: Any) -> None:
        """Names a denied command; redis-py would show the beginning of what was sent, rows included."""
        if isinstance(exception, redis.exceptions.NoPermissionError):
            name_command(exception, command)
        else:
            super().annotate_exception(exception, number, command)  # type: ignore[no-untyped-call]  # nor here


def _connection(settings: RedisSettings, on_connect: Callable[[Any], Any] | None) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_connections": settings.connections,
        "timeout": settings.timeout,
        "socket_timeout": settings.timeout,
        "socket_connect_timeout": settings.connect_timeout,
        "protocol": 2,
        "driver_info": _DRIVER,
    }
    if on_connect is not None:
        options["redis_connect_func"] = on_connect
    if settings.password is not None:
        options["password"] = settings.password.get_secret_value()
    if settings.encrypted and settings.ca_file is not None:
        options["ssl_ca_certs"] = str(settings.ca_file)
    return options
