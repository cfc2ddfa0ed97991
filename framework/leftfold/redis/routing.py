"""What blocking and asyncio clients of several servers have in common: which key, which server, what to do again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import redis
from redis.crc import key_slot

from leftfold.redis.commands import Part
from leftfold.redis.failures import what
from leftfold.redis.settings import RedisSettings

__all__ = [
    "PAUSE",
    "Batches",
    "Command",
    "astray",
    "by_server",
    "is_elsewhere",
    "key_of",
    "lost",
    "name_denied",
    "without_errors",
]

Command: TypeAlias = tuple[Part, ...]
Batches: TypeAlias = dict[str, tuple[RedisSettings, list[int]]]

PAUSE = 0.02
"""Seconds between looks at a slot that is on the move."""
_ELSEWHERE = (redis.exceptions.AskError, redis.exceptions.TryAgainError)
_LOST = (redis.ConnectionError, redis.TimeoutError, OSError)
_KEYLESS = frozenset(("TIME", "PING", "PUBLISH", "SUBSCRIBE", "UNSUBSCRIBE", "ROLE", "INFO"))


def key_of(command: Command) -> bytes:
    """The key that says where a command goes; '' for one that any server can serve."""
    name = str(command[0]).upper() if not isinstance(command[0], bytes) else command[0].decode().upper()
    match name:
        case "XREAD":
            parts = [part.decode() if isinstance(part, bytes) else str(part) for part in command]
            key: Part = command[[part.upper() for part in parts].index("STREAMS") + 1]
        case _:
            key = "" if name in _KEYLESS or len(command) < 2 else command[1]
    return key if isinstance(key, bytes) else str(key).encode()


def by_server(servers: Iterable[RedisSettings]) -> Batches:
    """Which of some commands go to which server, by their numbers."""
    batches: Batches = {}
    for number, server in enumerate(servers):
        batches.setdefault(server.url, (server, []))[1].append(number)
    return batches


def is_elsewhere(reply: Any) -> bool:
    """Whether a node answered MOVED, ASK or TRYAGAIN."""
    return isinstance(reply, _ELSEWHERE)


def lost(error: BaseException) -> bool:
    """Whether a connection was lost."""
    return isinstance(error, _LOST)


def without_errors(commands: Sequence[Command], replies: list[Any]) -> list[Any]:
    """The replies; raises the first of them that is an error, and lets it name a command that was denied."""
    for command, reply in zip(commands, replies, strict=True):
        if isinstance(reply, Exception):
            name_denied(reply, command)
            raise reply
    return replies


def name_denied(error: Exception, command: Sequence[Part]) -> None:
    """Lets the error of a missing right say which command it is about."""
    if isinstance(error, redis.exceptions.NoPermissionError):
        error.args = (f"{what(command)} ({error})",)


def astray(commands: Sequence[Command], replies: Sequence[Any]) -> list[int]:
    """The numbers of all commands on slots of which some command was sent elsewhere.

    All of a slot are asked again, in their order: what one read says of another holds only while their order does.
    """
    slots = {key_slot(key_of(c)) for c, reply in zip(commands, replies, strict=True) if is_elsewhere(reply)}
    return [number for number, command in enumerate(commands) if key_slot(key_of(command)) in slots] if slots else []
