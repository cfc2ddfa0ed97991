"""Where a row is: its bucket and its encoded key."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote

from leftfold.flush import Generation
from leftfold.partitioner import partition_of

__all__ = ["bucket_of", "place_of"]

_HASHED = 1 << 16
"""How many keys' buckets are remembered; murmur2 in Python costs as much as all the rest of folding an event in."""


def bucket_of(generation: Generation, key: str, partition: int) -> int:
    """The bucket of an encoded row key: its source partition when stream-keyed, else murmur2 of the key."""
    return partition if generation.stream_keyed else _hashed(key, generation.buckets)


def place_of(generation: Generation, key: str) -> tuple[int, str]:
    """The bucket and the key of a row: of a stream-keyed view the partition of its stream, else murmur2 of the key."""
    name = unquote(key) if generation.stream_keyed else key
    return partition_of(name.encode(), generation.buckets), key


@lru_cache(maxsize=_HASHED)
def _hashed(key: str, buckets: int) -> int:
    return partition_of(key.encode(), buckets)
