"""One read: the live pointer, then marks, then rows, in one pipeline, so that no row is older than its mark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leftfold.flush import Generation, Mark, Snapshot
from leftfold.questions import Glance, Seen
from leftfold.redis.keys import BucketKeys
from leftfold.redis.marks import read_mark
from leftfold.redis.wording import Command, ask_live, hash_of, live_in

__all__ = ["Glimpse", "Question", "read_marks"]


class Question:
    """The commands of one read, and how their replies become a Snapshot; for blocking and asyncio clients alike."""

    def __init__(self, generation: Generation, keys: Sequence[tuple[int, str]], buckets: Sequence[int] = ()) -> None:
        self._generation = generation
        places = {bucket: BucketKeys(generation, bucket) for bucket in buckets}
        for bucket, _ in keys:
            if bucket not in places:
                places[bucket] = BucketKeys(generation, bucket)
        self._buckets = list(places)
        self.commands: list[Command] = [ask_live(generation)]
        self.commands += [("HGETALL", place.mark) for place in places.values()]
        self.commands += [("HGETALL", places[bucket].row(key)) for bucket, key in keys]

    def answer(self, replies: Sequence[Any]) -> Snapshot:
        """What the replies say."""
        count = len(self._buckets)
        return Snapshot(
            live=live_in(replies[0]),
            marks=read_marks(self._generation, dict(zip(self._buckets, replies[1 : 1 + count], strict=True))),
            rows=tuple([hash_of(reply) or None for reply in replies[1 + count :]]),
        )


class Glimpse:
    """`Glance` in Redis' words; the mark is looked for behind the row, for whoever removes rows removes marks first."""

    def __init__(self, asked: Glance) -> None:
        keys = BucketKeys(asked.generation, asked.bucket)
        self.commands: list[Command] = [
            ask_live(asked.generation),
            ("HGETALL", keys.row(asked.key)),
            ("EXISTS", keys.mark),
        ]

    def answer(self, replies: Sequence[Any]) -> Seen:
        """What the replies say."""
        live, fields, whole = replies
        return Seen(live_in(live), bool(whole), hash_of(fields) or None)


class _Marks(Mapping[int, Mark]):
    """Marks that are read when somebody looks at them; most reads only ask whether they are there."""

    def __init__(self, generation: Generation, replies: Mapping[int, Any]) -> None:
        self._generation = generation
        self._replies = {bucket: reply for bucket, reply in replies.items() if reply}
        self._marks: dict[int, Mark] = {}

    def __getitem__(self, bucket: int) -> Mark:
        mark = self._marks.get(bucket)
        if mark is None:
            where = f"bucket {bucket} of {self._generation.view} {self._generation.id}"
            mark = self._marks[bucket] = read_mark(hash_of(self._replies[bucket]), where)
        return mark

    def __contains__(self, bucket: object) -> bool:
        return bucket in self._replies

    def __iter__(self) -> Iterator[int]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)


def read_marks(generation: Generation, replies: Mapping[int, Any]) -> Mapping[int, Mark]:
    """The marks of some buckets from the replies to HGETALL, without those that are missing."""
    return _Marks(generation, replies)
