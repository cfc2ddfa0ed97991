"""The queries of readers and of verification as Redis commands: checkpoints, then rows, in one pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from leftfold.model.position import Position
from leftfold.ports.flush import Checkpoint, Generation, Phase, Registry, Snapshot
from leftfold.ports.queries import (
    Changes,
    Counting,
    Counts,
    Entries,
    GetRow,
    IndexRange,
    InspectedRow,
    Inspection,
    Listed,
    Matches,
    Matching,
    Query,
    Recent,
    Registered,
    RowResult,
    Rows,
)
from leftfold.redis.connection.errors import Command
from leftfold.redis.connection.protocol import RedisQuery, hash_of, live_command, live_in
from leftfold.redis.keys import BucketKeys, entry, escaped, registry_key, split_entry
from leftfold.redis.stored_values import POSITION, changed_in, decoded, read_checkpoint

__all__ = ["compile_query", "row_query", "rows_query"]


PHASE, BULK = b"phase", Phase.BULK.value.encode()


def rows_query(
    generation: Generation, keys: Sequence[tuple[int, str]], buckets: Sequence[int] = ()
) -> RedisQuery[Snapshot]:
    """Compiles a read of rows: the checkpoints of their buckets before them, and behind them whether those still exist.

    Args:
        buckets: further buckets whose checkpoints are read.
    """
    bucket_keys = {bucket: BucketKeys(generation, bucket) for bucket in buckets}
    behind: dict[int, Command] = {}
    for bucket, _ in keys:
        if bucket not in bucket_keys:
            bucket_keys[bucket] = BucketKeys(generation, bucket)
        if bucket not in behind:
            behind[bucket] = ("HEXISTS", bucket_keys[bucket].checkpoint, "token")
    commands: list[Command] = [live_command(generation)]
    commands += [("HGETALL", place.checkpoint) for place in bucket_keys.values()]
    commands += [("HGETALL", bucket_keys[bucket].row(key)) for bucket, key in keys]
    commands += behind.values()

    def answer(replies: Sequence[Any]) -> Snapshot:
        count, rows = len(bucket_keys), len(replies) - len(behind)
        found = dict(zip(bucket_keys, replies[1 : 1 + count], strict=True))
        for bucket, there in zip(behind, replies[rows:], strict=True):
            if not there:
                del found[bucket]
        return Snapshot(
            live=live_in(replies[0]),
            checkpoints=_LazyCheckpoints(generation, found),
            rows=tuple([hash_of(reply) or None for reply in replies[1 + count : rows]]),
        )

    return RedisQuery(commands, answer)


def row_query(asked: GetRow) -> RedisQuery[RowResult]:
    """Compiles a read of one row, with the checkpoint's phase only, since no position is asked for."""
    keys = BucketKeys(asked.generation, asked.bucket)

    def answer(replies: Sequence[Any]) -> RowResult:
        live, fields, phase = replies
        return RowResult(live_in(live), counts_in(asked.generation, phase), hash_of(fields) or None)

    row, phase = ("HGETALL", keys.row(asked.key)), ("HGET", keys.checkpoint, PHASE)
    return RedisQuery([live_command(asked.generation), row, phase], answer)


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


def _guarded(asked: SpreadQuery, query: RedisQuery[Any]) -> RedisQuery[Any]:
    """A query on several servers that reads every bucket's checkpoint after it; not live where one is missing.

    The live pointer is on another node and says nothing about the moment when the others answered. Checkpoints are
    removed before any other key of a bucket, so what was read before an existing checkpoint was complete.
    """
    checkpoints = (BucketKeys(asked.generation, bucket).checkpoint for bucket in _buckets(asked))
    count = len(query.commands)

    def answer(replies: Sequence[Any]) -> Any:
        found = query.answer(replies[:count])
        whole = all(counts_in(asked.generation, phase) for phase in replies[count:])
        return found if whole else replace(found, live="")

    return RedisQuery([*query.commands, *(("HGET", checkpoint, PHASE) for checkpoint in checkpoints)], answer)


def _buckets(asked: SpreadQuery) -> Sequence[int]:
    if isinstance(asked, Changes):
        return tuple(asked.ids)
    if isinstance(asked, Matching) and asked.buckets is not None:
        return asked.buckets
    return range(asked.generation.buckets)


def _entries_query(asked: Entries) -> RedisQuery[list[tuple[str, str]]]:
    first = b"-" if asked.first == ("", "") else b"[" + entry(*asked.first)
    index = BucketKeys(asked.generation, asked.bucket).index(asked.index)
    command = ("ZRANGEBYLEX", index, first, b"+", b"LIMIT", 0, asked.limit)
    return RedisQuery([command], lambda replies: [split_entry(member) for member in replies[0]])


def _inspection_query(asked: Inspection) -> RedisQuery[InspectedRow]:
    """The checkpoint first, and its token once more at the end."""
    keys = BucketKeys(asked.generation, asked.bucket)

    def answer(replies: Sequence[Any]) -> InspectedRow:
        whole, fields, listed, *scores, token = replies
        checkpoint = _LazyCheckpoints(asked.generation, {asked.bucket: whole}).get(asked.bucket)
        return InspectedRow(
            checkpoint,
            hash_of(fields) or None,
            listed is not None,
            frozenset(entry for entry, score in zip(asked.entries, scores, strict=True) if score is not None),
            checkpoint is not None and token is not None and token.decode() == checkpoint.token,
        )

    commands: list[Command] = [
        ("HGETALL", keys.checkpoint),
        ("HGETALL", keys.row(asked.key)),
        ("ZSCORE", keys.listed, asked.key),
        *(("ZSCORE", keys.index(index), entry(value, asked.key)) for index, value in asked.entries),
        ("HGET", keys.checkpoint, "token"),
    ]
    return RedisQuery(commands, answer)


def _registry_query(asked: Registered) -> RedisQuery[Registry]:
    command = ("HGETALL", registry_key(asked.view))
    return RedisQuery([command], lambda replies: decoded(asked.view, hash_of(replies[0])))


def _keys_query(asked: Listed) -> RedisQuery[list[str]]:
    start = b"(" + asked.after.encode() if asked.after else b"-"
    listed = BucketKeys(asked.generation, asked.bucket).listed
    command = ("ZRANGEBYLEX", listed, start, b"+", b"LIMIT", 0, asked.limit)
    return RedisQuery([command], lambda replies: [key.decode() for key in replies[0]])


def _matching_query(asked: Matching) -> RedisQuery[Matches]:
    generation, buckets = asked.generation, _buckets(asked)
    commands: list[Command] = [live_command(generation)]
    limit: Command = () if asked.limit is None else (b"LIMIT", 0, asked.limit)
    for range_ in asked.ranges:
        low, high = _ends(range_)
        ends = ("ZREVRANGEBYLEX", high, low) if asked.backwards else ("ZRANGEBYLEX", low, high)
        names = (BucketKeys(generation, bucket).index(range_.index) for bucket in buckets)
        commands += [(ends[0], name, *ends[1:], *limit) for name in names]

    def answer(replies: Sequence[Any]) -> Matches:
        found = []
        for start in range(1, len(replies), len(buckets)):
            entries = zip(buckets, replies[start : start + len(buckets)], strict=True)
            found.append({bucket: tuple(map(split_entry, members)) for bucket, members in entries})
        return Matches(live_in(replies[0]), tuple(found))

    return RedisQuery(commands, answer)


def _counting_query(asked: Counting) -> RedisQuery[Counts]:
    generation, each = asked.generation, asked.generation.buckets
    commands: list[Command] = [live_command(generation)]
    for range_ in asked.ranges:
        names = (BucketKeys(generation, bucket).index(range_.index) for bucket in range(each))
        commands += [("ZLEXCOUNT", name, *_ends(range_)) for name in names]

    def answer(replies: Sequence[Any]) -> Counts:
        totals = (sum(replies[start : start + each]) for start in range(1, len(replies), each))
        return Counts(live_in(replies[0]), tuple(totals))

    return RedisQuery(commands, answer)


def _ends(range_: IndexRange) -> tuple[bytes, bytes]:
    """The ends of a range among index members, `value NUL key`.

    No key begins with a byte from DEL on, nor with a NUL.
    """
    low, high = (None if text is None else escaped(text) for text in (range_.low, range_.high))
    start = b"[=" if low is None else b"[%b\0\x7f" % low if range_.above_low else b"[%b\0" % low
    end = b"(>" if high is None else b"(%b\0" % high if range_.below_high else b"(%b\0\x7f" % high
    return start, end


def _changes_query(asked: Changes) -> RedisQuery[Recent]:
    commands: list[Command] = [live_command(asked.generation)]
    for bucket, id_ in asked.ids.items():
        keys = BucketKeys(asked.generation, bucket)
        newest = ("XREVRANGE", keys.changes, f"({id_}" if id_ else "+", "-", "COUNT", asked.limit)
        page = newest if asked.backwards else ("XRANGE", keys.changes, id_, "+", "COUNT", asked.limit)
        commands += ("HGET", keys.checkpoint, POSITION), page

    def answer(replies: Sequence[Any]) -> Recent:
        found = dict(zip(asked.ids, zip(replies[1::2], replies[2::2], strict=True), strict=True))
        return Recent(
            live_in(replies[0]),
            {bucket: Position.from_json(position) for bucket, (position, _) in found.items() if position is not None},
            {bucket: tuple(map(changed_in, entries)) for bucket, (_, entries) in found.items()},
        )

    return RedisQuery(commands, answer)


A = TypeVar("A")
_COMPILERS: dict[type, Callable[[Any], RedisQuery[Any]]] = {
    Registered: _registry_query,
    GetRow: row_query,
    Rows: lambda asked: rows_query(asked.generation, asked.keys, asked.buckets),
    Listed: _keys_query,
    Matching: _matching_query,
    Counting: _counting_query,
    Entries: _entries_query,
    Inspection: _inspection_query,
    Changes: _changes_query,
}


def compile_query(question: Query[A], *, is_cluster: bool = False) -> RedisQuery[A]:
    """Compiles a query to Redis commands, and to a reader of their replies.

    Args:
        is_cluster: keys are on several servers, which do not answer in one order.
    """
    query: RedisQuery[A] = _COMPILERS[type(question)](question)
    return _guarded(question, query) if is_cluster and isinstance(question, SpreadQuery) else query
