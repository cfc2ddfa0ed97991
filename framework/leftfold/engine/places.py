"""Where a row is: its bucket and its encoded key."""

from __future__ import annotations

from urllib.parse import unquote

from leftfold.flush import Generation
from leftfold.partitioner import partition_of

__all__ = ["place_of"]


def place_of(generation: Generation, key: str) -> tuple[int, str]:
    """The bucket and the key of a row: of a stream-keyed view the partition of its stream, else murmur2 of the key."""
    name = unquote(key) if generation.stream_keyed else key
    return partition_of(name.encode(), generation.buckets), key
