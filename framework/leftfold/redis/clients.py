"""The redis-py client for what threads do besides flushing: pooled, never retrying on its own."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from leftfold.redis.commands import Client
from leftfold.redis.settings import RedisSettings

__all__ = ["open_client"]


def open_client(settings: RedisSettings) -> Client:
    """A client for threads; more readers than connections wait for one."""
    pool: Any = redis.BlockingConnectionPool.from_url(
        settings.url, retry=Retry(NoBackoff(), 0), **_connection(settings)
    )
    client: Client = redis.Redis.from_pool(pool)
    return client


def _connection(settings: RedisSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "max_connections": settings.connections,
        "timeout": settings.timeout,
        "socket_timeout": settings.timeout,
        "socket_connect_timeout": settings.connect_timeout,
        "protocol": 2,
    }
    if settings.password is not None:
        options["password"] = settings.password.get_secret_value()
    if settings.encrypted and settings.ca_file is not None:
        options["ssl_ca_certs"] = str(settings.ca_file)
    return options
