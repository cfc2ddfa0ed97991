"""murmur2 as Kafka's Java clients compute it: one partitioner for every client, view bucket and test."""

from __future__ import annotations

__all__ = ["murmur2", "partition_of"]

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The positive murmur2 of the bytes (org.apache.kafka.common.utils.Utils.murmur2, sign bit cleared)."""
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little")
        k = k * _M & _MASK
        k ^= k >> 24
        h = (h * _M & _MASK) ^ (k * _M & _MASK)
    rest = length & 3
    if rest:
        h ^= int.from_bytes(data[whole:], "little")
        h = h * _M & _MASK
    h ^= h >> 13
    h = h * _M & _MASK
    h ^= h >> 15
    return h & 0x7FFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key."""
    return murmur2(key) % partitions
