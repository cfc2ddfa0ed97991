"""Answers that are made of many buckets of a cluster, and whether the buckets were there until the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from leftfold.questions import Changes, Counting, Counts, Matches, Matching, Recent
from leftfold.redis.keys import BucketKeys
from leftfold.redis.snapshots import PHASE, counts_in
from leftfold.redis.wording import Command, Wording

__all__ = ["Guarded", "Spread"]

Spread = Matching | Counting | Changes


class Guarded:
    """Looks at every bucket's mark behind what was asked for, and calls the generation not live where one is missing.

    The live pointer is on another node and says nothing of the moment when the others answered. Marks are removed
    before anything else of a bucket, so what was found before a mark was whole.
    """

    def __init__(self, asked: Spread, wording: Wording[Any]) -> None:
        self._generation, self._wording = asked.generation, wording
        marks = (BucketKeys(asked.generation, bucket).mark for bucket in _buckets(asked))
        self.commands: list[Command] = [*wording.commands, *(("HGET", mark, PHASE) for mark in marks)]

    def answer(self, replies: Sequence[Any]) -> Matches | Counts | Recent:
        """What the replies say."""
        asked = len(self._wording.commands)
        found: Matches | Counts | Recent = self._wording.answer(replies[:asked])
        whole = all(counts_in(self._generation, phase) for phase in replies[asked:])
        return found if whole else replace(found, live="")


def _buckets(asked: Spread) -> Sequence[int]:
    if isinstance(asked, Changes):
        return tuple(asked.ids)
    if isinstance(asked, Matching) and asked.buckets is not None:
        return asked.buckets
    return range(asked.generation.buckets)
