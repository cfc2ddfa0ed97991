"""How often a server was asked for what."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.redis.server import RedisServer

__all__ = ["calls", "counted"]


def calls(server: RedisServer) -> dict[str, int]:
    """How often each command was called so far."""
    with server.client() as client:
        found: dict[str, Any] = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): told["calls"] for name, told in found.items()}


@contextmanager
def counted(server: RedisServer) -> Iterator[dict[str, int]]:
    """What is called within the block."""
    before, counts = calls(server), dict[str, int]()
    yield counts
    counts |= {name: count - before.get(name, 0) for name, count in calls(server).items()}
