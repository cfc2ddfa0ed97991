"""Which server a key is on: always the same one, the master of the moment, or the owner of the key's slot."""

from __future__ import annotations

from typing import Protocol

from leftfold.redis.sentinels import Sentinels
from leftfold.redis.settings import RedisSettings
from leftfold.redis.slots import Slots
from leftfold.redis.wire import Dial, Wire, dial

__all__ = ["OneServer", "Topology", "topology_of"]


class Topology(Protocol):
    """Knows where keys are, and notices when that was wrong; any number of threads may use it.

    `server` and `wire` raise OSError when nobody can tell where a key is, or the server found cannot be reached.
    """

    settings: RedisSettings
    spread: bool
    """Whether keys are spread over several servers."""

    def server(self, key: bytes) -> RedisSettings:
        """The settings of the server that a key is on; asks others about it if that is not known."""

    def known(self, key: bytes) -> RedisSettings | None:
        """`server`, but None instead of asking."""

    def wire(self, key: bytes, dial: Dial = dial) -> Wire:
        """A bare connection to the server that a key is on."""

    def hearers(self) -> list[RedisSettings]:
        """Servers each of which hears every notice; the first that answers will do. Raises OSError as `server`."""

    def met(self, error: BaseException) -> bool:
        """Learns from an error of a server; True when it says that a key may be somewhere else now."""

    def told(self) -> str:
        """Which servers there are at the moment, for people; raises OSError when something of it is missing."""


class OneServer:
    """The topology of a single server: nothing to find out, nothing to learn."""

    spread = False

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings

    def server(self, key: bytes) -> RedisSettings:
        """The one server."""
        return self.settings

    def known(self, key: bytes) -> RedisSettings | None:
        """The one server."""
        return self.settings

    def wire(self, key: bytes, dial: Dial = dial) -> Wire:
        """A connection to it."""
        return Wire(self.settings, dial)

    def hearers(self) -> list[RedisSettings]:
        """The one server."""
        return [self.settings]

    def met(self, error: BaseException) -> bool:
        """Never: there is no other place."""
        return False

    def told(self) -> str:
        """The one server."""
        return self.settings.address


def topology_of(settings: RedisSettings, dial: Dial = dial) -> Topology:
    """The topology that a URL speaks of."""
    match settings.kind:
        case "server":
            return OneServer(settings)
        case "sentinel":
            return Sentinels(settings, dial)
        case "cluster":
            return Slots(settings, dial)
