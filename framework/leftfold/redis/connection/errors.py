"""Translation of redis-py errors to Leftfold's, and types for the part of redis-py that is used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import hiredis
import redis

from leftfold.errors import ConfigurationError, ContractError, InfrastructureError, LeftfoldError
from leftfold.redis.connection.settings import RedisSettings

__all__ = [
    "Command",
    "Part",
    "Pipeline",
    "SlotMoved",
    "describe_command",
    "ended",
    "error_in",
    "executed",
    "name_command",
    "refuse_errors",
    "translated",
    "unreachable",
]


Part: TypeAlias = bytes | str | int
Command: TypeAlias = tuple[Part, ...]


class Pipeline(Protocol):
    """A transaction on one server."""

    def execute_command(self, *parts: Part) -> Any:
        """Queues a command; sends it at once between `watch` and `multi`."""

    def watch(self, *names: bytes) -> Any:
        """Sends commands at once from here until `multi`; `execute` fails if one of these keys changes."""

    def multi(self) -> None:
        """Queues the following commands."""

    def execute(self) -> list[Any]:
        """Sends the queued commands and returns the replies; raises WatchError when a watched key changed."""


_ELSEWHERE = ("MOVED ", "ASK ", "TRYAGAIN")
_DENIED = ("NOPERM ", "NOAUTH ", "WRONGPASS ", "ERR AUTH ", "ERR Client sent AUTH", "ERR invalid password")
"""Prefixes of error replies to a failed login or a missing right."""
_OURS = re.compile(r"v:\{[^}]*\}[@#~!]?|view:[^\s:]*|members:[^\s:]*(:[^\s:]*)?")
"""The part of a key or a channel that messages show: the view, but not the row."""


class SlotMoved(ConnectionError):
    """A cluster node no longer owns the slot of a key, or not alone; nothing was done.

    The connection cannot be used for that key any more, so this counts as a lost connection.
    """


_ERRORS: dict[str, type[redis.RedisError]] = {
    "MOVED": redis.exceptions.MovedError,
    "ASK": redis.exceptions.AskError,
    "TRYAGAIN": redis.exceptions.TryAgainError,
    "NOPERM": redis.exceptions.NoPermissionError,
    "NOAUTH": redis.AuthenticationError,
    "READONLY": redis.ReadOnlyError,
    "LOADING": redis.BusyLoadingError,
}


def error_in(reply: hiredis.ReplyError) -> redis.RedisError:
    """The error that redis-py would raise for an error reply."""
    kind, _, rest = str(reply).partition(" ")
    return _ERRORS.get(kind, redis.ResponseError)(rest if kind in ("MOVED", "ASK") else str(reply))


def unreachable(settings: RedisSettings, why: object) -> InfrastructureError:
    """The error for a server that cannot be reached."""
    return InfrastructureError(f"redis at {settings.address} is not reachable: {why}; {_next_step(settings)}")


def ended(settings: RedisSettings) -> InfrastructureError:
    """The error for the use of a connection that was closed."""
    return InfrastructureError(f"the connection to redis at {settings.address} is closed; connect again: connect(app)")


def denied(settings: RedisSettings, why: object) -> ConfigurationError:
    """The error for a refused login or a missing right."""
    return ConfigurationError(
        f"redis at {settings.address} denies user {settings.username or 'default'!r} a right: {why}; check the URL "
        f"and the password in the settings, and the ACLs of Redis (leftfold topics acl)"
    )


def describe_command(command: bytes | Sequence[Part]) -> str:
    """A command for messages: its name, and the view of its first key or channel; nothing secret."""
    if isinstance(command, bytes):
        reader = hiredis.Reader()
        reader.feed(command)
        command = reader.gets()
    name, *arguments = [part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in command]
    key = _OURS.match(arguments[0]) if arguments else None
    return f"{name.upper()} {key[0]}" if key else name.upper()


def name_command(error: Exception, command: Sequence[Part]) -> None:
    """Adds the command to the error of a missing right."""
    if isinstance(error, redis.exceptions.NoPermissionError):
        error.args = (f"{describe_command(command)} ({error})",)


def refused(settings: RedisSettings, error: object, command: bytes | Sequence[Part] | None = None) -> LeftfoldError:
    """The error for an error reply of a server.

    Args:
        command: the refused command, packed or not.
    """
    if str(error).startswith(_DENIED):
        return denied(settings, error if command is None else f"{describe_command(command)} ({error})")
    return InfrastructureError(f"redis at {settings.address} refused: {error}")


def refuse_errors(settings: RedisSettings, replies: Sequence[Any], commands: Sequence[bytes | Sequence[Part]]) -> None:
    """Raises for the first error among the replies.

    Args:
        commands: the commands sent, in the order of the replies.

    Raises:
        SlotMoved: the key is on another node. ConfigurationError: the login failed, or the user lacks a right.
        InfrastructureError: any other refusal.
    """
    for reply, command in zip(replies, commands, strict=False):
        if isinstance(reply, hiredis.ReplyError):
            if str(reply).startswith(_ELSEWHERE):
                raise SlotMoved(str(reply))
            raise refused(settings, reply, command)


def executed(settings: RedisSettings, reply: Any, commands: Sequence[bytes]) -> bool:
    """Whether EXEC ran the transaction, by its reply.

    Args:
        commands: the queued commands, from MULTI to EXEC.

    Raises:
        ContractError: a command failed inside it, because a key has another type; the others were written.
        ConfigurationError: a right was revoked after a command was queued; the others were written.
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
        if settings.kind == "server":
            raise ConfigurationError(
                f"redis at {settings.address} is a node of a cluster, and the key is on another node; write "
                f"redis+cluster:// (or rediss+cluster://) in the URL"
            ) from error
        why = f"slot {error.slot_id} has been on the move for {settings.timeout:g} s"
        raise InfrastructureError(f"redis at {settings.address}: {why}; {_next_step(settings)}") from error
    except redis.RedisError as error:
        raise refused(settings, error) from error


def _next_step(settings: RedisSettings) -> str:
    host, port = settings.nodes[0] if settings.nodes else ("", 0)
    match settings.kind:
        case "server":
            return settings.advice
        case "sentinel":
            return f"find the master: redis-cli -h {host} -p {port} sentinel master {settings.service}"
        case "cluster":
            return f"find the missing node: redis-cli --cluster check {host}:{port}"
