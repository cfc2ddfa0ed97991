"""Translates the errors of redis-py, and types for the part of it that is used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

import hiredis
import redis

from leftfold.errors import ConfigurationError, ContractError, InfrastructureError, LeftfoldError
from leftfold.redis.connection.settings import RedisSettings

__all__ = [
    "Elsewhere",
    "Part",
    "Pipeline",
    "RedisClient",
    "executed",
    "refuse_errors",
    "translated",
    "unreachable",
    "what",
]


Part: TypeAlias = bytes | str | int


class _Commands(Protocol):
    def execute_command(self, *parts: Part) -> Any:
        """Sends a command, or queues it in a pipeline that is not watching."""

    def pipeline(self, transaction: bool = True) -> Pipeline:
        """Commands sent together."""


class Pipeline(_Commands, Protocol):
    """Commands sent together: watched, then queued behind `multi`."""

    def watch(self, *names: bytes) -> Any:
        """Sends commands at once from here on, until `multi`; `execute` fails if one of these keys changes."""

    def multi(self) -> None:
        """Queues what follows."""

    def execute(self) -> list[Any]:
        """Sends what was queued and returns the replies; raises WatchError when a watched key changed."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class RedisClient(_Commands, Protocol):
    """A pooled client."""

    def close(self) -> None:
        """Closes the pool."""


_ELSEWHERE = ("MOVED ", "ASK ", "TRYAGAIN")
_DENIED = ("NOPERM ", "NOAUTH ", "WRONGPASS ", "ERR AUTH ", "ERR RedisClient sent AUTH", "ERR invalid password")
"""How errors begin that say that a login, or a right of it, is missing."""
_OURS = re.compile(r"v:\{[^}]*\}[@#~!]?|view:[^\s:]*|members:[^\s:]*(:[^\s:]*)?")
"""What is shown of a key or a channel: whose it is, but not the row."""


class Elsewhere(ConnectionError):
    """A node of a cluster does not, or not alone, hold the slot of a key any more; nothing was done.

    A connection to it is of no more use for that key, so this is one of the errors of a lost connection.
    """


def unreachable(settings: RedisSettings, why: object) -> InfrastructureError:
    """The error for a server that does not answer."""
    return InfrastructureError(f"redis at {settings.address} is not reachable: {why}; {_next_step(settings)}")


def denied(settings: RedisSettings, why: object) -> ConfigurationError:
    """The error for a server that does not take a login, or does not let it do something."""
    return ConfigurationError(
        f"redis at {settings.address} denies user {settings.username or 'default'!r} a right: {why}; look at the URL "
        f"and the password of the settings, and at the ACLs of Redis (leftfold topics acl)"
    )


def what(command: bytes | Sequence[Part]) -> str:
    """A command as errors name it: its name, and the view that its first key or channel belongs to; nothing secret."""
    if isinstance(command, bytes):
        reader = hiredis.Reader()
        reader.feed(command)
        command = reader.gets()
    name, *arguments = [part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in command]
    key = _OURS.match(arguments[0]) if arguments else None
    return f"{name.upper()} {key[0]}" if key else name.upper()


def refused(settings: RedisSettings, error: object, command: bytes | Sequence[Part] | None = None) -> LeftfoldError:
    """The error for a server that answers with an error.

    Args:
        command: the one that was refused, packed or not.
    """
    if str(error).startswith(_DENIED):
        return denied(settings, error if command is None else f"{what(command)} ({error})")
    return InfrastructureError(f"redis at {settings.address} refused: {error}")


def refuse_errors(settings: RedisSettings, replies: Sequence[Any], commands: Sequence[bytes | Sequence[Part]]) -> None:
    """Raises for the first reply that is an error.

    Args:
        commands: those that were sent, in the order of the replies.

    Raises:
        Elsewhere: the key is on another node. ConfigurationError: the user lacks a right, or is not let in.
        InfrastructureError: anything else was refused.
    """
    for reply, command in zip(replies, commands, strict=False):
        if isinstance(reply, hiredis.ReplyError):
            if str(reply).startswith(_ELSEWHERE):
                raise Elsewhere(str(reply))
            raise refused(settings, reply, command)


def executed(settings: RedisSettings, reply: Any, commands: Sequence[bytes]) -> bool:
    """Whether EXEC ran, by its reply.

    Args:
        commands: those that were queued, from MULTI to EXEC.

    Raises:
        ContractError: a command failed inside it: a key is not what its name says, and the others were written.
        ConfigurationError: a right was taken away after it was queued; the others were written.
    """
    for number, error in enumerate(reply if isinstance(reply, list) else (), start=1):
        if isinstance(error, hiredis.ReplyError):
            if str(error).startswith(_DENIED):
                raise refused(settings, error, commands[number])
            raise ContractError(f"a key of this view holds something else ({error}); rebuild the view")
    return reply is not None


@contextmanager
def translated(settings: RedisSettings) -> Iterator[None]:
    """Turns errors of sockets and of redis-py into InfrastructureError, and of rights into ConfigurationError."""
    try:
        yield
    except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
        raise denied(settings, error) from error
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
