"""Redis as the view store: rows, indexes, checkpoints and generations, on one server, behind sentinels or in a cluster.

`RedisViewStore` implements the ViewStore port, `RedisBulkSink` writes a generation that is being rebuilt. All keys of a
bucket carry one hash tag, so only a flush of several buckets touches more than one slot: that is one transaction on one
server, and one per bucket in a cluster.
"""

from leftfold.redis.bulk_load import RedisBulkSink
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.store import RedisViewStore, refuse_eviction

__all__ = ["RedisBulkSink", "RedisSettings", "RedisViewStore", "refuse_eviction"]
