"""A simulated Redis server: takes the bytes of connections and gives bytes back, in the time of the simulation.

Here is what a server does with bytes and data. How bytes travel, and what is lost on the way, is in `network`.
"""

from leftfold.testing.simulation.redis_server.connection import Session
from leftfold.testing.simulation.redis_server.server import RedisServer, Saved

__all__ = ["RedisServer", "Saved", "Session"]
