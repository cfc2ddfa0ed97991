"""What goes wrong with Redis, in Leftfold's words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import hiredis
import redis

from leftfold.errors import ContractError, InfrastructureError
from leftfold.redis.settings import RedisSettings

__all__ = ["Elsewhere", "executed", "refuse_errors", "refused", "translated", "unreachable"]

_ELSEWHERE = ("MOVED ", "ASK ", "TRYAGAIN")


class Elsewhere(ConnectionError):
    """A node of a cluster does not, or not alone, hold the slot of a key any more; nothing was done.

    A connection to it is of no more use for that key, so this is one of the errors of a lost connection.
    """


def unreachable(settings: RedisSettings, why: object) -> InfrastructureError:
    """The error for a server that does not answer."""
    return InfrastructureError(f"redis at {settings.address} is not reachable: {why}; {_next_step(settings)}")


def refused(settings: RedisSettings, why: object) -> InfrastructureError:
    """The error for a server that answers with an error."""
    return InfrastructureError(f"redis at {settings.address} refused: {why}")


def refuse_errors(settings: RedisSettings, replies: Iterable[Any]) -> None:
    """Raises for the first reply that is an error: Elsewhere or InfrastructureError."""
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            if str(reply).startswith(_ELSEWHERE):
                raise Elsewhere(str(reply))
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
    except redis.exceptions.AskError as error:
        why = f"slot {error.slot_id} has been on the move for {settings.timeout:g} s"
        raise InfrastructureError(f"redis at {settings.address}: {why}; {_next_step(settings)}") from error
    except redis.RedisError as error:
        raise refused(settings, error) from error


def _next_step(settings: RedisSettings) -> str:
    host, port = settings.nodes[0] if settings.nodes else ("", 0)
    match settings.kind:
        case "server":
            return "start it: leftfold up"
        case "sentinel":
            return f"who leads? redis-cli -h {host} -p {port} sentinel master {settings.service}"
        case "cluster":
            return f"which node is missing? redis-cli --cluster check {host}:{port}"
