"""What verification asks, in Redis' words: an index entry by entry, and all that is stored of one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leftfold.questions import Entries, Inspection, Standing
from leftfold.redis.keys import BucketKeys, entry, told
from leftfold.redis.snapshots import read_marks
from leftfold.redis.wording import Command, hash_of

__all__ = ["EntriesFrom", "Inspecting"]


class EntriesFrom:
    """`Entries` in Redis' words."""

    def __init__(self, asked: Entries) -> None:
        first = b"-" if asked.first == ("", "") else b"[" + entry(*asked.first)
        index = BucketKeys(asked.generation, asked.bucket).index(asked.index)
        self.commands: list[Command] = [("ZRANGEBYLEX", index, first, b"+", b"LIMIT", 0, asked.limit)]

    def answer(self, replies: Sequence[Any]) -> list[tuple[str, str]]:
        """What the replies say."""
        return [told(member) for member in replies[0]]


class Inspecting:
    """`Inspection` in Redis' words: the mark before all, and its token once more behind."""

    def __init__(self, asked: Inspection) -> None:
        self._asked = asked
        keys = BucketKeys(asked.generation, asked.bucket)
        self.commands: list[Command] = [
            ("HGETALL", keys.mark),
            ("HGETALL", keys.row(asked.key)),
            ("ZSCORE", keys.listed, asked.key),
            *(("ZSCORE", keys.index(index), entry(value, asked.key)) for index, value in asked.entries),
            ("HGET", keys.mark, "token"),
        ]

    def answer(self, replies: Sequence[Any]) -> Standing:
        """What the replies say."""
        whole, fields, listed, *scores, token = replies
        asked = self._asked
        mark = read_marks(asked.generation, {asked.bucket: whole}).get(asked.bucket)
        return Standing(
            mark,
            hash_of(fields) or None,
            listed is not None,
            frozenset(entry for entry, score in zip(asked.entries, scores, strict=True) if score is not None),
            mark is not None and token is not None and token.decode() == mark.token,
        )
