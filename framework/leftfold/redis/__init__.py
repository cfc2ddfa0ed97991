"""Redis as the store of views: rows, indexes, marks and generations on one server.

`RedisViewStore` implements the ViewStore port, `BulkSink` writes a generation that is being rebuilt. Everything of a
bucket carries one hash tag, so nothing here asks for more than one slot except a flush of several buckets.
"""

from leftfold.redis.settings import RedisSettings
from leftfold.redis.sink import BulkSink
from leftfold.redis.store import RedisViewStore

__all__ = ["BulkSink", "RedisSettings", "RedisViewStore"]
