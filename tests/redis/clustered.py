"""A generation with buckets on every master of a cluster, and how tests look at it."""

from __future__ import annotations

from redis.crc import key_slot

from leftfold.ports.flush import BucketFlush, Generation
from leftfold.redis import RedisViewStore
from leftfold.redis.keys import BucketKeys
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from tests.redis.cluster_set import ClusterSet

__all__ = ["BUCKETS", "flushes", "has_rows", "new_spread", "rows", "slot_of", "tokens"]

BUCKETS = 6


def new_spread(cluster: ClusterSet, store: RedisViewStore) -> Generation:
    """An empty generation with buckets on every master."""
    while True:
        generation = new_generation(buckets=BUCKETS)
        owners = {cluster.owner(slot_of(generation, bucket)).port for bucket in range(BUCKETS)}
        if len(owners) == 3:
            assert store.create_marks(generation, {bucket: checkpoint("", 0) for bucket in range(BUCKETS)})
            return generation


def slot_of(generation: Generation, bucket: int) -> int:
    """Where a bucket is."""
    return int(key_slot(BucketKeys(generation, bucket).checkpoint))


def flushes(generation: Generation, expected: str, token: str, name: str) -> list[BucketFlush]:
    """A flush of all buckets with one new row each."""
    return [flush_of(generation, b, expected, token, row(f"{name}{b}")) for b in range(generation.buckets)]


def tokens(store: RedisViewStore, generation: Generation) -> list[str]:
    """The tokens of all buckets."""
    return [found.token for _, found in sorted(store.checkpoints(generation).items())]


def rows(store: RedisViewStore, generation: Generation, bucket: int) -> list[str]:
    """The row keys of a bucket."""
    return store.keys(generation, bucket, "", 99)


def has_rows(store: RedisViewStore, generation: Generation, bucket: int, names: str) -> bool:
    """Whether a bucket has the rows of these flushes and no others."""
    return rows(store, generation, bucket) == [f"{name}{bucket}" for name in names]
