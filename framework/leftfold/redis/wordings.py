"""Every question of a reader in Redis' words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from leftfold.flush import Registry
from leftfold.questions import (
    Changes,
    Counting,
    Counts,
    Entries,
    Glance,
    Inspection,
    Listed,
    Matches,
    Matching,
    Question,
    Range,
    Registered,
    Rows,
)
from leftfold.redis.changestream import Recently
from leftfold.redis.guarded import Guarded, Spread
from leftfold.redis.inspection import EntriesFrom, Inspecting
from leftfold.redis.keys import BucketKeys, escaped, registry_key, told
from leftfold.redis.registry import decoded
from leftfold.redis.snapshots import Glimpse, SnapshotQuery
from leftfold.redis.wording import Command, Wording, ask_live, hash_of, live_in

__all__ = ["worded"]

A = TypeVar("A")


def worded(question: Question[A], *, spread: bool = False) -> Wording[A]:
    """The commands of a question, and how to read their replies.

    Args:
        spread: keys are on several servers, which do not answer in one order.
    """
    wording: Wording[A] = _WORDINGS[type(question)](question)
    if spread and isinstance(question, Spread):
        guarded: Any = Guarded(question, wording)
        wording = guarded
    return wording


class _Registered:
    def __init__(self, asked: Registered) -> None:
        self._view = asked.view
        self.commands: list[Command] = [("HGETALL", registry_key(asked.view))]

    def answer(self, replies: Sequence[Any]) -> Registry:
        return decoded(self._view, hash_of(replies[0]))


class _Listed:
    def __init__(self, asked: Listed) -> None:
        start = b"(" + asked.after.encode() if asked.after else b"-"
        listed = BucketKeys(asked.generation, asked.bucket).listed
        self.commands: list[Command] = [("ZRANGEBYLEX", listed, start, b"+", b"LIMIT", 0, asked.limit)]

    def answer(self, replies: Sequence[Any]) -> list[str]:
        return [key.decode() for key in replies[0]]


class _Matching:
    def __init__(self, asked: Matching) -> None:
        generation = asked.generation
        self._buckets = tuple(range(generation.buckets)) if asked.buckets is None else asked.buckets
        self.commands: list[Command] = [ask_live(generation)]
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
            found.append({bucket: tuple(map(told, members)) for bucket, members in entries})
        return Matches(live_in(replies[0]), tuple(found))


class _Counting:
    def __init__(self, asked: Counting) -> None:
        generation = asked.generation
        self._each = generation.buckets
        self.commands: list[Command] = [ask_live(generation)]
        for range_ in asked.ranges:
            for bucket in range(generation.buckets):
                self.commands.append(("ZLEXCOUNT", BucketKeys(generation, bucket).index(range_.index), *_ends(range_)))

    def answer(self, replies: Sequence[Any]) -> Counts:
        rest = replies[1:]
        totals = (sum(rest[start : start + self._each]) for start in range(0, len(rest), self._each))
        return Counts(live_in(replies[0]), tuple(totals))


def _ends(range_: Range) -> tuple[bytes, bytes]:
    """The ends of a range among members `value NUL key`: no key begins with a byte from DEL on, nor with a NUL."""
    low, high = (None if text is None else escaped(text) for text in (range_.low, range_.high))
    start = b"[=" if low is None else b"[%b\0\x7f" % low if range_.above_low else b"[%b\0" % low
    end = b"(>" if high is None else b"(%b\0" % high if range_.below_high else b"(%b\0\x7f" % high
    return start, end


_WORDINGS: dict[type, Callable[[Any], Wording[Any]]] = {
    Registered: _Registered,
    Glance: Glimpse,
    Rows: lambda asked: SnapshotQuery(asked.generation, asked.keys, asked.buckets),
    Listed: _Listed,
    Matching: _Matching,
    Counting: _Counting,
    Entries: EntriesFrom,
    Inspection: Inspecting,
    Changes: Recently,
}
