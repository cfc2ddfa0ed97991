"""Who folds which buckets where several tails share a view; each works it out from the same list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from leftfold.flush import Generation

__all__ = ["shares_of"]


def shares_of(members: Sequence[str], generation: Generation) -> dict[str, frozenset[int]]:
    """Deals the buckets of a generation out to members, evenly and so that few move when one comes or goes.

    This is rendezvous hashing (Thaler and Ravishankar, 1998) with the even share as a bound. Buckets of stream-keyed
    views are source partitions, and all such views give one partition to one member, which then reads it once.
    """
    most = -(-generation.buckets // max(1, len(members)))
    kind = "partition" if generation.stream_keyed else "bucket"
    load: Counter[str] = Counter()
    shares: dict[str, set[int]] = {member: set() for member in members}
    for bucket in range(generation.buckets) if members else ():
        ranked = sorted(members, key=lambda member: _rank(kind, bucket, member))
        owner = next(member for member in ranked if load[member] < most)
        load[owner] += 1
        shares[owner].add(bucket)
    return {member: frozenset(buckets) for member, buckets in shares.items()}


def _rank(kind: str, bucket: int, member: str) -> bytes:
    return blake2b(f"{kind} {bucket} {member}".encode(), digest_size=8).digest()
