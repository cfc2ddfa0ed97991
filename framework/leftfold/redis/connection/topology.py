"""The Redis server of a key: a single one, the master behind sentinels, or the slot's owner in a cluster."""

from __future__ import annotations

import random
from threading import Lock
from typing import Any, Protocol

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.redis.connection.errors import SlotMoved, refuse_errors
from leftfold.redis.connection.protocol import Dial, Wire, dial, packed
from leftfold.redis.connection.settings import Node, RedisSettings

__all__ = ["ROLE", "Sentinels", "Slots", "Topology", "topology_of", "why_no_master"]


ROLE = packed(b"ROLE")


class Sentinels:
    """The topology of a master behind sentinels, which are asked again whenever the known master fails.

    A majority of the sentinels is asked and the latest configuration epoch counts, so that a sentinel that was cut off
    and knows only an earlier master does not decide. Each connection then asks the server itself for its role, as the
    guidelines for Sentinel clients demand: a master that was demoted, or comes back as a replica, must not be read or
    written.
    """

    spread = False

    def __init__(self, settings: RedisSettings, dial: Dial = dial) -> None:
        self.settings, self._dial = settings, dial
        self._lock = Lock()
        self._master: RedisSettings | None = None

    def server(self, key: bytes) -> RedisSettings:
        """The master."""
        with self._lock:
            if self._master is None:
                self._master = self.settings.at(self._asked())
            return self._master

    def known(self, key: bytes) -> RedisSettings | None:
        """The last known master."""
        return self._master

    def wire(self, key: bytes, dial: Dial = dial) -> Wire:
        """A connection to the master, after ROLE has confirmed that it is one."""
        server = self.server(key)
        try:
            wire = Wire(server, dial)
        except OSError as error:
            raise ConnectionError(f"master {server.address}: {error}") from error
        try:
            replies = wire.exchange([ROLE])
            refuse_errors(self.settings, replies, [ROLE])
            if why := why_no_master(replies[0], server):
                raise ConnectionError(why)
        except BaseException:
            wire.close()
            raise
        return wire

    def hearers(self) -> list[RedisSettings]:
        """The master: a replica that was cut off receives no messages."""
        return [self.server(b"")]

    def met(self, error: BaseException) -> bool:
        """Forgets the master after a lost connection or a reply of a replica; the sentinels are asked again."""
        if not _is_about_the_master(error):
            return False
        with self._lock:
            self._master = None
        return True

    def describe(self) -> str:
        """The current master."""
        return f"{self.settings.address}: master {self.server(b'').address}"

    def _asked(self) -> Node:
        found: list[tuple[int, Node]] = []
        failures: list[str] = []
        error_of: type[Exception] = ConnectionError
        enough = len(self.settings.nodes) // 2 + 1
        for node in self.settings.nodes:
            try:
                found.append(self._ask(node))
            except (OSError, InfrastructureError, ConfigurationError) as error:
                error_of = ConfigurationError if isinstance(error, ConfigurationError) else error_of
                failures.append(f"{node[0]}:{node[1]}: {error}")
            if len(found) == enough:
                break
        if not found:
            raise error_of(f"no sentinel names a master {self.settings.service!r} ({'; '.join(failures)})")
        return max(found)[1]

    def _ask(self, node: Node) -> tuple[int, Node]:
        """The master and its configuration epoch, from one sentinel."""
        wire = Wire(self.settings.sentinel_at(node), self._dial)
        try:
            service = self.settings.service.encode()
            commands = [
                packed(b"SENTINEL", b"get-master-addr-by-name", service),
                packed(b"SENTINEL", b"master", service),
            ]
            address, master = replies = wire.exchange(commands)
        finally:
            wire.close()
        if address is None:
            raise ConnectionError("it watches no such master")
        refuse_errors(self.settings.sentinel_at(node), replies, commands)
        fields = dict(zip(master[::2], master[1::2], strict=True))
        return int(fields.get(b"config-epoch", 0)), (address[0].decode(), int(address[1]))


def why_no_master(role: Any, server: RedisSettings) -> str:
    """The reason why a server with this ROLE reply cannot be used as a master; '' when it is one."""
    return "" if role[0] == b"master" else f"{server.address} is a {role[0].decode()} now, not the master"


def _is_about_the_master(error: BaseException) -> bool:
    lost = isinstance(error, (OSError, redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError))
    return lost or (isinstance(error, InfrastructureError) and "READONLY" in str(error))


class Slots:
    """The topology of a cluster; the map of slots comes from any node, and is kept until it proves wrong."""

    spread = True

    def __init__(self, settings: RedisSettings, dial: Dial = dial) -> None:
        self.settings, self._dial = settings, dial
        self._lock = Lock()
        self._owners: dict[int, RedisSettings] = {}
        self._nodes: set[Node] = set()

    def server(self, key: bytes) -> RedisSettings:
        """The node that owns a key's slot."""
        slot = key_slot(key)
        with self._lock:
            if not self._owners:
                self._owners = self._asked()
            if slot not in self._owners:
                self._owners, owners = {}, self._owners
                raise ConnectionError(f"no node owns slot {slot} of {key!r}; {len(owners)} slots have an owner")
            return self._owners[slot]

    def known(self, key: bytes) -> RedisSettings | None:
        """The node that owns a key's slot by the last known map."""
        return self._owners.get(key_slot(key))

    def wire(self, key: bytes, dial: Dial = dial) -> Wire:
        """A connection to the node that owns a key's slot."""
        server = self.server(key)
        try:
            return Wire(server, dial)
        except OSError as error:
            raise ConnectionError(f"node {server.address}: {error}") from error

    def hearers(self) -> list[RedisSettings]:
        """Every master, in random order: nodes pass messages on to each other."""
        with self._lock:
            if not self._owners:
                self._owners = self._asked()
            masters = {owner.url: owner for owner in self._owners.values()}
        return random.sample(list(masters.values()), len(masters))

    def met(self, error: BaseException) -> bool:
        """Learns one slot's new owner from MOVED, and forgets the map when a node is lost."""
        if isinstance(error, redis.exceptions.MovedError):
            self._move(error.slot_id, (error.host, error.port))
        elif isinstance(error, SlotMoved):
            kind, *rest = str(error).split(" ")
            if kind == "MOVED":
                host, _, port = rest[1].rpartition(":")
                self._move(int(rest[0]), (host, int(port)))
        elif isinstance(error, (OSError, redis.ConnectionError, redis.TimeoutError)):
            with self._lock:
                self._owners = {}
        else:
            return isinstance(error, (redis.exceptions.AskError, redis.exceptions.TryAgainError))
        return True

    def describe(self) -> str:
        """The number of masters that share the slots."""
        with self._lock:
            self._owners = self._asked()
            masters, missing = {owner.url for owner in self._owners.values()}, SLOTS - len(self._owners)
        if missing:
            raise ConnectionError(f"{missing} of its {SLOTS} slots have no owner")
        return f"{self.settings.address}: {len(masters)} masters"

    def _move(self, slot: int, node: Node) -> None:
        """Sets one slot's owner; forgets the map when the node does not know its own host name."""
        with self._lock:
            if not node[0] or node[0] == "?":
                self._owners = {}
            elif self._owners:
                self._owners[slot] = self.settings.at(node)

    def _asked(self) -> dict[int, RedisSettings]:
        """The map from the first node that answers, in random order: one that was cut off is not always first."""
        failures: list[str] = []
        error_of: type[Exception] = ConnectionError
        nodes = sorted(self._nodes | set(self.settings.nodes))
        for node in random.sample(nodes, len(nodes)):
            try:
                return self._ask(node)
            except (OSError, InfrastructureError, ConfigurationError) as error:
                error_of = ConfigurationError if isinstance(error, ConfigurationError) else error_of
                failures.append(f"{node[0]}:{node[1]}: {error}")
        raise error_of(f"no node of the cluster answers ({'; '.join(failures)})")

    def _ask(self, node: Node) -> dict[int, RedisSettings]:
        settings = self.settings.at(node)
        wire = Wire(settings, self._dial)
        try:
            (ranges,) = replies = wire.exchange(asked := [packed(b"CLUSTER", b"SLOTS")])
        finally:
            wire.close()
        refuse_errors(settings, replies, asked)
        if not ranges:
            raise ConnectionError("it knows no owner of any slot")
        owners: dict[int, RedisSettings] = {}
        for first, last, *places in ranges:
            owner = self.settings.at(_node(places[0], node[0]))
            owners.update(dict.fromkeys(range(first, last + 1), owner))
        self._nodes = {_node(place, node[0]) for _, _, *places in ranges for place in places}
        return owners


def _node(place: Any, asked: str) -> Node:
    """The address in a map of slots; a node without a host name is the one that was asked."""
    host = place[0].decode() if place[0] else ""
    return (host if host and host != "?" else asked), int(place[1])


class Topology(Protocol):
    """The servers of a URL and the keys on them; any number of threads may use it.

    `server` and `wire` raise OSError when the server of a key is unknown or cannot be reached.
    """

    settings: RedisSettings
    spread: bool
    """Whether keys are spread over several servers."""

    def server(self, key: bytes) -> RedisSettings:
        """The settings of the server that a key is on; looks it up if it is not known."""

    def known(self, key: bytes) -> RedisSettings | None:
        """`server`, but None instead of a lookup."""

    def wire(self, key: bytes, dial: Dial = dial) -> Wire:
        """A bare connection to the server that a key is on."""

    def hearers(self) -> list[RedisSettings]:
        """Servers each of which receives every pub/sub message; the first that answers is enough. Raises OSError."""

    def met(self, error: BaseException) -> bool:
        """Learns from an error of a server; True when a key may be on another server now."""

    def describe(self) -> str:
        """The current servers, for people; raises OSError when one is missing."""


class OneServer:
    """The topology of a single server: nothing to look up, nothing to learn."""

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
        """A connection to the one server."""
        return Wire(self.settings, dial)

    def hearers(self) -> list[RedisSettings]:
        """The one server."""
        return [self.settings]

    def met(self, error: BaseException) -> bool:
        """Always False: there is no other server."""
        return False

    def describe(self) -> str:
        """The one server."""
        return self.settings.address


def topology_of(settings: RedisSettings, dial: Dial = dial) -> Topology:
    """The topology for the settings' URL."""
    match settings.kind:
        case "server":
            return OneServer(settings)
        case "sentinel":
            return Sentinels(settings, dial)
        case "cluster":
            return Slots(settings, dial)
