"""A simulated Redis server: takes the bytes of connections and returns bytes, in the time of the simulation.

This package handles bytes and data. How bytes travel, and which are lost, is in `network`.
"""

from leftfold.testing.simulation.redis_server.connection import Session
from leftfold.testing.simulation.redis_server.simulated_redis import RedisServer, Saved

__all__ = ["RedisServer", "Saved", "Session"]
