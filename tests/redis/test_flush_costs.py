"""What it costs a flush to tell those who wait and watch: counted in commands."""

from __future__ import annotations

import pytest

from leftfold.redis import RedisViewStore
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from tests.redis.commandstats import counted
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers


def test_a_steady_flush_costs_one_notice_and_one_addition_per_changed_bucket(
    server: RedisServer, store: RedisViewStore
) -> None:
    generation = new_generation(buckets=8)
    assert store.create_marks(generation, {bucket: checkpoint("", 0) for bucket in range(8)})

    def flush(number: int, changed: int) -> None:
        before = f"t{number - 1}" if number else ""
        rows = [(row(f"r{number}"),) if bucket < changed else () for bucket in range(8)]
        flushes = [flush_of(generation, bucket, before, f"t{number}", *rows[bucket], at=number) for bucket in range(8)]
        assert store.flush(flushes)

    flush(0, 8)
    for number, changed in enumerate((0, 1, 5, 8), 1):
        with counted(server) as counts:
            flush(number, changed)
        assert (counts.get("xadd", 0), counts["publish"]) == (changed, 1)
        assert (counts["multi"], counts["exec"], counts["hset"]) == (1, 1, 8 + changed)
        others = counts.keys() - {"xadd", "publish", "multi", "exec", "hset", "zadd", "watch", "hget", "info"}
        assert not [name for name in others if counts[name] and not name.startswith(("client", "hello", "config"))]
