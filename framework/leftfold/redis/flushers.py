"""A flusher per generation, so that each keeps its own marks watched."""

from __future__ import annotations

from threading import Lock
from typing import TypeAlias

from leftfold.flush import Generation
from leftfold.redis.bucket_flushers import BucketFlushers
from leftfold.redis.flusher import Flusher
from leftfold.redis.settings import RedisSettings
from leftfold.redis.topology import Topology, topology_of
from leftfold.redis.wire import Dial

__all__ = ["Flushers"]

_MOST = 64
_Flusher: TypeAlias = Flusher | BucketFlushers


class Flushers:
    """Hands out flushers; those not used for longest are closed when there are too many.

    Args:
        made: how a flusher for keys on one server is made.
    """

    def __init__(
        self, settings: RedisSettings, dial: Dial, made: type[Flusher] = Flusher, topology: Topology | None = None
    ) -> None:
        self._settings, self._dial, self._made = settings, dial, made
        self._topology = topology or topology_of(settings, dial)
        self._lock = Lock()
        self._flushers: dict[tuple[str, str], _Flusher] = {}

    def of(self, generation: Generation) -> _Flusher:
        """The flusher of a generation."""
        name = generation.view, generation.id
        with self._lock:
            flusher = self._flushers.pop(name, None) or self._new()
            self._flushers[name] = flusher
            if len(self._flushers) > _MOST:
                self._flushers.pop(next(iter(self._flushers))).close()
        return flusher

    def forget(self, generation: Generation) -> None:
        """Closes a generation's flusher if there is one."""
        with self._lock:
            flusher = self._flushers.pop((generation.view, generation.id), None)
        if flusher is not None:
            flusher.close()

    def close(self) -> None:
        """Closes them all."""
        with self._lock:
            flushers = list(self._flushers.values())
            self._flushers.clear()
        for flusher in flushers:
            flusher.close()

    def _new(self) -> _Flusher:
        if self._topology.spread:
            return BucketFlushers(self._settings, self._dial, self._made, self._topology)
        return self._made(self._settings, self._dial, self._topology)
