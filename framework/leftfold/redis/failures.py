"""What goes wrong with Redis, in Leftfold's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import hiredis

import redis
from leftfold.errors import InfrastructureError
from leftfold.redis.settings import RedisSettings

__all__ = ["refuse_errors", "refused", "translated", "unreachable"]


def unreachable(settings: RedisSettings, why: object) -> InfrastructureError:
    """The error for a server that does not answer."""
    return InfrastructureError(f"redis at {settings.address} is not reachable: {why}; start it: leftfold up")


def refused(settings: RedisSettings, why: object) -> InfrastructureError:
    """The error for a server that answers with an error."""
    return InfrastructureError(f"redis at {settings.address} refused a command: {why}")


def refuse_errors(settings: RedisSettings, replies: Iterable[Any]) -> None:
    """Raises InfrastructureError for the first reply that is an error."""
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            raise refused(settings, reply)


@contextmanager
def translated(settings: RedisSettings) -> Iterator[None]:
    """Turns errors of sockets and of redis-py into InfrastructureError."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        raise unreachable(settings, error) from error
    except redis.RedisError as error:
        raise refused(settings, error) from error
