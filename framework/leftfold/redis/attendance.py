"""Who is there: one sorted set per group, its members scored by when they must have shown themselves again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leftfold.redis.commands import Client
from leftfold.redis.keys import members_key

__all__ = ["attend"]


def attend(client: Client, groups: Sequence[str], member: str, seconds: float) -> dict[str, tuple[str, ...]]:
    """Extends a member's stay in some groups, by the server's clock, and drops those whose time is over.

    0 seconds is a farewell, and no member a question, which writes nothing: who asks may have no right to.
    """
    now = _now(client)
    with client.pipeline(transaction=False) as pipe:
        for group in groups:
            key = members_key(group)
            if not member:
                pipe.execute_command("ZRANGEBYSCORE", key, f"({now!r}", "+inf")
                continue
            pipe.execute_command("ZADD", key, repr(now + seconds), member)
            pipe.execute_command("ZREMRANGEBYSCORE", key, "-inf", repr(now))
            pipe.execute_command("ZRANGE", key, 0, -1)
        replies: list[Any] = pipe.execute()
    if member:
        replies = replies[2::3]
    return {group: tuple(sorted(name.decode() for name in found)) for group, found in zip(groups, replies, strict=True)}


def _now(client: Client) -> float:
    seconds, micros = client.execute_command("TIME")
    return int(seconds) + int(micros) / 1e6
