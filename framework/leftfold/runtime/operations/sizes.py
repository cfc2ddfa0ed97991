"""How many bytes generations take in Redis, estimated from a sample of their keys."""

from __future__ import annotations

from contextlib import closing
from statistics import fmean
from typing import Any

from leftfold.model.view import View
from leftfold.ports.flush import Generation, Phase
from leftfold.ports.protocols import ViewStore
from leftfold.runtime.connect import extras, redis_settings
from leftfold.runtime.servers import store_of

__all__ = ["sampled_bytes"]

_BUCKETS, _ROWS = 4, 5
"""How many buckets of a generation are looked at, and how many rows of each."""


def sampled_bytes(view: View[Any, Any], redis: str | None) -> dict[str, int]:
    """About how many bytes each generation of a view takes in Redis, by its id, once it is loaded.

    Raises:
        InfrastructureError: Redis does not answer.
    """
    with extras():
        from leftfold.redis.connection.errors import translated
        from leftfold.redis.connection.sync import RoutedClient
        from leftfold.redis.connection.topology import topology_of
    settings = redis_settings(redis)
    with store_of(redis) as store, translated(settings), closing(RoutedClient(topology_of(settings))) as client:
        found = store.registry(view.name).generations.values()
        # While it is loaded, its checkpoints do not count its rows.
        whole = [generation for generation in found if generation.phase is not Phase.BULK]
        return {generation.id: _bytes_of(view, generation, store, client) for generation in whole}


def _bytes_of(view: View[Any, Any], generation: Generation, store: ViewStore, client: Any) -> int:
    from leftfold.redis.keys import BucketKeys

    checkpoints = store.checkpoints(generation)
    filled = [bucket for bucket, one in sorted(checkpoints.items()) if one.rows]
    rows, sets = list[bytes](), list[bytes]()
    for bucket in filled[:: -(-len(filled) // _BUCKETS) or 1]:
        keys = BucketKeys(generation, bucket)
        rows += map(keys.row, store.keys(generation, bucket, "", _ROWS))
        sets += [keys.checkpoint, keys.listed, keys.changes, *map(keys.index, view.rows.indexes)]
    if not rows:
        return 0
    used = [size or 0 for size in client.execute([("MEMORY USAGE", key) for key in (*rows, *sets)])]
    of_row, of_set = fmean(used[: len(rows)]), fmean(used[len(rows) :])
    each = 3 + len(view.rows.indexes)
    return round(of_row * sum(one.rows for one in checkpoints.values()) + of_set * each * len(filled))
