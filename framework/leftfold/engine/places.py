"""Where a row is: its bucket and its encoded key."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias
from urllib.parse import unquote

from leftfold.flush import Generation
from leftfold.partitioner import partition_of

__all__ = ["NO_KEY", "Place", "bucket_of", "place_of"]

Place: TypeAlias = tuple[int, str]
"""A bucket and an encoded row key in it."""
NO_KEY = "\0"
"""Stands in for the key of a record that has none, so that it has a row to park."""
_HASHED = 1 << 16
"""How many keys' buckets are remembered; murmur2 in Python costs as much as all the rest of folding an event in."""


def bucket_of(generation: Generation, key: str, partition: int) -> int:
    """The bucket of an encoded row key: its source partition when stream-keyed, else murmur2 of the key."""
    return partition if generation.stream_keyed else _hashed(key, generation.buckets)


def place_of(generation: Generation, key: str) -> Place:
    """The bucket and the key of a row: of a stream-keyed view the partition of its stream, else murmur2 of the key."""
    return _hashed(unquote(key) if generation.stream_keyed else key, generation.buckets), key


@lru_cache(maxsize=_HASHED)
def _hashed(key: str, buckets: int) -> int:
    return partition_of(key.encode(), buckets)
