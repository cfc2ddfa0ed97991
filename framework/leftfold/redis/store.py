"""The ViewStore port on Redis: one server, a master behind sentinels, or a cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import redis

from leftfold.errors import ConfigurationError, ContractError
from leftfold.model.position import Position
from leftfold.ports.bulk import BucketResult, BulkStore, Registries, Stored
from leftfold.ports.flush import NOTHING_TO_FLUSH, BucketFlush, Checkpoint, Generation, Phase, Registry, Snapshot, While
from leftfold.ports.notifications import AsyncWaiter, Waiter
from leftfold.ports.protocols import Flushing
from leftfold.ports.queries import Query, Rows
from leftfold.redis.bulk_load import seal
from leftfold.redis.connection.errors import Command, Part, translated
from leftfold.redis.connection.protocol import Connector, connect
from leftfold.redis.connection.server import open_server
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.connection.sync import RoutedClient, retry_while_moving
from leftfold.redis.connection.topology import topology_of
from leftfold.redis.flusher import Flushers
from leftfold.redis.keys import FINISHED, OF_BUCKETS, REGISTRIES, BucketKeys, bucket_of, members_key, registered_view
from leftfold.redis.pubsub import BackgroundLoop, LoopClients
from leftfold.redis.reads import compile_query
from leftfold.redis.stored_values import addition, change_registry, encode_checkpoint

__all__ = ["RedisViewStore", "refuse_eviction"]


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


def heartbeat(client: RoutedClient, groups: Sequence[str], member: str, seconds: float) -> dict[str, tuple[str, ...]]:
    """Extends the membership of a member in some groups by the server's clock, and drops expired members.

    0 seconds ends the membership. An empty member name only reads the groups: the reader may have no right to write.
    """
    seconds_now, micros = client.execute_command("TIME")
    now = int(seconds_now) + int(micros) / 1e6
    commands: list[Command] = []
    for key in map(members_key, groups):
        if member:
            commands += ("ZADD", key, repr(now + seconds), member), ("ZREMRANGEBYSCORE", key, "-inf", repr(now))
            commands.append(("ZRANGE", key, 0, -1))
        else:
            commands.append(("ZRANGEBYSCORE", key, f"({now!r}", "+inf"))
    replies = client.execute(commands)[2 if member else 0 :: 3 if member else 1]
    return {group: tuple(sorted(name.decode() for name in found)) for group, found in zip(groups, replies, strict=True)}


def create_marks(
    client: RoutedClient, generation: Generation, checkpoints: Mapping[int, Checkpoint], history: int
) -> bool:
    """Writes checkpoints in one transaction if none of them exists; False when one does.

    The change stream of a bucket that is not loaded in bulk begins here.
    """
    places = {bucket: BucketKeys(generation, bucket) for bucket in checkpoints}
    names = [keys.checkpoint for keys in places.values()]
    try:
        with client.open_transaction(names[0]) as pipe:
            pipe.watch(*names)
            if pipe.execute_command("EXISTS", *names):
                return False
            pipe.multi()
            for bucket, checkpoint in checkpoints.items():
                pipe.execute_command("HSET", places[bucket].checkpoint, *encode_checkpoint(checkpoint))
                if checkpoint.phase is not Phase.BULK:
                    pipe.execute_command(*addition(places[bucket].changes, checkpoint.position, (), history))
            pipe.execute()
    except redis.WatchError:
        return False
    return True


A = TypeVar("A")
T = TypeVar("T")


class RedisViewStore(BulkStore):
    """A view store in Redis, for any number of threads and event loops of one process.

    Every method raises InfrastructureError when the server cannot be reached or refuses, and ConfigurationError when
    the login fails or the user lacks a right.
    """

    def __init__(self, settings: RedisSettings, connect: Connector = connect) -> None:
        self._settings = settings
        self._topology = topology_of(settings)
        self._client = RoutedClient(self._topology)
        self._loops, self._background = LoopClients(settings, self._topology), BackgroundLoop(settings, self._topology)
        self._flushers = Flushers(settings, connect, topology=self._topology)

    def servers(self) -> str:
        """The servers at the moment, for people."""
        with translated(self._settings):
            return self._topology.describe()

    def change_registry(self, view: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
        """Replaces the registry if it is still `before`; False when another process changed it first.

        In a cluster a flush that lands between the check of `while_` and the change is not noticed: the checkpoints are
        on other servers.
        """
        also: dict[str, Any] = {}
        if while_ is not None:
            unmoved = while_.unmoved
            seen = () if self._topology.is_cluster else range(unmoved.buckets)
            also = {"checkpoints": [BucketKeys(unmoved, bucket).checkpoint for bucket in seen], "holds": while_.holds}
        with translated(self._settings):
            return self._retry_while_moving(partial(change_registry, self._client, view, before, after, **also))

    def create_marks(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> bool:
        """Writes the checkpoints of a new generation if none of them exists; False when one does."""
        written: list[BucketKeys] = []
        with translated(self._settings):
            for part in self._parts(checkpoints):
                create = partial(create_marks, self._client, generation, part, self._settings.history)
                if not self._retry_while_moving(create):
                    # No writer can have flushed into those written so far: the generation is not registered yet.
                    for keys in written:
                        self._retry_while_moving(
                            partial(self._client.execute_command, "UNLINK", keys.checkpoint, keys.changes)
                        )
                    return False
                written += (BucketKeys(generation, bucket) for bucket in part)
        return True

    def finished(self, generation: Generation) -> dict[int, BucketResult]:
        """The results of the finished buckets, while the generation is `bulk`."""
        checkpoints = (BucketKeys(generation, bucket).checkpoint for bucket in range(generation.buckets))
        with translated(self._settings):
            results = self._client.execute([("HGET", checkpoint, FINISHED) for checkpoint in checkpoints])
        return {bucket: BucketResult.from_json(text) for bucket, text in enumerate(results) if text}

    def seal(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Ends a bulk load: all checkpoints get the phase `sealed`; late chunks of a sealed bucket raise Fenced.

        In a cluster the buckets are sealed one after another; when one cannot be, those before it stay sealed.

        Raises:
            Fenced: a bucket is no longer `bulk`.
            InfrastructureError: a bucket holds another number of rows than its checkpoint says.
        """
        if set(checkpoints) != set(range(generation.buckets)):
            raise ContractError(
                f"{generation.view} {generation.id} has {generation.buckets} buckets, not {sorted(checkpoints)}"
            )
        with translated(self._settings):
            for part in self._parts(checkpoints):
                self._retry_while_moving(partial(seal, self._client, generation, part, self._settings.history))

    def _parts(self, checkpoints: Mapping[int, Checkpoint]) -> list[Mapping[int, Checkpoint]]:
        """The checkpoints that one transaction can write: all, or in a cluster those of one bucket."""
        if self._topology.is_cluster:
            return [{bucket: checkpoint} for bucket, checkpoint in checkpoints.items()]
        return [checkpoints]

    def read_all(self, asked: Sequence[tuple[Generation, Sequence[tuple[int, str]]]]) -> list[Snapshot]:
        """`read` of several generations, in one round trip."""
        queries = [compile_query(Rows(generation, tuple(keys))) for generation, keys in asked]
        with translated(self._settings):
            replies = iter(self._client.execute([command for query in queries for command in query.commands]))
        return [query.answer(list(islice(replies, len(query.commands)))) for query in queries]

    def ask(self, question: Query[A], /) -> A:
        """The answer to a query of a reader, in one round trip."""
        query = compile_query(question, is_cluster=self._topology.is_cluster)
        with translated(self._settings):
            return query.answer(self._client.execute(query.commands))

    async def aask(self, question: Query[A], /) -> A:
        """`ask` for asyncio; connections belong to the running loop and are closed when the loop shuts down."""
        client = self._loops.current() or await self._loops.get()
        return await client.client.ask(compile_query(question, is_cluster=self._topology.is_cluster))

    def listen(self, generation: Generation, wanted: Position | None, /) -> Waiter:
        """A waiter that is notified when a flush brings the generation to `wanted`; None = at every flush."""
        return self._background.listen(generation, wanted)

    async def alisten(self, generation: Generation, wanted: Position | None, /) -> AsyncWaiter:
        """`listen` for asyncio."""
        client = await self._loops.get()
        waiter = client.subscriber.notifier.async_waiter(generation, wanted)
        try:
            if not client.subscriber.is_subscribed(generation):
                await client.subscriber.subscribe(generation)
        except BaseException:
            waiter.close()
            raise
        return waiter

    def begin_flush(self, flushes: Sequence[BucketFlush]) -> Flushing:
        """Sends rows, index changes and checkpoints of many buckets of one generation.

        All are written or none; in a cluster each bucket by itself. `landed()` is False when a token is not the
        expected one, a checkpoint is missing, a connection was lost (even if only the reply was), or a slot is moving:
        read the checkpoints again, they say what was written.
        """
        return self._flushers.of(flushes[0].generation).begin(flushes) if flushes else NOTHING_TO_FLUSH

    def unlink(self, generation: Generation) -> None:
        """Removes every key of a generation."""
        with translated(self._settings):
            for bucket in range(generation.buckets):
                self._retry_while_moving(partial(unlink_bucket, self._client, BucketKeys(generation, bucket)))
        self._flushers.forget(generation)

    def stored(self, views: Collection[str], seconds: float = math.inf) -> Stored:
        """Scans the keys of every server for generations of these views, for at most so many seconds."""
        with translated(self._settings):
            return stored(self._client, views, seconds)

    def registered(self, seconds: float = math.inf) -> Registries:
        """Scans the keys of every server for registries, for at most so many seconds."""
        with translated(self._settings):
            return registered(self._client, seconds)

    def heartbeat(self, groups: Sequence[str], member: str, seconds: float) -> dict[str, tuple[str, ...]]:
        """Extends a member's membership in some groups by so many seconds; returns each group's members, sorted."""
        with translated(self._settings):
            return heartbeat(self._client, groups, member, seconds)

    def close(self) -> None:
        """Closes connections; those of an event loop that still runs are closed when the loop ends."""
        self._client.close()  # the first: readers that wait are woken by the next line, and must find it closed
        self._background.close()
        self._loops.drop_closed()
        self._flushers.close()

    async def aclose(self) -> None:
        """`close`, and the connections of the running event loop too, for a loop that keeps running."""
        await self._loops.aclose()
        self.close()

    def _retry_while_moving(self, work: Callable[[], T]) -> T:
        return retry_while_moving(self._settings.timeout, work)
