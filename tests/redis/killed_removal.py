"""A process that is killed while it removes a generation from Redis, or while it makes one."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from redis.connection import Connection

from leftfold.engine.views.cleanup import remove
from leftfold.engine.views.generations import open_generation
from leftfold.ports.flush import Generation, Phase, Registry, While
from leftfold.redis import RedisSettings, RedisViewStore
from tests.domains.ledger import summary

TOPICS = {"ledgers.events": 4}


class _Fatal(RedisViewStore):
    """A store that does not live to see the end of what it begins."""

    def __init__(self, settings: RedisSettings, last: int) -> None:
        super().__init__(settings)
        self._last = last

    def unlink(self, generation: Generation) -> None:
        """Dies in the middle of one of the writes."""
        _die_in(self._last)
        super().unlink(generation)

    def change_registry(self, view: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
        """Dies where a generation would be registered."""
        if len(after.generations) > len(before.generations):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().change_registry(view, before, after, while_)


def _die_in(last: int) -> None:
    """Ends the process halfway through the n-th thing that it sends to Redis from now on."""
    whole, count = Connection.send_packed_command, 0

    def send(self: Any, command: Any, check_health: bool = True) -> None:
        nonlocal count
        count += 1
        if count == last:
            data = command if isinstance(command, bytes) else b"".join(command)
            self._sock.sendall(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        whole(self, command, check_health)  # type: ignore[no-untyped-call]  # redis-py has no type for it

    Connection.send_packed_command = send  # type: ignore[method-assign]  # in this process, for its last moments


def main(url: str, victim: str, last: int) -> None:
    """Removes the generation of an id, or makes one when there is none."""
    store = _Fatal(RedisSettings(url=url), last)
    if victim:
        remove(store, store.registry(summary.name).generations[victim])
    else:
        open_generation(store, summary, TOPICS, Phase.SEALED)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
