"""Maintenance of Redis keys: scans and removal in small steps, and a check of the eviction policy."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import redis

from leftfold.errors import ConfigurationError
from leftfold.ports.bulk import Registries, Stored
from leftfold.redis.connection.errors import Part, translated
from leftfold.redis.connection.server import open_server
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.connection.sync import RoutedClient
from leftfold.redis.connection.topology import topology_of
from leftfold.redis.keys import OF_BUCKETS, REGISTRIES, BucketKeys, bucket_of, registered_view

__all__ = ["refuse_eviction", "registered", "stored", "unlink_bucket"]


_EVICTS = "allkeys-"
"""Prefix of the policies that evict keys without a time to live; no key of a view has one."""


def refuse_eviction(settings: RedisSettings) -> str:
    """The `maxmemory-policy` of the servers, sorted, with commas; '' when they refuse to say.

    Raises:
        ConfigurationError: a policy evicts keys of any kind: rows would go missing, and no check could notice.
        InfrastructureError: a server cannot be reached.
    """
    policies: set[str] = set()
    with translated(settings):
        for server in topology_of(settings).masters():
            policy = _policy(server)
            if policy.startswith(_EVICTS):
                at = f"-s {server.socket_path}" if server.socket_path else f"-h {server.host} -p {server.port}"
                raise ConfigurationError(
                    f"redis at {server.address} has maxmemory-policy {policy}, which drops rows of views unnoticed; "
                    f"set it in redis.conf or type: redis-cli {at} config set maxmemory-policy noeviction"
                )
            policies.add(policy)
    return ", ".join(sorted(filter(None, policies)))


def _policy(server: RedisSettings) -> str:
    """The policy of a server, by CONFIG where that is allowed, else by INFO; '' where both are refused."""
    policy = ""
    with closing(open_server(server)) as client:
        with suppress(redis.ResponseError):
            policy = client.execute_command("INFO", "memory").get("maxmemory_policy", "")
        with suppress(redis.ResponseError):
            policy = client.execute_command("CONFIG GET", "maxmemory-policy").get("maxmemory-policy", policy)
    return policy


_AT_ONCE = 1000
"""How many keys one SCAN call examines before the server serves other clients."""


def stored(client: RoutedClient, views: Collection[str], seconds: float) -> Stored:
    """The generations of some views that have keys on any server.

    While the slots of a cluster move, a bucket may be on two servers; it is counted once.
    """
    buckets: dict[tuple[str, str], int] = {}
    scan = _KeyScan(client, seconds)
    for keys in scan.keys("MATCH", OF_BUCKETS):
        for view, id_, bucket in filter(None, map(bucket_of, keys)):
            if view in views:
                buckets[view, id_] = max(buckets.get((view, id_), 0), bucket + 1)
    return Stored(buckets, scan.whole)


def registered(client: RoutedClient, seconds: float) -> Registries:
    """The views with a registry on any server."""
    scan = _KeyScan(client, seconds)
    views = {view for keys in scan.keys("MATCH", REGISTRIES, "TYPE", "hash") for view in map(registered_view, keys)}
    return Registries(frozenset(view for view in views if view is not None), scan.whole)


class _KeyScan:
    """A scan of every server's keys within a time limit in seconds; `whole` is True when it was completed."""

    def __init__(self, client: RoutedClient, seconds: float) -> None:
        self._client, self._until = client, time.monotonic() + seconds
        self.whole = False

    def keys(self, *what: Part) -> Iterator[list[bytes]]:
        """The keys that match some SCAN options, in batches."""
        topology = self._client.topology
        try:
            for server in topology.masters():
                for keys in _scanned(self._client.client_of(server), what):
                    yield keys
                    if time.monotonic() > self._until:
                        return
        except Exception as error:
            topology.handle_error(error)
            raise
        self.whole = True


def _scanned(client: Any, what: Sequence[Part]) -> Iterator[list[bytes]]:
    """Keys of one server that match, in batches."""
    cursor = 0
    while True:
        found, keys = client.execute_command("SCAN", cursor, *what, "COUNT", _AT_ONCE)
        yield keys
        cursor = int(found)
        if not cursor:
            return


_CHUNK = 500


def unlink_bucket(client: RoutedClient, keys: BucketKeys) -> None:
    """Removes every key of a bucket; after an interruption, running it again removes the rest.

    The checkpoint is removed first, which fences every writer; then the indexes, named after fields of the rows.
    """
    client.execute_command("UNLINK", keys.checkpoint, keys.changes)
    while listed := client.execute_command("ZRANGE", keys.listed, 0, _CHUNK - 1):
        rows = [keys.rows + key for key in listed]
        fields: Any = client.execute_command("HKEYS", rows[0])
        with client.open_transaction(keys.listed) as pipe:
            if fields:
                pipe.execute_command("UNLINK", *(keys.listed + field for field in fields))
            pipe.execute_command("UNLINK", *rows)
            pipe.execute_command("ZREM", keys.listed, *listed)
            pipe.execute()
