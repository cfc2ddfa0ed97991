"""What goes wrong with Redis, in Leftfold's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import hiredis
import redis

from leftfold.errors import ContractError, InfrastructureError
from leftfold.redis.settings import RedisSettings

__all__ = ["executed", "refuse_errors", "refused", "translated", "unreachable"]


def unreachable(settings: RedisSettings, why: object) -> InfrastructureError:
    """The error for a server that does not answer."""
    return InfrastructureError(f"redis at {settings.address} is not reachable: {why}; start it: leftfold up")


def refused(settings: RedisSettings, why: object) -> InfrastructureError:
    """The error for a server that answers with an error."""
    return InfrastructureError(f"redis at {settings.address} refused: {why}")


def refuse_errors(settings: RedisSettings, replies: Iterable[Any]) -> None:
    """Raises InfrastructureError for the first reply that is an error."""
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            raise refused(settings, reply)


def executed(reply: Any) -> bool:
    """Whether EXEC ran, by its reply.

    Raises:
        ContractError: a command failed inside it: a key is not what its name says, and the others were written.
    """
    for error in reply if isinstance(reply, list) else ():
        if isinstance(error, hiredis.ReplyError):
            raise ContractError(f"a key of this view holds something else ({error}); rebuild the view")
    return reply is not None


@contextmanager
def translated(settings: RedisSettings) -> Iterator[None]:
    """Turns errors of sockets and of redis-py into InfrastructureError."""
    try:
        yield
    except redis.AuthenticationError as error:
        raise refused(settings, error) from error
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        raise unreachable(settings, error) from error
    except redis.RedisError as error:
        raise refused(settings, error) from error
