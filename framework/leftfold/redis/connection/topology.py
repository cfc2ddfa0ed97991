"""The Redis server of a key: a single one, the master behind sentinels, or the slot's owner in a cluster.

redis-py's `Sentinel` and `RedisCluster` (8.1) do not keep what Leftfold promises. `Sentinel` believes the first
sentinel that answers; one that was cut off still counts the others in `num-other-sentinels`. `RedisCluster`:

- needs the right to COMMAND, which `leftfold topics acl` does not give;
- fails at ASK to a node that owns no slot yet, and at slots whose node has no host name;
- sends only the redirected commands of a pipeline again: a row is then read after the checkpoint that guards it;
- sends a command under WATCH again on a new connection, on which no key is watched, and EXEC overwrites another writer;
- raises an error when all connections are in use, and takes twice as long for a pipeline of reads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from threading import Lock
from typing import Any, TypeVar

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from leftfold.errors import InfrastructureError
from leftfold.redis.connection.errors import SlotMoved, denied
from leftfold.redis.connection.protocol import Connector, RawConnection, connect
from leftfold.redis.connection.server import open_server
from leftfold.redis.connection.settings import Node, RedisSettings

__all__ = ["ClusterTopology", "SentinelTopology", "Topology", "open_connection", "topology_of"]


A = TypeVar("A")


class Topology:
    """The servers of a URL and the keys on them, here of a single server; any number of threads may use it.

    `server` and `masters` raise OSError when the server of a key is unknown.
    """

    is_cluster = False
    """Whether keys are spread over several servers."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self._lock = Lock()

    def server(self, key: bytes) -> RedisSettings:
        """The settings of the server that a key is on; looks it up if it is not known."""
        return self.settings

    def known_server(self, key: bytes) -> RedisSettings | None:
        """`server`, but None instead of a lookup."""
        return self.settings

    def masters(self) -> list[RedisSettings]:
        """Every server that takes writes; each of them receives every pub/sub message."""
        return [self.server(b"")]

    def handle_error(self, error: BaseException) -> bool:
        """Forgets what an error of a server disproves; True when a key may be on another server now."""
        return False

    def describe(self) -> str:
        """The current servers, for people; raises OSError when one is missing."""
        return self.settings.address


class SentinelTopology(Topology):
    """The topology of a master behind sentinels, which are asked again whenever the known master fails.

    A majority of the sentinels is asked and the latest configuration epoch counts, so that a sentinel that was cut off
    and knows only an earlier master does not decide. Each connection then asks the server itself for its role, as the
    guidelines for Sentinel clients demand: a master that was demoted, or comes back as a replica, must not be read or
    written.
    """

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        self._master: RedisSettings | None = None

    def server(self, key: bytes) -> RedisSettings:
        """The master."""
        with self._lock:
            if self._master is None:
                nodes, why = self.settings.nodes, f"no sentinel names a master {self.settings.service!r}"
                found = _first_answers(self._ask, nodes, len(nodes) // 2 + 1, self.settings, why)
                self._master = self.settings.at(max(found)[1])
            return self._master

    def known_server(self, key: bytes) -> RedisSettings | None:
        """The last known master."""
        return self._master

    def handle_error(self, error: BaseException) -> bool:
        """Forgets the master after a lost connection or a reply of a replica; the sentinels are asked again."""
        lost = isinstance(error, (OSError, redis.ConnectionError, redis.TimeoutError, redis.ReadOnlyError))
        if not lost and not (isinstance(error, InfrastructureError) and "READONLY" in str(error)):
            return False
        with self._lock:
            self._master = None
        return True

    def describe(self) -> str:
        """The current master."""
        return f"{self.settings.address}: master {self.server(b'').address}"

    def _ask(self, node: Node) -> tuple[int, Node]:
        """The master and its configuration epoch, from one sentinel."""
        with closing(open_server(self.settings.sentinel_at(node))) as sentinel:
            address: Any = sentinel.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", self.settings.service)
            if address is None:
                raise ConnectionError("it watches no such master")
            state: Any = sentinel.execute_command("SENTINEL MASTER", self.settings.service)
        return int(state.get("config-epoch", 0)), (address[0].decode(), address[1])


class ClusterTopology(Topology):
    """The topology of a cluster; the map of slots comes from any node, and is kept until it proves wrong."""

    is_cluster = True

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(settings)
        self._owners: dict[int, RedisSettings] = {}
        self._nodes: set[Node] = set()

    def server(self, key: bytes) -> RedisSettings:
        """The node that owns a key's slot."""
        slot = key_slot(key)
        with self._lock:
            if not self._owners:
                self._owners = self._look_up()
            if slot not in self._owners:
                self._owners, owners = {}, self._owners
                raise ConnectionError(f"no node owns slot {slot} of {key!r}; {len(owners)} slots have an owner")
            return self._owners[slot]

    def known_server(self, key: bytes) -> RedisSettings | None:
        """The node that owns a key's slot by the last known map."""
        return self._owners.get(key_slot(key))

    def masters(self) -> list[RedisSettings]:
        """Every master, in random order."""
        with self._lock:
            if not self._owners:
                self._owners = self._look_up()
            masters = {owner.url: owner for owner in self._owners.values()}
        return random.sample(list(masters.values()), len(masters))

    def handle_error(self, error: BaseException) -> bool:
        """Stores a slot's new owner after MOVED, and forgets the map when a node is lost."""
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
            self._owners = self._look_up()
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

    def _look_up(self) -> dict[int, RedisSettings]:
        """The map from the first node that answers, in random order: one that was cut off is not always first."""
        nodes = sorted(self._nodes | set(self.settings.nodes))
        some = random.sample(nodes, len(nodes))
        return _first_answers(self._ask, some, 1, self.settings, "no node of the cluster answers")[0]

    def _ask(self, node: Node) -> dict[int, RedisSettings]:
        with closing(open_server(self.settings.at(node))) as client:
            ranges: Any = client.execute_command("CLUSTER SLOTS")
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


def _first_answers(
    ask: Callable[[Node], A], nodes: Sequence[Node], enough: int, settings: RedisSettings, why: str
) -> list[A]:
    """The first `enough` answers of some nodes; fewer when others do not answer.

    Raises:
        ConnectionError: no node answers; `why` says what that means.
        ConfigurationError: no node answers, and one of them refuses the login or the command.
    """
    found: list[A] = []
    failures: list[str] = []
    is_denied = False
    for host, port in nodes:
        try:
            found.append(ask((host, port)))
        except (OSError, redis.RedisError) as error:
            is_denied |= isinstance(error, (redis.AuthenticationError, redis.exceptions.NoPermissionError))
            failures.append(f"{host}:{port}: {error}")
        if len(found) == enough:
            break
    if not found:
        text = f"{why} ({'; '.join(failures)})"
        raise denied(settings, text) if is_denied else ConnectionError(text)
    return found


def topology_of(settings: RedisSettings) -> Topology:
    """The topology for the settings' URL."""
    kinds = {"server": Topology, "sentinel": SentinelTopology, "cluster": ClusterTopology}
    return kinds[settings.kind](settings)


def open_connection(topology: Topology, key: bytes, connect: Connector = connect) -> RawConnection:
    """A raw connection to the server that a key is on.

    Raises:
        OSError: the server is unknown, cannot be reached, or is not the master any more.
        ConfigurationError: it refuses the login.
    """
    server = topology.server(key)
    try:
        return RawConnection(server, connect, require_master=topology.settings.kind == "sentinel")
    except OSError as error:
        if topology.settings.kind == "server":
            raise
        raise ConnectionError(f"{server.address}: {error}") from error
