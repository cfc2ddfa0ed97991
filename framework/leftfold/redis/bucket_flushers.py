"""A flush in a cluster: each bucket on a connection of its own to the node that owns it, all under way at once."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from leftfold.flush import BucketFlush, Landed
from leftfold.ports import Flushing
from leftfold.redis.flusher import Flusher
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology
from leftfold.redis.wire import Dial

__all__ = ["BucketFlushers", "Flights"]

NOTHING_WRITTEN = Landed(written=False)


class Flights:
    """The flushes of several buckets, each of which lands or not by itself."""

    def __init__(self, flights: Sequence[Flushing], errors: Sequence[Exception]) -> None:
        self._flights, self._errors = flights, list(errors)

    def landed(self) -> bool:
        """Waits for all of them: True when everything is written; what is written otherwise, the marks tell."""
        landed = []
        for flight in self._flights:
            try:
                landed.append(flight.landed())
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
        ready = [flusher.is_ready(flush) for flusher, flush in pairs]
        if not all(ready):
            return NOTHING_WRITTEN
        flights: list[Flushing] = []
        errors: list[Exception] = []
        for flusher, flush in pairs:
            try:
                flights.append(flusher.begin(flush))
            except Exception as error:  # noqa: BLE001  # raised by `landed`: the others are under way
                errors.append(error)
        return Flights(flights, errors)

    def close(self) -> None:
        """Closes every connection."""
        with self._lock:
            flushers, self._flushers = list(self._flushers.values()), {}
        for flusher in flushers:
            flusher.close()

    def _of(self, bucket: int) -> Flusher:
        with self._lock:
            flusher = self._flushers.get(bucket)
            if flusher is None:
                flusher = self._flushers[bucket] = self._made(self._settings, self._dial, self._topology)
            return flusher
