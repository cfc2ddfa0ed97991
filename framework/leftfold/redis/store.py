"""The ViewStore port on Redis: one server, a master that sentinels watch, or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from leftfold.flush import NOTHING_TO_FLUSH, BucketFlush, Generation, Mark, Registry, Snapshot
from leftfold.ports import Flushing
from leftfold.redis.clients import open_client
from leftfold.redis.creation import create_each, create_marks
from leftfold.redis.failures import translated
from leftfold.redis.flushers import Flushers
from leftfold.redis.keys import BucketKeys
from leftfold.redis.loops import LoopClients
from leftfold.redis.registry import change_registry, read_registry
from leftfold.redis.routed import settled
from leftfold.redis.seal import check_complete, seal
from leftfold.redis.settings import RedisSettings
from leftfold.redis.snapshots import Question, read_marks
from leftfold.redis.topology import topology_of
from leftfold.redis.unlink import unlink_bucket
from leftfold.redis.wire import Dial, dial

__all__ = ["RedisViewStore"]

T = TypeVar("T")


class RedisViewStore:
    """Keeps views in Redis; any number of threads and event loops may use it, in the process that made it.

    Every method raises InfrastructureError when the server cannot be reached or refuses.
    """

    def __init__(self, settings: RedisSettings, dial: Dial = dial) -> None:
        self._settings = settings
        self._topology = topology_of(settings, dial)
        self._client = open_client(settings, self._topology)
        self._loops = LoopClients(settings, self._topology)
        self._flushers = Flushers(settings, dial, topology=self._topology)

    def servers(self) -> str:
        """Which servers there are at the moment, for people."""
        with translated(self._settings):
            return self._topology.told()

    def registry(self, view: str) -> Registry:
        """The generations of a view and which is live for each hash."""
        with translated(self._settings):
            return read_registry(self._client, view)

    def change_registry(self, view: str, before: Registry, after: Registry) -> bool:
        """Replaces the registry if it is still `before`; False when someone else was faster."""
        with translated(self._settings):
            return self._settled(partial(change_registry, self._client, view, before, after))

    def marks(self, generation: Generation) -> dict[int, Mark]:
        """The marks of a generation's buckets, without those that are missing."""
        with translated(self._settings), self._client.pipeline(transaction=False) as pipe:
            for bucket in range(generation.buckets):
                pipe.execute_command("HGETALL", BucketKeys(generation, bucket).mark)
            return read_marks(generation, dict(enumerate(pipe.execute())))

    def create_marks(self, generation: Generation, marks: Mapping[int, Mark]) -> bool:
        """Writes the marks of a new generation if none of them is there; False when one is."""
        with translated(self._settings):
            if self._topology.spread:
                return create_each(self._client, generation, marks, self._settled)
            return create_marks(self._client, generation, marks)

    def seal(self, generation: Generation, marks: Mapping[int, Mark]) -> None:
        """Ends a bulk load: all marks get the phase `sealed`; late chunks of a sealed bucket raise Fenced.

        In a cluster the buckets are sealed one after another; when one cannot be, those before it stay sealed.

        Raises:
            Fenced: a bucket is not `bulk` any more.
            InfrastructureError: a bucket holds another number of rows than its mark says.
        """
        check_complete(generation, marks)
        parts = [{bucket: mark} for bucket, mark in marks.items()] if self._topology.spread else [marks]
        with translated(self._settings):
            for part in parts:
                self._settled(partial(seal, self._client, generation, part))

    def read(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> Snapshot:
        """The rows named by (bucket, encoded key), their buckets' marks and the live generation, in one round trip."""
        question = Question(generation, keys)
        with translated(self._settings), self._client.pipeline(transaction=False) as pipe:
            for command in question.commands:
                pipe.execute_command(*command)
            return question.snapshot(pipe.execute())

    async def aread(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> Snapshot:
        """`read` for asyncio, over a client of the running loop that is closed when the loop shuts down."""
        question = Question(generation, keys)
        with translated(self._settings):
            client = await self._loops.get()
            async with client.pipeline(transaction=False) as pipe:
                for command in question.commands:
                    pipe.execute_command(*command)
                return question.snapshot(await pipe.execute())

    def begin_flush(self, flushes: Sequence[BucketFlush]) -> Flushing:
        """Sends rows, index moves and marks of many buckets of one generation.

        They are written all or none, in a cluster each bucket by itself. It lands as False when a token is not the
        expected one, a mark is missing, a connection was lost, even if only the answer was, or a slot is on the move:
        read the marks again, they tell what happened.
        """
        return self._flushers.of(flushes[0].generation).begin(flushes) if flushes else NOTHING_TO_FLUSH

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        """`begin_flush`, and what came of it."""
        return self.begin_flush(flushes).landed()

    def keys(self, generation: Generation, bucket: int, after: str, limit: int) -> list[str]:
        """Up to `limit` encoded row keys of a bucket behind `after` ('' = from the start), in byte order."""
        start = b"(" + after.encode() if after else b"-"
        listed = self._lexical(BucketKeys(generation, bucket).listed, start, b"+", b"LIMIT", b"0", b"%d" % limit)
        return [key.decode() for key in listed]

    def found(self, generation: Generation, bucket: int, index: str, value: str) -> list[str]:
        """The encoded row keys whose indexed field has this ordered value, in byte order."""
        name, text = BucketKeys(generation, bucket).index(index), value.encode()
        entries = self._lexical(name, b"[%b\0" % text, b"(%b\1" % text)
        pairs = (entry.rpartition(b"\0") for entry in entries)
        return [key.decode() for told, _, key in pairs if told == text]

    def unlink(self, generation: Generation) -> None:
        """Removes every key of a generation."""
        with translated(self._settings):
            for bucket in range(generation.buckets):
                self._settled(partial(unlink_bucket, self._client, BucketKeys(generation, bucket)))
        self._flushers.forget(generation)

    def close(self) -> None:
        """Lets go of connections; those of an event loop that still runs end with it."""
        self._flushers.close()
        self._client.close()

    async def aclose(self) -> None:
        """`close`, and the connections of the running event loop too, for a loop that lives on."""
        await self._loops.aclose()
        self.close()

    def _settled(self, work: Callable[[], T]) -> T:
        return settled(self._settings.timeout, work)

    def _lexical(self, name: bytes, start: bytes, end: bytes, *options: bytes) -> list[bytes]:
        with translated(self._settings):
            members: Any = self._client.execute_command("ZRANGEBYLEX", name, start, end, *options)
            return list(members)
