"""A rebuild in a process of its own, which is killed inside one of its writes to Redis, on a log that others know."""

from __future__ import annotations

import os
import signal
import sys
from datetime import UTC, datetime
from functools import partial
from typing import Any

from leftfold import memory
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.memory import World
from leftfold.model.view import View
from leftfold.ports.bulk import CommittedLog
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.redis import bulk_load as sink
from tests.domains.ledger import app, histories, stranger

FOLD = "tests"
CHUNK_ROWS = 2
"""So that a bucket takes several writes."""


class Fatal(RedisBulkSink):
    """A sink whose process is killed at one of its writes; it counts those of all sinks."""

    sent = 0
    last = 0

    def _send(self, checkpoint: bytes, commands: list[bytes]) -> None:
        Fatal.sent += 1
        if Fatal.sent == Fatal.last:
            # What is written is in a transaction that never ends.
            super()._send(checkpoint, commands[: len(commands) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        super()._send(checkpoint, commands)


def whole_log() -> World:
    """The log that the killed one read."""
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send_many(list(histories(stranger(5), 400)))
        return world


def rebuild_of(
    view: View[Any, Any], world: World, store: RedisViewStore, kind: type[RedisBulkSink] = RedisBulkSink, **told: Any
) -> Rebuild:
    """A rebuild of a view that goes on where one of the same code ended."""
    return Rebuild(
        view,
        store,
        open_log=lambda: CommittedLog(world.log.reader()),
        open_reader=world.log.reader,
        open_sink=partial(kind, store._settings),
        options=RebuildOptions(**{"keep": 0, "fold": FOLD, "patience": 0.0, **told}),
    )


def main(url: str, view: str, last: int) -> None:
    """Rebuilds a view and prints how often it wrote, unless it is killed before."""
    sink.CHUNK_ROWS = CHUNK_ROWS
    Fatal.last = last
    store = RedisViewStore(RedisSettings(url=url))
    rebuild_of(app.view(view), whole_log(), store, Fatal, hold=last < 0).run()
    store.close()
    print(Fatal.sent)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
