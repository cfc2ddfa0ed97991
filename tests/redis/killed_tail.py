"""A projector in a process of its own, which is killed inside one of its writes to Redis."""

from __future__ import annotations

import os
import signal
import socket
import sys
from datetime import UTC, datetime

from leftfold import memory
from leftfold.engine.views.projector import Projector
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.protocol import dial, packed
from leftfold.redis.flusher import Flusher, Flushers
from tests.domains.ledger import app, histories, stranger

BATCH = 20
COMMANDS = 500


class _Torn(Flusher):
    """The twin: the same commands without their transaction."""

    def at_once(self, commands: list[bytes]) -> list[bytes]:
        """Commands one after another."""
        return [*commands, packed(b"PING")]


class _Fatal(socket.socket):
    """A socket whose writes end the process at one of them, halfway or behind it, before any answer."""

    writes = 0
    last = 0
    share = 0.5

    def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]  # only bytes are sent
        """Sends everything, or a share of it and dies."""
        _Fatal.writes += 1
        if _Fatal.writes == _Fatal.last:
            super().sendall(data[: int(len(data) * self.share)])
            os.kill(os.getpid(), signal.SIGKILL)
        super().sendall(data, flags)


def fatal_dial(settings: RedisSettings) -> socket.socket:
    """Opens a connection as the adapter would."""
    plain = dial(settings)
    return _Fatal(plain.family, plain.type, plain.proto, fileno=plain.detach())


def main(url: str, seed: int, last: int, how: str) -> None:
    """Folds the history of a seed; the process is killed at its last write, or ends by itself when it has fewer."""
    _Fatal.last = last
    _Fatal.share = 1.0 if how == "behind" else 0.5
    settings = RedisSettings(url=url)
    store = RedisViewStore(settings, fatal_dial)
    if how == "torn":
        store._flushers = Flushers(settings, fatal_dial, _Torn)
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send_many(list(histories(stranger(seed), COMMANDS)))
        tail = Projector(app.views, world.log.reader, store, look=0.0, batch=BATCH, growth=3, member="tail")
        while tail.step(0.0) or not tail.caught_up():
            pass
        tail.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
