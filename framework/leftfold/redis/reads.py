"""The queries of readers and of verification as Redis commands: checkpoints, then rows, in one pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from leftfold.ports.flush import Checkpoint, Generation, Phase, Registry, Snapshot
from leftfold.ports.queries import (
    Changes,
    Counting,
    Counts,
    Entries,
    GetRow,
    IndexRange,
    Inspection,
    Listed,
    Matches,
    Matching,
    Query,
    Recent,
    Registered,
    RowResult,
    Rows,
    Standing,
)
from leftfold.redis.connection.errors import Command
from leftfold.redis.connection.protocol import RedisQuery, hash_of, live_command, live_in
from leftfold.redis.keys import BucketKeys, entry, escaped, registry_key, split_entry
from leftfold.redis.stored_values import ChangesQuery, decoded, read_checkpoint

__all__ = ["GetRowQuery", "SnapshotQuery", "compile_query"]


PHASE, BULK = b"phase", Phase.BULK.value.encode()


class SnapshotQuery:
    """The commands of one read, and how their replies become a Snapshot; for blocking and asyncio clients."""

    def __init__(self, generation: Generation, keys: Sequence[tuple[int, str]], buckets: Sequence[int] = ()) -> None:
        self._generation = generation
        bucket_keys = {bucket: BucketKeys(generation, bucket) for bucket in buckets}
        behind: dict[int, Command] = {}
        for bucket, _ in keys:
            if bucket not in bucket_keys:
                bucket_keys[bucket] = BucketKeys(generation, bucket)
            if bucket not in behind:
                behind[bucket] = ("HEXISTS", bucket_keys[bucket].checkpoint, "token")
        self._buckets, self._behind = list(bucket_keys), list(behind)
        self.commands: list[Command] = [live_command(generation)]
        self.commands += [("HGETALL", place.checkpoint) for place in bucket_keys.values()]
        self.commands += [("HGETALL", bucket_keys[bucket].row(key)) for bucket, key in keys]
        self.commands += behind.values()

    def answer(self, replies: Sequence[Any]) -> Snapshot:
        """The snapshot in the replies."""
        count, rows = len(self._buckets), len(replies) - len(self._behind)
        found = dict(zip(self._buckets, replies[1 : 1 + count], strict=True))
        for bucket, there in zip(self._behind, replies[rows:], strict=True):
            if not there:
                del found[bucket]
        return Snapshot(
            live=live_in(replies[0]),
            checkpoints=_LazyCheckpoints(self._generation, found),
            rows=tuple([hash_of(reply) or None for reply in replies[1 + count : rows]]),
        )


class GetRowQuery:
    """The Redis commands of a `GetRow` query; it reads the checkpoint's phase only, since no position is asked for."""

    def __init__(self, asked: GetRow) -> None:
        self._generation = asked.generation
        keys = BucketKeys(asked.generation, asked.bucket)
        self.commands: list[Command] = [
            live_command(asked.generation),
            ("HGETALL", keys.row(asked.key)),
            ("HGET", keys.checkpoint, PHASE),
        ]

    def answer(self, replies: Sequence[Any]) -> RowResult:
        """The row in the replies."""
        live, fields, phase = replies
        return RowResult(live_in(live), counts_in(self._generation, phase), hash_of(fields) or None)


class _LazyCheckpoints(Mapping[int, Checkpoint]):
    """The checkpoints of some buckets, from HGETALL replies; without missing ones and those that lost their seal.

    Each is decoded at first access: most reads only check that they exist.
    """

    def __init__(self, generation: Generation, replies: Mapping[int, Any]) -> None:
        self._generation = generation
        hashes = {bucket: hash_of(reply) for bucket, reply in replies.items() if reply}
        self._hashes = {b: fields for b, fields in hashes.items() if counts_in(generation, fields.get(PHASE, b""))}
        self._decoded: dict[int, Checkpoint] = {}

    def __getitem__(self, bucket: int) -> Checkpoint:
        checkpoint = self._decoded.get(bucket)
        if checkpoint is None:
            where = f"bucket {bucket} of {self._generation.view} {self._generation.id}"
            checkpoint = self._decoded[bucket] = read_checkpoint(self._hashes[bucket], where)
        return checkpoint

    def __contains__(self, bucket: object) -> bool:
        return bucket in self._hashes

    def __iter__(self) -> Iterator[int]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)


def counts_in(generation: Generation, phase: bytes | None) -> bool:
    """Whether a bucket exists, and is sealed if its generation is."""
    return phase is not None and (phase != BULK or generation.phase is Phase.BULK)


SpreadQuery = Matching | Counting | Changes


class _GuardedQuery:
    """A query on several servers that reads every bucket's checkpoint after it; not live where one is missing.

    The live pointer is on another node and says nothing about the moment when the others answered. Checkpoints are
    removed before any other key of a bucket, so what was read before an existing checkpoint was complete.
    """

    def __init__(self, asked: SpreadQuery, query: RedisQuery[Any]) -> None:
        self._generation, self._query = asked.generation, query
        checkpoints = (BucketKeys(asked.generation, bucket).checkpoint for bucket in _buckets(asked))
        self.commands: list[Command] = [*query.commands, *(("HGET", checkpoint, PHASE) for checkpoint in checkpoints)]

    def answer(self, replies: Sequence[Any]) -> Matches | Counts | Recent:
        """The result in the replies, with the live generation '' where a checkpoint is missing."""
        asked = len(self._query.commands)
        found: Matches | Counts | Recent = self._query.answer(replies[:asked])
        whole = all(counts_in(self._generation, phase) for phase in replies[asked:])
        return found if whole else replace(found, live="")


def _buckets(asked: SpreadQuery) -> Sequence[int]:
    if isinstance(asked, Changes):
        return tuple(asked.ids)
    if isinstance(asked, Matching) and asked.buckets is not None:
        return asked.buckets
    return range(asked.generation.buckets)


class _EntriesQuery:
    """The Redis commands of an `Entries` query."""

    def __init__(self, asked: Entries) -> None:
        first = b"-" if asked.first == ("", "") else b"[" + entry(*asked.first)
        index = BucketKeys(asked.generation, asked.bucket).index(asked.index)
        self.commands: list[Command] = [("ZRANGEBYLEX", index, first, b"+", b"LIMIT", 0, asked.limit)]

    def answer(self, replies: Sequence[Any]) -> list[tuple[str, str]]:
        """The index entries in the replies."""
        return [split_entry(member) for member in replies[0]]


class _InspectionQuery:
    """The Redis commands of an `Inspection`: the checkpoint first, and its token once more at the end."""

    def __init__(self, asked: Inspection) -> None:
        self._asked = asked
        keys = BucketKeys(asked.generation, asked.bucket)
        self.commands: list[Command] = [
            ("HGETALL", keys.checkpoint),
            ("HGETALL", keys.row(asked.key)),
            ("ZSCORE", keys.listed, asked.key),
            *(("ZSCORE", keys.index(index), entry(value, asked.key)) for index, value in asked.entries),
            ("HGET", keys.checkpoint, "token"),
        ]

    def answer(self, replies: Sequence[Any]) -> Standing:
        """The stored state of a row in the replies."""
        whole, fields, listed, *scores, token = replies
        asked = self._asked
        checkpoint = _LazyCheckpoints(asked.generation, {asked.bucket: whole}).get(asked.bucket)
        return Standing(
            checkpoint,
            hash_of(fields) or None,
            listed is not None,
            frozenset(entry for entry, score in zip(asked.entries, scores, strict=True) if score is not None),
            checkpoint is not None and token is not None and token.decode() == checkpoint.token,
        )


A = TypeVar("A")


def compile_query(question: Query[A], *, is_cluster: bool = False) -> RedisQuery[A]:
    """Compiles a query to Redis commands, and to a reader of their replies.

    Args:
        is_cluster: keys are on several servers, which do not answer in one order.
    """
    query: RedisQuery[A] = _COMPILERS[type(question)](question)
    if is_cluster and isinstance(question, SpreadQuery):
        guarded: Any = _GuardedQuery(question, query)
        query = guarded
    return query


class _RegistryQuery:
    def __init__(self, asked: Registered) -> None:
        self._view = asked.view
        self.commands: list[Command] = [("HGETALL", registry_key(asked.view))]

    def answer(self, replies: Sequence[Any]) -> Registry:
        return decoded(self._view, hash_of(replies[0]))


class _KeysQuery:
    def __init__(self, asked: Listed) -> None:
        start = b"(" + asked.after.encode() if asked.after else b"-"
        listed = BucketKeys(asked.generation, asked.bucket).listed
        self.commands: list[Command] = [("ZRANGEBYLEX", listed, start, b"+", b"LIMIT", 0, asked.limit)]

    def answer(self, replies: Sequence[Any]) -> list[str]:
        return [key.decode() for key in replies[0]]


class _MatchingQuery:
    def __init__(self, asked: Matching) -> None:
        generation = asked.generation
        self._buckets = tuple(range(generation.buckets)) if asked.buckets is None else asked.buckets
        self.commands: list[Command] = [live_command(generation)]
        limit: Command = () if asked.limit is None else (b"LIMIT", 0, asked.limit)
        for range_ in asked.ranges:
            low, high = _ends(range_)
            ends = ("ZREVRANGEBYLEX", high, low) if asked.backwards else ("ZRANGEBYLEX", low, high)
            for bucket in self._buckets:
                self.commands.append((ends[0], BucketKeys(generation, bucket).index(range_.index), *ends[1:], *limit))

    def answer(self, replies: Sequence[Any]) -> Matches:
        found, rest = [], replies[1:]
        for start in range(0, len(rest), len(self._buckets)):
            entries = zip(self._buckets, rest[start : start + len(self._buckets)], strict=True)
            found.append({bucket: tuple(map(split_entry, members)) for bucket, members in entries})
        return Matches(live_in(replies[0]), tuple(found))


class _CountingQuery:
    def __init__(self, asked: Counting) -> None:
        generation = asked.generation
        self._each = generation.buckets
        self.commands: list[Command] = [live_command(generation)]
        for range_ in asked.ranges:
            for bucket in range(generation.buckets):
                self.commands.append(("ZLEXCOUNT", BucketKeys(generation, bucket).index(range_.index), *_ends(range_)))

    def answer(self, replies: Sequence[Any]) -> Counts:
        rest = replies[1:]
        totals = (sum(rest[start : start + self._each]) for start in range(0, len(rest), self._each))
        return Counts(live_in(replies[0]), tuple(totals))


def _ends(range_: IndexRange) -> tuple[bytes, bytes]:
    """The ends of a range among index members, `value NUL key`.

    No key begins with a byte from DEL on, nor with a NUL.
    """
    low, high = (None if text is None else escaped(text) for text in (range_.low, range_.high))
    start = b"[=" if low is None else b"[%b\0\x7f" % low if range_.above_low else b"[%b\0" % low
    end = b"(>" if high is None else b"(%b\0" % high if range_.below_high else b"(%b\0\x7f" % high
    return start, end


_COMPILERS: dict[type, Callable[[Any], RedisQuery[Any]]] = {
    Registered: _RegistryQuery,
    GetRow: GetRowQuery,
    Rows: lambda asked: SnapshotQuery(asked.generation, asked.keys, asked.buckets),
    Listed: _KeysQuery,
    Matching: _MatchingQuery,
    Counting: _CountingQuery,
    Entries: _EntriesQuery,
    Inspection: _InspectionQuery,
    Changes: ChangesQuery,
}
