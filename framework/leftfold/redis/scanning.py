"""Looking through the keys of every server, without stopping anybody."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence

from leftfold.engine.bulk_store import Registries, Stored
from leftfold.redis.commands import Client, Part
from leftfold.redis.keys import OF_BUCKETS, REGISTRIES, bucket_of, registered_view
from leftfold.redis.routed import RoutedClient
from leftfold.redis.topology import Topology

__all__ = ["registered", "stored"]

_AT_ONCE = 1000
"""How many keys a server looks at before it serves others."""


def stored(client: Client, topology: Topology, views: Collection[str], seconds: float) -> Stored:
    """The generations of some views that have keys on any server.

    While the slots of a cluster move, a bucket may be found on two servers; that counts once.
    """
    buckets: dict[tuple[str, str], int] = {}
    look = _Look(client, topology, seconds)
    for keys in look.keys("MATCH", OF_BUCKETS):
        for view, id_, bucket in filter(None, map(bucket_of, keys)):
            if view in views:
                buckets[view, id_] = max(buckets.get((view, id_), 0), bucket + 1)
    return Stored(buckets, look.whole)


def registered(client: Client, topology: Topology, seconds: float) -> Registries:
    """The views of which any server has a registry."""
    look = _Look(client, topology, seconds)
    views = {view for keys in look.keys("MATCH", REGISTRIES, "TYPE", "hash") for view in map(registered_view, keys)}
    return Registries(frozenset(view for view in views if view is not None), look.whole)


class _Look:
    """A look through the keys of every server, for so many seconds at most; `whole` says whether it came to its end."""

    def __init__(self, client: Client, topology: Topology, seconds: float) -> None:
        self._client, self._topology, self._until = client, topology, time.monotonic() + seconds
        self.whole = False

    def keys(self, *what: Part) -> Iterator[list[bytes]]:
        """The keys that some words of SCAN choose, in portions."""
        client = self._client
        try:
            for server in self._topology.hearers():
                for keys in _scanned(client.of(server) if isinstance(client, RoutedClient) else client, what):
                    yield keys
                    if time.monotonic() > self._until:
                        return
        except Exception as error:
            self._topology.met(error)
            raise
        self.whole = True


def _scanned(client: Client, what: Sequence[Part]) -> Iterator[list[bytes]]:
    """Chosen keys of one server, in portions."""
    cursor = 0
    while True:
        found, keys = client.execute_command("SCAN", cursor, *what, "COUNT", _AT_ONCE)
        yield keys
        cursor = int(found)
        if not cursor:
            return
