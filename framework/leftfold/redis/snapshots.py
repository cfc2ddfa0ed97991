"""One read: marks, then rows, in one pipeline, so that no row is older than its mark; the live pointer beside them.

Whoever removes a generation takes the pointer away first, then marks, then rows. In a cluster the pointer is on another
node and says nothing of the moment when the rows were read. So the marks are looked at once more behind the rows: rows
between two marks were all there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from leftfold.flush import Generation, Mark, Phase, Snapshot
from leftfold.redis.keys import BucketKeys, registry_key
from leftfold.redis.marks import read_mark

__all__ = ["Question", "read_marks"]

Command: TypeAlias = tuple[str | bytes, ...]


class Question:
    """The commands of one read, and how their replies become a Snapshot; for blocking and asyncio pipelines alike."""

    def __init__(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> None:
        self._generation = generation
        self._places = {bucket: BucketKeys(generation, bucket) for bucket, _ in keys}
        self.commands: list[Command] = [("HGET", registry_key(generation.view), f"live:{generation.hash}")]
        self.commands += (("HGETALL", place.mark) for place in self._places.values())
        self.commands += (("HGETALL", self._places[bucket].row(key)) for bucket, key in keys)
        self.commands += (("HEXISTS", place.mark, "token") for place in self._places.values())

    def snapshot(self, replies: Sequence[Any]) -> Snapshot:
        """What the replies say."""
        count = len(self._places)
        live, before, rows, behind = replies[0], replies[1 : 1 + count], replies[1 + count : -count], replies[-count:]
        found = {b: fields for b, fields, there in zip(self._places, before, behind, strict=False) if there}
        return Snapshot(
            live=(live or b"").decode(),
            marks=read_marks(self._generation, found),
            rows=tuple(fields or None for fields in rows),
        )


def read_marks(generation: Generation, hashes: Mapping[int, Mapping[bytes, bytes]]) -> dict[int, Mark]:
    """The marks of some buckets from their hashes, without those that are missing or have lost their seal."""
    marks = {
        bucket: read_mark(fields, f"bucket {bucket} of {generation.view} {generation.id}")
        for bucket, fields in hashes.items()
        if fields
    }
    return {b: mark for b, mark in marks.items() if mark.phase is not Phase.BULK or generation.phase is Phase.BULK}
