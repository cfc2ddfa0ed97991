"""A share of the row keys, the same one for everybody who asks."""

from __future__ import annotations

from hashlib import blake2b

__all__ = ["sampled"]


def sampled(key: str, share: float) -> bool:
    """Whether an encoded row key belongs to a share (0 to 1) of all keys."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) < share * (1 << 64)
