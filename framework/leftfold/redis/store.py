"""The ViewStore port on one Redis server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import redis

from leftfold.engine.bulk_result import BucketResult
from leftfold.flush import NOTHING_TO_FLUSH, BucketFlush, Generation, Mark, Registry, Snapshot
from leftfold.ports import Flushing
from leftfold.redis.attendance import attend
from leftfold.redis.clients import open_client
from leftfold.redis.failures import translated
from leftfold.redis.flushers import Flushers
from leftfold.redis.keys import FINISHED, BucketKeys
from leftfold.redis.loops import LoopClients
from leftfold.redis.marks import encode_mark
from leftfold.redis.registry import change_registry, read_registry
from leftfold.redis.seal import seal
from leftfold.redis.settings import RedisSettings
from leftfold.redis.snapshots import Question, read_marks
from leftfold.redis.unlink import unlink
from leftfold.redis.wire import Dial, dial

__all__ = ["RedisViewStore"]


class RedisViewStore:
    """Keeps views in Redis; any number of threads and event loops may use it, in the process that made it.

    Every method raises InfrastructureError when the server cannot be reached or refuses.
    """

    def __init__(self, settings: RedisSettings, dial: Dial = dial) -> None:
        self._settings = settings
        self._client = open_client(settings)
        self._loops = LoopClients(settings)
        self._flushers = Flushers(settings, dial)

    def registry(self, view: str) -> Registry:
        """The generations of a view and which is live for each hash."""
        with translated(self._settings):
            return read_registry(self._client, view)

    def change_registry(self, view: str, before: Registry, after: Registry) -> bool:
        """Replaces the registry if it is still `before`; False when someone else was faster."""
        with translated(self._settings):
            return change_registry(self._client, view, before, after)

    def marks(self, generation: Generation) -> dict[int, Mark]:
        """The marks of a generation's buckets, without those that are missing."""
        with translated(self._settings), self._client.pipeline(transaction=False) as pipe:
            for bucket in range(generation.buckets):
                pipe.execute_command("HGETALL", BucketKeys(generation, bucket).mark)
            return read_marks(generation, dict(enumerate(pipe.execute())))

    def create_marks(self, generation: Generation, marks: Mapping[int, Mark]) -> bool:
        """Writes the marks of a new generation if none of them is there; False when one is."""
        names = {bucket: BucketKeys(generation, bucket).mark for bucket in marks}
        try:
            with translated(self._settings), self._client.pipeline() as pipe:
                pipe.watch(*names.values())
                if pipe.execute_command("EXISTS", *names.values()):
                    return False
                pipe.multi()
                for bucket, mark in marks.items():
                    pipe.execute_command("HSET", names[bucket], *encode_mark(mark))
                pipe.execute()
        except redis.WatchError:
            return False
        return True

    def finished(self, generation: Generation) -> dict[int, BucketResult]:
        """The buckets that are whole, while the generation is `bulk`."""
        with translated(self._settings), self._client.pipeline(transaction=False) as pipe:
            for bucket in range(generation.buckets):
                pipe.execute_command("HGET", BucketKeys(generation, bucket).mark, FINISHED)
            told: list[Any] = pipe.execute()
        return {bucket: BucketResult.from_json(text) for bucket, text in enumerate(told) if text}

    def seal(self, generation: Generation, marks: Mapping[int, Mark]) -> None:
        """Ends a bulk load: all buckets' marks at once, with the phase `sealed`; late chunks raise Fenced from here on.

        Raises:
            Fenced: a bucket is not `bulk` any more.
            InfrastructureError: a bucket holds another number of rows than its mark says.
        """
        with translated(self._settings):
            seal(self._client, generation, marks)

    def read(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> Snapshot:
        """The rows named by (bucket, encoded key), their buckets' marks and the live generation, in one round trip."""
        return self.read_all([(generation, keys)])[0]

    def read_all(self, asked: Sequence[tuple[Generation, Sequence[tuple[int, str]]]]) -> list[Snapshot]:
        """`read` of several generations, in one round trip."""
        questions = [Question(generation, keys) for generation, keys in asked]
        with translated(self._settings), self._client.pipeline(transaction=False) as pipe:
            for question in questions:
                for command in question.commands:
                    pipe.execute_command(*command)
            replies = iter(pipe.execute())
        return [question.snapshot(list(islice(replies, len(question.commands)))) for question in questions]

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
        """Sends rows, index moves and marks of many buckets of one generation, to be written all or none.

        It lands as False when a token is not the expected one, a mark is missing or the connection was lost, even if
        only the answer was: read the marks again, they tell what happened.
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
            unlink(self._client, generation)
        self._flushers.forget(generation)

    def attend(self, groups: Sequence[str], member: str, seconds: float) -> dict[str, tuple[str, ...]]:
        """Says that a member of some groups lives for so many seconds more; returns each group's members, sorted."""
        with translated(self._settings):
            return attend(self._client, groups, member, seconds)

    def close(self) -> None:
        """Lets go of connections; those of an event loop that still runs end with it."""
        self._flushers.close()
        self._client.close()

    async def aclose(self) -> None:
        """`close`, and the connections of the running event loop too, for a loop that lives on."""
        await self._loops.aclose()
        self.close()

    def _lexical(self, name: bytes, start: bytes, end: bytes, *options: bytes) -> list[bytes]:
        with translated(self._settings):
            members: Any = self._client.execute_command("ZRANGEBYLEX", name, start, end, *options)
            return list(members)
