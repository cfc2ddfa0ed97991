"""Flushes as tests write them, flushers that lack what the real one has, and sockets that count and break."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from redis.crc import key_slot

from leftfold.ports.flush import BucketFlush, Generation, Phase
from leftfold.ports.notifications import Waiter
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.protocol import connect
from leftfold.redis.flusher import Flusher, PendingFlush
from leftfold.redis.keys import BucketKeys
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from tests.redis.cluster_set import ClusterSet
from tests.redis.server import RedisServer

__all__ = [
    "BUCKETS",
    "Blind",
    "Line",
    "Repeating",
    "flushes",
    "hears",
    "is_notified",
    "new_marked",
    "new_spread",
    "numbered",
    "owners_of",
    "rows",
    "slot_of",
    "tokens",
]

BUCKETS = 6
"""Of a generation with buckets on every master."""


def new_marked(store: RedisViewStore, buckets: int, phase: Phase = Phase.SEALED) -> Generation:
    """An empty generation with its checkpoints."""
    generation = new_generation(buckets).in_phase(phase)
    assert store.create_marks(generation, dict.fromkeys(range(buckets), replace(checkpoint("", 0), phase=phase)))
    return generation


def new_spread(cluster: ClusterSet, store: RedisViewStore) -> Generation:
    """An empty generation with buckets on every master."""
    for _ in count():
        generation = new_generation(buckets=BUCKETS)
        if len({owner.port for owner in owners_of(cluster, generation)}) == 3:
            break
    assert store.create_marks(generation, {bucket: checkpoint("", 0) for bucket in range(BUCKETS)})
    return generation


def owners_of(cluster: ClusterSet, generation: Generation) -> list[RedisServer]:
    """The node of each bucket, by number."""
    return cluster.owners(slot_of(generation, bucket) for bucket in range(generation.buckets))


def slot_of(generation: Generation, bucket: int) -> int:
    return int(key_slot(BucketKeys(generation, bucket).checkpoint))


def flushes(generation: Generation, expected: str, token: str, name: str) -> list[BucketFlush]:
    """A flush of all buckets with one new row each."""
    return [flush_of(generation, b, expected, token, row(f"{name}{b}")) for b in range(generation.buckets)]


def numbered(generation: Generation, bucket: int, number: int) -> BucketFlush:
    """The flush that takes one row and the checkpoint to a number, and adds a row."""
    expected = "" if number == 1 else f"t{number - 1}"
    change = row("a")._replace(fields=(b"%d" % number, b"S"))
    return flush_of(generation, bucket, expected, f"t{number}", change, row(f"r{number:05d}"), at=number)


def tokens(store: RedisViewStore, generation: Generation) -> list[str]:
    return [found.token for _, found in sorted(store.checkpoints(generation).items())]


def rows(store: RedisViewStore, generation: Generation, *buckets: int) -> list[str]:
    """The row keys of some buckets, or of all."""
    return [key for bucket in buckets or range(generation.buckets) for key in store.keys(generation, bucket, "", 9999)]


def is_notified(waiter: Waiter) -> bool:
    """Whether it did, since this was asked last."""
    notified = waiter._notified.is_set()
    waiter._notified.clear()
    return notified


def hears(store: RedisViewStore, generation: Generation) -> bool:
    """Whether the store's thread is subscribed at this moment."""
    client = store._background._client
    return client is not None and client.subscriber.is_subscribed(generation)


class Repeating(Flusher):
    """Sends a flush once more when it does not know what became of it, as clients that retry do."""

    def begin(self, flushes: Sequence[BucketFlush]) -> PendingFlush:
        """Waits for the outcome, and begins again unless it is good."""
        flight = super().begin(flushes)
        return flight if flight.landed() else super().begin(flushes)


class Blind(Repeating):
    """Does not compare tokens either."""

    def has_expected_tokens(self, flushes: Sequence[BucketFlush], tokens: dict[bytes, bytes | None]) -> bool:
        """Whatever is there will do."""
        return True


class _Socket(socket.socket):
    line: Line
    broken = False

    def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]  # only bytes are sent
        """Sends everything, or what the line lets through, and then is dead."""
        line, at = self.line, data.find(b"*1\r\n$4\r\nEXEC")
        line.writes += 1
        if at >= 0 and (between := line.between) is not None:
            line.between = None
            super().sendall(data[:at], flags)
            between()
            data = data[at:]
        share, line.let_through = line.let_through, None
        super().sendall(data if share is None else data[: int(len(data) * share)], flags)
        if share is not None:
            line.sent_until_broken = int(len(data) * share)
            self.broken = True
            if share < 1:
                self.shutdown(socket.SHUT_RDWR)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """What the server says, and nothing more once the line is broken, even if it has come."""
        return b"" if self.broken else super().recv(bufsize, flags)


class Line:
    """Opens sockets and counts their writes.

    Attributes:
        let_through: the share of the next write that still goes out before the line breaks; 1 loses only the answer.
        between: what happens, once, between the last queued command of a transaction and its EXEC.
    """

    def __init__(self) -> None:
        self.writes = 0
        self.sent_until_broken = 0
        self.let_through: float | None = None
        self.between: Callable[[], object] | None = None

    def connect(self, settings: RedisSettings) -> socket.socket:
        plain = connect(settings)
        watched = _Socket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        watched.line = self
        return watched
