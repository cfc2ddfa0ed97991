"""One read: marks, then rows, in one pipeline, so that no row is older than its mark; the live pointer beside them.

Whoever removes a generation takes the pointer away first, then marks, then rows. In a cluster the pointer is on another
node and says nothing of the moment when the rows were read. So the marks are looked at once more behind the rows: rows
between two marks were all there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leftfold.flush import Generation, Mark, Phase, Snapshot
from leftfold.questions import Glance, Seen
from leftfold.redis.keys import BucketKeys
from leftfold.redis.marks import read_mark
from leftfold.redis.wording import Command, ask_live, hash_of, live_in

__all__ = ["Glimpse", "SnapshotQuery", "counts_in", "read_marks"]

PHASE, BULK = b"phase", Phase.BULK.value.encode()


class SnapshotQuery:
    """The commands of one read, and how their replies become a Snapshot; for blocking and asyncio clients alike."""

    def __init__(self, generation: Generation, keys: Sequence[tuple[int, str]], buckets: Sequence[int] = ()) -> None:
        self._generation = generation
        places = {bucket: BucketKeys(generation, bucket) for bucket in buckets}
        behind: dict[int, Command] = {}
        for bucket, _ in keys:
            if bucket not in places:
                places[bucket] = BucketKeys(generation, bucket)
            if bucket not in behind:
                behind[bucket] = ("HEXISTS", places[bucket].mark, "token")
        self._buckets, self._behind = list(places), list(behind)
        self.commands: list[Command] = [ask_live(generation)]
        self.commands += [("HGETALL", place.mark) for place in places.values()]
        self.commands += [("HGETALL", places[bucket].row(key)) for bucket, key in keys]
        self.commands += behind.values()

    def answer(self, replies: Sequence[Any]) -> Snapshot:
        """What the replies say."""
        count, rows = len(self._buckets), len(replies) - len(self._behind)
        found = dict(zip(self._buckets, replies[1 : 1 + count], strict=True))
        for bucket, there in zip(self._behind, replies[rows:], strict=True):
            if not there:
                del found[bucket]
        return Snapshot(
            live=live_in(replies[0]),
            marks=read_marks(self._generation, found),
            rows=tuple([hash_of(reply) or None for reply in replies[1 + count : rows]]),
        )


class Glimpse:
    """`Glance` in Redis' words; a mark behind the row is enough where nobody asks how far it is."""

    def __init__(self, asked: Glance) -> None:
        self._generation = asked.generation
        keys = BucketKeys(asked.generation, asked.bucket)
        self.commands: list[Command] = [
            ask_live(asked.generation),
            ("HGETALL", keys.row(asked.key)),
            ("HGET", keys.mark, PHASE),
        ]

    def answer(self, replies: Sequence[Any]) -> Seen:
        """What the replies say."""
        live, fields, phase = replies
        return Seen(live_in(live), counts_in(self._generation, phase), hash_of(fields) or None)


class _Marks(Mapping[int, Mark]):
    """Marks that are read when somebody looks at them; most reads only ask whether they are there."""

    def __init__(self, generation: Generation, replies: Mapping[int, Any]) -> None:
        self._generation = generation
        hashes = {bucket: hash_of(reply) for bucket, reply in replies.items() if reply}
        self._hashes = {b: fields for b, fields in hashes.items() if counts_in(generation, fields.get(PHASE, b""))}
        self._marks: dict[int, Mark] = {}

    def __getitem__(self, bucket: int) -> Mark:
        mark = self._marks.get(bucket)
        if mark is None:
            where = f"bucket {bucket} of {self._generation.view} {self._generation.id}"
            mark = self._marks[bucket] = read_mark(self._hashes[bucket], where)
        return mark

    def __contains__(self, bucket: object) -> bool:
        return bucket in self._hashes

    def __iter__(self) -> Iterator[int]:
        return iter(self._hashes)

    def __len__(self) -> int:
        return len(self._hashes)


def read_marks(generation: Generation, replies: Mapping[int, Any]) -> Mapping[int, Mark]:
    """The marks of some buckets from the replies to HGETALL, without those that are missing or have lost their seal."""
    return _Marks(generation, replies)


def counts_in(generation: Generation, phase: bytes | None) -> bool:
    """Whether a bucket is there, and sealed if its generation is."""
    return phase is not None and (phase != BULK or generation.phase is Phase.BULK)
