"""The nodes of a cluster, by the slots they own."""

from __future__ import annotations

import random
from threading import Lock
from typing import Any

import redis
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.redis.failures import Elsewhere, refuse_errors
from leftfold.redis.packing import packed
from leftfold.redis.settings import RedisSettings
from leftfold.redis.urls import Node
from leftfold.redis.wire import Dial, Wire, dial

__all__ = ["Slots"]


class Slots:
    """Asks any node for the map of slots, and keeps it until a node says or shows that it is wrong."""

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
                raise ConnectionError(f"nobody owns slot {slot} of {key!r}; {len(owners)} slots are owned")
            return self._owners[slot]

    def known(self, key: bytes) -> RedisSettings | None:
        """The node that owned a key's slot when somebody asked last."""
        return self._owners.get(key_slot(key))

    def wire(self, key: bytes, dial: Dial = dial) -> Wire:
        """A connection to the node that owns a key's slot."""
        server = self.server(key)
        try:
            return Wire(server, dial)
        except OSError as error:
            raise ConnectionError(f"node {server.address}: {error}") from error

    def hearers(self) -> list[RedisSettings]:
        """Every master, in an order of chance: nodes pass notices on to each other."""
        with self._lock:
            if not self._owners:
                self._owners = self._asked()
            masters = {owner.url: owner for owner in self._owners.values()}
        return random.sample(list(masters.values()), len(masters))

    def met(self, error: BaseException) -> bool:
        """Learns one slot's new owner from MOVED, and forgets the map when a node is lost."""
        if isinstance(error, redis.exceptions.MovedError):
            self._move(error.slot_id, (error.host, error.port))
        elif isinstance(error, Elsewhere):
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

    def told(self) -> str:
        """How many masters share the slots."""
        with self._lock:
            self._owners = self._asked()
            masters, missing = {owner.url for owner in self._owners.values()}, SLOTS - len(self._owners)
        if missing:
            raise ConnectionError(f"{missing} of its {SLOTS} slots have no owner")
        return f"{self.settings.address}: {len(masters)} masters"

    def _move(self, slot: int, node: Node) -> None:
        """A node that does not know its own name sends none; then the whole map is asked for again."""
        with self._lock:
            if not node[0] or node[0] == "?":
                self._owners = {}
            elif self._owners:
                self._owners[slot] = self.settings.at(node)

    def _asked(self) -> dict[int, RedisSettings]:
        """The map by the first node that answers, in an order of chance: one that is cut off must not always be it."""
        silent: list[str] = []
        error_of: type[Exception] = ConnectionError
        nodes = sorted(self._nodes | set(self.settings.nodes))
        for node in random.sample(nodes, len(nodes)):
            try:
                return self._ask(node)
            except (OSError, InfrastructureError, ConfigurationError) as error:
                error_of = ConfigurationError if isinstance(error, ConfigurationError) else error_of
                silent.append(f"{node[0]}:{node[1]}: {error}")
        raise error_of(f"no node of the cluster answers ({'; '.join(silent)})")

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
    """The address in a map of slots; a node without a name of its own is the one that was asked."""
    host = place[0].decode() if place[0] else ""
    return (host if host and host != "?" else asked), int(place[1])
