"""A cluster of brokers: leaders and coordinators, the delivery of requests, and the effects of a broker's death."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal

from leftfold.testing.simulation.kafka.group_coordinator import Group
from leftfold.testing.simulation.kafka.partitions import BrokerError, Partition, SimulatedTopic
from leftfold.testing.simulation.kafka.transaction_coordinator import Coordinator
from leftfold.testing.simulation.scheduler import ScheduledCall, Scheduler, SimulatedProcess

__all__ = ["Broker", "BrokerConnection", "BrokerRequest", "Cluster", "Fate", "Home"]

Home = tuple[str, ...]
"""The target of a request: ("partition", topic, number), ("group", name), ("transaction", id), or () for any broker."""
BORN = 1_750_000_000.0
"""The start of the simulated world, in seconds since 1970."""
UNKNOWN_TOPIC, NOT_LEADER, LOADING, NOT_COORDINATOR, TRANSPORT, TIMED_OUT = 3, 6, 14, 16, -195, -185
LATENCY = 0.0004
_SCAN_SECONDS = 10.0


@dataclass(frozen=True)
class Fate:
    """The fate of one request.

    Attributes:
        kind: "lost" and "unanswered" break its connection before or after it is handled; "late" = by so many seconds;
            "reset" = its connection breaks once the broker has read it, and it is handled so many seconds later;
            "held" until the action that is then in `held` is called; "silent" = its answer never comes; "repeated" = it
            is handled twice. handled: called once the broker has answered it.
    """

    kind: Literal["lost", "unanswered", "late", "reset", "held", "silent", "repeated"]
    seconds: float = 0.0
    held: list[Callable[[], None]] = field(default_factory=list)
    handled: Callable[[], object] | None = None


class Broker:
    """One broker of the cluster."""

    def __init__(self, number: int) -> None:
        self.number, self.is_up, self.lives, self.down_since = number, True, 0, 0.0
        self.slow_until = 0.0
        self.waiting: dict[BrokerRequest, None] = {}
        """Requests that have arrived and are not answered."""
        self.links: dict[BrokerConnection, Connections] = {}
        """The connections of clients to the broker."""

    def __repr__(self) -> str:
        return f"<broker {self.number}>"


class BrokerConnection:
    """A connection of one client to one broker; requests arrive in the order in which they were sent."""

    __slots__ = ("arrived", "returned")

    def __init__(self) -> None:
        self.arrived = self.returned = 0.0


class Connections(dict[int, BrokerConnection]):
    """The connections of one client, by broker number; a broker's death is noticed at once, without a request too.

    Args:
        lost: called for each connection that breaks with its broker.
    """

    def __init__(self, lost: Callable[[], None]) -> None:
        self.lost = lost

    def to(self, broker: Broker) -> BrokerConnection:
        """The connection to a broker, opened when first needed."""
        if (found := self.get(broker.number)) is None:
            found = self[broker.number] = BrokerConnection()
            broker.links[found] = self
        return found

    def drop(self, broker: Broker, link: BrokerConnection) -> None:
        """Closes a connection: the next request opens another."""
        broker.links.pop(link, None)
        if self.get(broker.number) is link:
            del self[broker.number]


class Cluster:
    """The brokers, topics and coordinators of a cluster.

    Args:
        count: of brokers.

    Attributes:
        fate: called for each request (api, process): None = it is handled and answered. cut: pairs (process, broker,
            direction) that nothing passes, direction "to" or "from". pause: how long ends of transactions take.
    """

    def __init__(self, scheduler: Scheduler, count: int = 2) -> None:
        self.scheduler = scheduler
        self.brokers = [Broker(number) for number in range(1, count + 1)]
        self.topics: dict[str, SimulatedTopic] = {}
        self.groups: dict[str, Group] = {}
        self.fate: Callable[[str, SimulatedProcess], Fate | None] = lambda api, process: None
        self.pause: Callable[[], float] = lambda: 0.0
        self.forgets: Callable[[], bool] = lambda: False
        self.cut: set[tuple[str, int, str]] = set()
        self.join_delay = 0.0
        self._homes: dict[Home, Broker] = {}
        self._loading: dict[Home, float] = {}
        self._made = 0
        self._state = SimulatedTopic("__transaction_state", 10, {"cleanup.policy": "compact"}, "state")
        self.topics["__transaction_state"] = self._state
        self.coordinator = Coordinator(self.time, self._later, self._mark, self._settle, self._state_of)
        self._scan()

    def time(self) -> float:
        """Seconds since 1970, as brokers see it."""
        return BORN + self.scheduler.now

    def create(self, name: str, count: int, config: dict[str, str] | None = None) -> SimulatedTopic:
        """Creates a topic at once."""
        self._made += 1
        number = self.scheduler.random.getrandbits(64)
        topic = self.topics[name] = SimulatedTopic(name, count, dict(config or {}), f"id{self._made}-{number:016x}")
        return topic

    def delete(self, name: str) -> None:
        """Deletes a topic at once; its readers get the error at their next request."""
        topic = self.topics.pop(name)
        for partition in topic.partitions:
            partition.changed()

    def topic(self, name: str) -> SimulatedTopic:
        """One topic.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        if name not in self.topics:
            raise BrokerError(UNKNOWN_TOPIC)
        return self.topics[name]

    def partition(self, name: str, number: int) -> Partition:
        """One partition.

        Raises:
            BrokerError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        topic = self.topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            raise BrokerError(UNKNOWN_TOPIC)
        return topic.partitions[number]

    def group(self, name: str) -> Group:
        """A consumer group, created when it does not exist."""
        if name not in self.groups:
            self.groups[name] = Group(name, self.scheduler.call_later, self.join_delay)
        return self.groups[name]

    def home(self, key: Home) -> Broker:
        """The broker of a partition or coordinator; it moves when its broker has been down for a moment."""
        if not key:
            return next((b for b in self.brokers if b.is_up), self.brokers[0])
        found = self._homes.get(key)
        if found is None:
            found = self._homes[key] = self.brokers[zlib.crc32("/".join(key).encode()) % len(self.brokers)]
        if not found.is_up and self.scheduler.now - found.down_since > 0.3:
            others = [b for b in self.brokers if b.is_up]
            if others:
                self.move(key, others[self.scheduler.random.randrange(len(others))])
                found = self._homes[key]
        return found

    def move(self, key: Home, broker: Broker | None = None) -> None:
        """Moves a partition or coordinator to another broker, by default in order; a coordinator loads for a while."""
        is_orderly = broker is None
        if broker is None:
            choice = [b for b in self.brokers if b.is_up and b is not self._homes.get(key)]
            if not choice:
                return
            broker = choice[self.scheduler.random.randrange(len(choice))]
        self._homes[key] = broker
        self._load(key, is_orderly=is_orderly)

    def kill(self, broker: Broker) -> None:
        """Kills a broker: its records stay, its unanswered requests stay unanswered."""
        broker.is_up, broker.down_since = False, self.scheduler.now
        broker.lives += 1
        waiting, broker.waiting = broker.waiting, {}
        for request in waiting:
            request.broken()
        for link, connections in list(broker.links.items()):
            connections.drop(broker, link)
            connections.lost()

    def start(self, broker: Broker) -> None:
        """Starts a broker again; its partitions and coordinators are loaded first."""
        broker.is_up = True
        for key, home in list(self._homes.items()):
            if home is broker:
                self._load(key, is_new=True)

    def known_homes(self) -> list[Home]:
        """The partitions and coordinators that requests have named."""
        return list(self._homes)

    def is_loading(self, key: Home) -> bool:
        """Whether a coordinator that has moved is still loading."""
        return self._loading.get(key, 0.0) > self.scheduler.now

    def is_deciding(self, id_: str) -> bool:
        """Whether a transaction is decided, and its outcome has not reached all partitions."""
        found = self.coordinator.known.get(id_)
        return found is not None and found.left > 0

    def hop(self) -> float:
        """The seconds that one way to a broker takes."""
        return LATENCY * (0.25 + self.scheduler.random.random())

    def _load(self, key: Home, *, is_orderly: bool = False, is_new: bool = False) -> None:
        """Loads a partition or coordinator; a killed coordinator may forget partitions without a marker so far.

        Args:
            is_new: whether its broker has just been started: one that kept running has every partition.
        """
        kind = key[0]
        if kind == "partition":
            topic = self.topics.get(key[1])
            if topic is not None and int(key[2]) < len(topic.partitions):
                topic.partitions[int(key[2])].changed()
            return
        self._loading[key] = self.scheduler.now + self.scheduler.random.random() * 0.3
        if kind == "group" and key[1] in self.groups:
            self.groups[key[1]].reload()
        if kind == "transaction" and not is_orderly and self.forgets() and is_new:
            random = self.scheduler.random
            self.coordinator.forget(key[1], lambda places: [p for p in places if random.random() < 0.7])

    def _later(self, id_: str, action: Callable[[], None]) -> None:
        def act() -> None:
            if self.home(("transaction", id_)).is_up:
                action()
            else:
                self.scheduler.call_later(0.2, act)

        self.scheduler.call_later(self.hop() + self.pause(), act)

    def _mark(self, partition: Partition, producer: int, epoch: int, outcome: bool) -> None:
        partition.decide(producer, epoch, outcome, int(self.time() * 1000))

    def _settle(self, group: str, producer: int, commit: bool) -> None:
        self.group(group).settle(producer, commit=commit)

    def _state_of(self, id_: str) -> Partition:
        return self._state.partitions[_hash(id_) % len(self._state.partitions)]

    def _scan(self) -> None:
        self.coordinator.time_out()
        self.scheduler.call_later(_SCAN_SECONDS, self._scan)


class BrokerRequest:
    """One request of a client: in flight, at its broker, answered, or lost.

    Args:
        handle: does the work at the broker, and calls its argument with the answer, at once or later.
        done: called once, with the answer, the broker's `BrokerError` or one of the client.
    """

    __slots__ = (
        "_began", "_broker", "_cluster", "_connections", "_done", "_fate", "_handle", "_is_done", "_key", "_link",
        "_lives", "_process", "_scheduler", "_timeout", "_timer",
    )  # fmt: skip

    def __init__(
        self,
        cluster: Cluster,
        process: SimulatedProcess,
        connections: Connections,
        api: str,
        key: Home,
        handle: Callable[[Callable[[Any], None]], None],
        done: Callable[[Any], None],
        timeout: float,
    ) -> None:
        self._cluster, self._process, self._connections = cluster, process, connections
        self._key, self._handle, self._done, self._timeout = key, handle, done, timeout
        self._scheduler = scheduler = cluster.scheduler
        self._broker = broker = cluster.home(key)
        self._link = link = connections.to(broker)
        self._fate = fate = cluster.fate(api, process)
        self._lives, self._began = broker.lives, scheduler.now
        self._is_done = False
        self._timer: ScheduledCall | None = None
        if not broker.is_up:
            scheduler.call_later(cluster.hop(), partial(self._finish, BrokerError(TRANSPORT)))
            return
        if fate is not None and fate.kind == "held":
            fate.held.append(self._travel)
            self._expires(self._began)
            return
        wait = cluster.hop() + max(0.0, broker.slow_until - scheduler.now)
        if fate is not None:
            wait += fate.seconds
        link.arrived = at = max(scheduler.now + wait, link.arrived + 1e-9)
        if at - self._began > timeout / 2:
            self._expires(self._began)
        scheduler.call_later(at - scheduler.now, self._arrive)
        if fate is not None and fate.kind == "reset":
            scheduler.call_later(cluster.hop(), self.broken)

    def _travel(self) -> None:
        self._scheduler.call_later(self._cluster.hop(), self._arrive)

    def broken(self) -> None:
        """Fails the request, since its connection broke."""
        self._drop_link()
        self._scheduler.call_later(self._cluster.hop(), partial(self._finish, BrokerError(TRANSPORT)))

    def _arrive(self) -> None:
        cluster, broker, key, fate = self._cluster, self._broker, self._key, self._fate
        if broker.lives != self._lives or not broker.is_up or (fate is not None and fate.kind == "lost"):
            self.broken()
        elif cluster.cut and (self._process.name, broker.number, "to") in cluster.cut:
            self._expires(self._began)
        elif key and cluster.home(key) is not broker:
            self._answer(BrokerError(NOT_LEADER if key[0] == "partition" else NOT_COORDINATOR))
        elif cluster.is_loading(key):
            self._answer(BrokerError(LOADING))
        else:
            if fate is not None and fate.kind == "repeated":
                self._work(lambda value: None)
            broker.waiting[self] = None
            self._work(self._answer)

    def _work(self, answer: Callable[[Any], None]) -> None:
        try:
            self._handle(answer)
        except BrokerError as refused:
            answer(refused)

    def _answer(self, value: Any) -> None:
        broker, link, scheduler, cut = self._broker, self._link, self._scheduler, self._cluster.cut
        broker.waiting.pop(self, None)
        fate = self._fate
        if fate is not None and fate.handled is not None:
            fate.handled()
        if self._is_done:
            return
        if broker.lives != self._lives or (fate is not None and fate.kind == "unanswered"):
            self.broken()
        elif (fate is not None and fate.kind == "silent") or (
            cut and (self._process.name, broker.number, "from") in cut
        ):
            self._expires(scheduler.now)
        else:
            link.returned = at = max(scheduler.now + self._cluster.hop(), link.returned + 1e-9)
            scheduler.call_later(at - scheduler.now, partial(self._finish, value))

    def _expires(self, since: float) -> None:
        """Fails the request when its timeout is over."""
        if self._timer is None:
            self._timer = self._scheduler.call_later(
                max(0.0, since + self._timeout - self._scheduler.now), self._expire
            )

    def _expire(self) -> None:
        if not self._is_done:
            # Its connection is closed too: the next request must not wait behind it.
            self._drop_link()
            self._finish(BrokerError(TIMED_OUT))

    def _drop_link(self) -> None:
        self._connections.drop(self._broker, self._link)

    def _finish(self, value: Any) -> None:
        if not self._is_done:
            self._is_done = True
            if self._timer is not None:
                self._timer.cancel()
            self._done(value)


@lru_cache(1024)
def _hash(text: str) -> int:
    """The absolute value of Java's hash code."""
    hashed = 0
    for character in text:
        hashed = (31 * hashed + ord(character)) & 0xFFFFFFFF
    return abs(hashed - (1 << 32) if hashed >> 31 else hashed)
