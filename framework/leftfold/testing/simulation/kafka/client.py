"""The base of simulated clients: retries of requests, errors reported on poll, waits, and cluster metadata."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, TypeAlias

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # confluent-kafka exports these implicitly
    BrokerMetadata,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)

from leftfold.testing.simulation.environment import active
from leftfold.testing.simulation.kafka.brokers import (
    LOADING,
    NOT_COORDINATOR,
    NOT_LEADER,
    BrokerRequest,
    Connections,
    Home,
)
from leftfold.testing.simulation.kafka.partitions import BrokerError

__all__ = ["FOREVER", "Metadata", "SimulatedClient", "cluster_metadata", "exception", "failure"]


TRANSIENT = frozenset({NOT_LEADER, NOT_COORDINATOR, LOADING, 15, KafkaError._TRANSPORT, KafkaError._TIMED_OUT})
"""The errors after which a request is retried: brokers that are down, coordinators that moved or are loading."""
FOREVER = float("inf")
_MOST_EVENTS = 10_000


class SimulatedClient:
    """The part of librdkafka that producers, consumers and admin clients share.

    Args:
        config: as librdkafka's. logger: gets its log lines on poll.

    Attributes:
        socket_timeout, backoff: seconds until a request fails, and until it is sent again.
    """

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger | None, kind: str) -> None:
        self.world = active()
        self.scheduler, self.cluster, self.process = self.world.scheduler, self.world.cluster, self.world.process
        self.config = dict(config)
        self.name = f"{self.config.get('client.id', 'rdkafka')}#{kind}"
        self.is_closed = False
        self.socket_timeout = float(self.config.get("socket.timeout.ms", 60_000)) / 1000
        self.backoff = float(self.config.get("retry.backoff.ms", 100)) / 1000
        self.connections = Connections(self._disconnected)
        self._logger, self._on_error = logger or self.config.get("logger"), self.config.get("error_cb")
        self._events: deque[Callable[[], None]] = deque(maxlen=_MOST_EVENTS)
        self._waiting: list[tuple[Any, int]] = []

    def step(self, what: str) -> None:
        """Begins a call of the API."""
        self.process.step(what)

    def later(self, seconds: float, action: Callable[[], Any]) -> None:
        """Runs an action in the background after a while, unless the client is closed by then."""
        self.scheduler.call_later(seconds, partial(self.process.do, self._unless_closed, action))

    def _unless_closed(self, action: Callable[[], Any]) -> None:
        if not self.is_closed:
            action()

    def ask(
        self,
        api: str,
        key: Home,
        handle: Callable[[Callable[[Any], None]], None],
        done: Callable[[Any], None],
        seconds: float = FOREVER,
        also: frozenset[int] = frozenset(),
        *,
        again: Callable[[], bool] = lambda: True,
        whole: bool = False,
    ) -> None:
        """Sends a request in the background, with retries; `done` gets the answer or a BrokerError.

        Args:
            seconds: after which the answer is `_TIMED_OUT`. also: further codes that are retried.
            again: whether it may still be retried. whole: a request in flight is awaited even beyond that time.
        """
        _Asking(self, api, key, handle, done, self.scheduler.now + seconds, also, again, is_whole=whole).attempt()

    def asked(
        self, api: str, key: Home, work: Callable[[], Any], timeout: float, also: frozenset[int] = frozenset()
    ) -> Any:
        """Sends a request and waits for the answer.

        Raises:
            KafkaException: the broker's error, or a timeout.
        """
        value = self.awaited(lambda done: self.ask(api, key, lambda reply: reply(work()), done, timeout, also), timeout)
        if isinstance(value, BrokerError):
            raise exception(value.code, api)
        return value

    def awaited(self, begin: Callable[[Callable[[Any], None]], None], timeout: float) -> Any:
        """Begins an operation and waits for its end; after the timeout the answer is a `BrokerError` `_TIMED_OUT`."""
        task = self.scheduler.current
        if task is None:
            raise RuntimeError("a simulated client waits outside a simulated process")
        found: list[Any] = []
        turn = task.turn

        def done(value: Any) -> None:
            if not found:
                found.append(value)
                task.wake(turn)

        begin(done)
        if not found:
            self.scheduler.wait(None if timeout == FOREVER else timeout)
        return found[0] if found else BrokerError(KafkaError._TIMED_OUT)

    def pause(self, seconds: float) -> None:
        """Waits until an event is queued for the application, or so many seconds."""
        task = self.scheduler.current
        if task is None:
            raise RuntimeError("a simulated client waits outside a simulated process")
        entry = (task, task.turn)
        self._waiting.append(entry)
        try:
            self.scheduler.wait(seconds)
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def notify(self) -> None:
        """Wakes the tasks that wait in `poll`."""
        waiting, self._waiting = self._waiting, []
        for task, turn in waiting:
            self.scheduler.wake_later(task, turn)

    def tell(self, event: Callable[[], None]) -> None:
        """Queues an event for the thread that polls."""
        self._events.append(event)
        self.notify()

    def serve(self) -> int:
        """Runs the queued events; returns how many there were."""
        count = 0
        while self._events:
            self._events.popleft()()
            count += 1
        return count

    def trouble(self, api: str, code: int) -> None:
        """Logs and reports a connection error as librdkafka does."""
        if code == KafkaError._TIMED_OUT:
            self._log("REQTMOUT", f"Timed out {api} request")
        elif code == KafkaError._TRANSPORT:
            self._log("FAIL", f"Disconnected during {api}")
            self._error(KafkaError(KafkaError._TRANSPORT, "Disconnected"))
            if not any(broker.is_up for broker in self.cluster.brokers):
                self._error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "all brokers are down"))

    def _disconnected(self) -> None:
        """Logs at once that a broker has died, without waking a waiting task."""
        if not self.is_closed and self._logger is not None:
            self._events.append(self._line("FAIL", "Disconnected: connection closed by peer"))

    def _log(self, facility: str, text: str) -> None:
        if self._logger is not None:
            self.tell(self._line(facility, text))

    def _line(self, facility: str, text: str) -> Callable[[], None]:
        line = f"{facility} [{self.name}] {text}"
        return lambda: self._logger.log(logging.WARNING, line) if self._logger is not None else None

    def _error(self, error: KafkaError) -> None:
        if self._on_error is not None:
            on_error = self._on_error
            self.tell(lambda: on_error(error))


class _Asking:
    """A request in the background that is sent again until it is answered, or its time is over; see `ask`.

    It holds no closures that refer to each other: without a cycle its memory is free as soon as it is answered.
    """

    __slots__ = ("_again", "_also", "_api", "_client", "_done", "_end", "_handle", "_is_whole", "_key")

    def __init__(
        self,
        client: SimulatedClient,
        api: str,
        key: Home,
        handle: Callable[[Callable[[Any], None]], None],
        done: Callable[[Any], None],
        end: float,
        also: frozenset[int],
        again: Callable[[], bool],
        *,
        is_whole: bool,
    ) -> None:
        self._client, self._api, self._key, self._handle, self._done = client, api, key, handle, done
        self._end, self._also, self._again, self._is_whole = end, also, again, is_whole

    def attempt(self) -> None:
        """Sends the request once."""
        client = self._client
        if not client.is_closed:
            left = client.socket_timeout
            if not self._is_whole:
                left = max(0.001, min(left, self._end - client.scheduler.now))
            BrokerRequest(
                client.cluster,
                client.process,
                client.connections,
                self._api,
                self._key,
                self._handle,
                self._answered,
                left,
            )

    def _answered(self, value: Any) -> None:
        self._client.process.do(self._take, value)

    def _take(self, value: Any) -> None:
        client = self._client
        if client.is_closed:
            return
        if isinstance(value, BrokerError):
            client.trouble(self._api, value.code)
            if value.code in TRANSIENT or value.code in self._also:
                scheduler, backoff = client.scheduler, client.backoff
                if scheduler.now + backoff < self._end and self._again():
                    wait = backoff * (0.5 + scheduler.random.random())
                    scheduler.call_later(wait, partial(client.process.do, self.attempt))
                    return
                value = BrokerError(KafkaError._TIMED_OUT)
        self._done(value)


def exception(code: int, why: str = "", *, fatal: bool = False, retriable: bool = False, abort: bool = False) -> Any:
    """A KafkaException with this code, to raise."""
    return KafkaException(failure(code, why, fatal=fatal, retriable=retriable, abort=abort))


def failure(
    code: int, why: str = "", *, fatal: bool = False, retriable: bool = False, abort: bool = False
) -> KafkaError:
    """A KafkaError with this code; only calls of transactions set a flag."""
    return KafkaError(code, f"simulated: {why}", fatal, retriable, abort)


def place_of(given: TopicPartition) -> tuple[str, int]:
    """The topic and partition of a TopicPartition."""
    return given.topic, given.partition


Metadata: TypeAlias = Any
"""A `confluent_kafka.admin.ClusterMetadata`, whose fields are untyped."""


def cluster_metadata(client: SimulatedClient, topic: str | None, timeout: float) -> Metadata:
    """The metadata of brokers and topics, one topic or all; a missing topic has an error.

    Raises:
        KafkaException: no broker answers in time.
    """
    cluster = client.cluster

    def work() -> dict[str, int]:
        known = {name: len(found.partitions) for name, found in cluster.topics.items()}
        return known if topic is None else {topic: known.get(topic, 0)}

    counts: dict[str, int] = client.asked("metadata", (), work, timeout)
    return _metadata(tuple(counts.items()), tuple(broker.number for broker in cluster.brokers if broker.is_up))


@lru_cache(256)
def _metadata(counts: tuple[tuple[str, int], ...], brokers: tuple[int, ...]) -> Metadata:
    """Metadata with these numbers of partitions; clients ask for the same again and again, and only read it."""
    found: Any = ClusterMetadata()
    for number in brokers:
        host: Any = BrokerMetadata()
        host.id, host.host, host.port = number, "simulated", 9091 + number
        found.brokers[number] = host
    for name, count in counts:
        known: Any = TopicMetadata()
        found.topics[name] = known
        known.topic = name
        known.error = None if count else KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "simulated: no such topic")
        for number in range(count):
            known.partitions[number] = one = PartitionMetadata()
            one.id = number
    return found
