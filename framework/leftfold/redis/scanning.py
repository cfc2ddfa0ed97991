"""Looking through the keys of every server, without stopping anybody."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from leftfold.engine.bulk_store import Stored
from leftfold.redis.commands import Client
from leftfold.redis.keys import OF_BUCKETS, bucket_of
from leftfold.redis.routed import RoutedClient
from leftfold.redis.topology import Topology

__all__ = ["stored"]

_AT_ONCE = 1000
"""How many keys a server looks at before it serves others."""


def stored(client: Client, topology: Topology, views: Collection[str], seconds: float) -> Stored:
    """The generations of some views that have keys on any server.

    While the slots of a cluster move, a bucket may be found on two servers; that counts once.
    """
    buckets: dict[tuple[str, str], int] = {}
    until = time.monotonic() + seconds
    try:
        for server in topology.hearers():
            for keys in _scanned(client.of(server) if isinstance(client, RoutedClient) else client):
                for view, id_, bucket in filter(None, map(bucket_of, keys)):
                    if view in views:
                        buckets[view, id_] = max(buckets.get((view, id_), 0), bucket + 1)
                if time.monotonic() > until:
                    return Stored(buckets, whole=False)
    except Exception as error:
        topology.met(error)
        raise
    return Stored(buckets)


def _scanned(client: Client) -> Iterator[list[bytes]]:
    """Every key of one server that belongs to a bucket and is no row, in portions."""
    cursor = 0
    while True:
        found, keys = client.execute_command("SCAN", cursor, "MATCH", OF_BUCKETS, "COUNT", _AT_ONCE)
        yield keys
        cursor = int(found)
        if not cursor:
            return
