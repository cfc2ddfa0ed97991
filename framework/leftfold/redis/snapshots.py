"""One read: the live pointer, then marks, then rows, in one pipeline, so that no row is older than its mark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from leftfold.flush import Generation, Mark, Snapshot
from leftfold.redis.keys import BucketKeys, registry_key
from leftfold.redis.marks import read_mark

__all__ = ["Question", "read_marks"]

Command: TypeAlias = tuple[str | bytes, ...]


class Question:
    """The commands of one read, and how their replies become a Snapshot; for blocking and asyncio pipelines alike."""

    def __init__(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> None:
        self._generation = generation
        self._places = {bucket: BucketKeys(generation, bucket) for bucket, _ in keys}
        self.commands: list[Command] = [("HGET", registry_key(generation.view), f"live:{generation.pointer}")]
        self.commands += (("HGETALL", place.mark) for place in self._places.values())
        self.commands += (("HGETALL", self._places[bucket].row(key)) for bucket, key in keys)

    def snapshot(self, replies: Sequence[Any]) -> Snapshot:
        """What the replies say."""
        count = len(self._places)
        return Snapshot(
            live=(replies[0] or b"").decode(),
            marks=read_marks(self._generation, dict(zip(self._places, replies[1 : 1 + count], strict=True))),
            rows=tuple(fields or None for fields in replies[1 + count :]),
        )


def read_marks(generation: Generation, hashes: Mapping[int, Mapping[bytes, bytes]]) -> dict[int, Mark]:
    """The marks of some buckets from their hashes, without those that are missing."""
    return {
        bucket: read_mark(fields, f"bucket {bucket} of {generation.view} {generation.id}")
        for bucket, fields in hashes.items()
        if fields
    }
