"""A flush in a cluster: each bucket on a connection of its own to the node that owns it, all under way at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Lock

from leftfold.flush import BucketFlush, Landed
from leftfold.ports import Flushing
from leftfold.redis.flusher import Flight, Flusher
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology
from leftfold.redis.wire import Dial

__all__ = ["BucketFlushers", "Flights"]

NOTHING_WRITTEN = Landed(written=False)
_LEAST = 0.05
"""Seconds for an answer that is there already, when others have used the patience up."""


class Flights:
    """The flushes of several buckets, each of which lands or not by itself.

    Args:
        errors: of buckets that could not even be sent. patience: seconds for all of them together.
    """

    def __init__(self, flights: Sequence[Flight], errors: Sequence[Exception], patience: float) -> None:
        self._flights, self._errors, self._patience = flights, list(errors), patience

    def landed(self) -> bool:
        """Waits for all of them: True when everything is written; what is written otherwise, the marks tell."""
        landed, deadline = [], time.monotonic() + self._patience
        for flight in self._flights:
            try:
                landed.append(flight.landed(max(_LEAST, deadline - time.monotonic())))
            except Exception as error:  # noqa: BLE001  # raised below, when nothing is under way any more
                self._errors.append(error)
        if self._errors:
            raise self._errors[0]
        return all(landed)


class BucketFlushers:
    """Flushes the buckets of one generation, which are in as many slots.

    EXEC ends every WATCH of its connection, and a transaction holds keys of one slot only. So each bucket has a flusher
    and a connection of its own; what a bucket is sent does not wait for what another one answers. A writer that was
    overtaken in one bucket sends nothing to any; only what happens while flushes are under way can part them.
    """

    def __init__(self, settings: RedisSettings, dial: Dial, made: type[Flusher], topology: Topology) -> None:
        self._settings, self._dial, self._made, self._topology = settings, dial, made, topology
        self._lock = Lock()
        self._flushers: dict[int, Flusher] = {}

    def begin(self, flushes: Sequence[BucketFlush]) -> Flushing:
        """Sends each bucket's flush to its node, but nothing at all when one token is not the expected one.

        Raises:
            InfrastructureError: a node cannot be reached; nothing was written.
        """
        pairs = [(self._of(flush.bucket), [flush]) for flush in flushes]
        if not self._are_ready(pairs):
            return NOTHING_WRITTEN
        flights: list[Flight] = []
        errors: list[Exception] = []
        for flusher, flush in pairs:
            try:
                flights.append(flusher.begin(flush))
            except Exception as error:  # noqa: BLE001  # raised by `landed`: the others are under way
                errors.append(error)
        return Flights(flights, errors, self._settings.timeout)

    def close(self) -> None:
        """Closes every connection."""
        with self._lock:
            flushers, self._flushers = list(self._flushers.values()), {}
        for flusher in flushers:
            flusher.close()

    def _are_ready(self, pairs: Sequence[tuple[Flusher, Sequence[BucketFlush]]]) -> bool:
        """Whether all are; the tokens of all are looked at, for those that differ are read anew the next time."""
        ready = True
        for flusher, flush in pairs:
            ready = flusher.is_ready(flush) and ready
            if not flusher.connected:
                return False  # a node that hangs has no more answers for its other buckets
        return ready

    def _of(self, bucket: int) -> Flusher:
        with self._lock:
            flusher = self._flushers.get(bucket)
            if flusher is None:
                flusher = self._flushers[bucket] = self._made(self._settings, self._dial, self._topology)
            return flusher
