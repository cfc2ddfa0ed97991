"""A share of the row keys, the same one for everybody who asks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b

from leftfold.flush import Mark

__all__ = ["partitions_for", "sampled"]


@lru_cache(maxsize=200_000)
def sampled(key: str, share: float) -> bool:
    """Whether an encoded row key belongs to a share (0 to 1) of all keys."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) < share * (1 << 64)


def partitions_for(share: float, marks: Mapping[int, Mark]) -> tuple[Mapping[int, Mark], float]:
    """The buckets of a stream-keyed view that a sample reads, the largest first, and the share of their rows.

    Keys are spread over partitions by their hash, so the rows of one are a sample, too, and nothing else need be read.
    """
    rows = sum(mark.rows for mark in marks.values())
    chosen: dict[int, Mark] = {}
    held = 0
    for bucket, mark in sorted(marks.items(), key=lambda one: (-one[1].rows, one[0])):
        if held and held >= share * rows:
            break
        chosen[bucket] = mark
        held += mark.rows
    return chosen, min(1.0, share * rows / held) if held else share
