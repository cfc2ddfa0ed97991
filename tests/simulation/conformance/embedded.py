"""A bench on a real broker, whose far clients reach it through a proxy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.simulation.conformance.bench import SECONDS, Bench, Deed, Outcome, Script, Step
from tests.simulation.conformance.settings import consumer_config, producer_config
from tests.waiting import step_until
from tests.worker.proxy import Api, Fault, Proxy
from tests.worker.proxy import Deed as ProxyDeed

__all__ = ["Place", "perform"]

_APIS: dict[Step, Api] = {
    "produce": Api.PRODUCE,
    "fetch": Api.FETCH,
    "offset commit": Api.OFFSET_COMMIT,
    "offset fetch": Api.OFFSET_FETCH,
    "join": Api.JOIN_GROUP,
    "heartbeat": Api.HEARTBEAT,
    "leave": Api.LEAVE_GROUP,
    "sync": Api.SYNC_GROUP,
    "init producer": Api.INIT_PRODUCER_ID,
    "add partitions": Api.ADD_PARTITIONS,
    "AddOffsetsToTxn": Api.ADD_OFFSETS,
    "EndTxn": Api.END_TXN,
    "TxnOffsetCommit": Api.TXN_OFFSET_COMMIT,
}
_DEEDS: dict[Deed, ProxyDeed] = {
    "hold": "hold request",
    "lose": "drop request",
    "silence": "drop reply",
    "repeat": "repeat request",
}


PAUSE_SECONDS = 0.005
"""Between two looks at a condition, most of which poll a consumer, and so wait already."""


@dataclass(frozen=True)
class Place:
    """Where the broker is: directly, and through proxies.

    Attributes:
        proxies: for each that is free, where clients find it, and the port behind which it reaches the broker.
    """

    address: str
    proxies: SimpleQueue[tuple[int, int]]
    restart: Callable[[], None]


def perform(script: Script, place: Place) -> Outcome:
    """Runs a script on the broker."""
    with _bench(place) as bench:
        script(bench)
    return bench.outcome


@contextmanager
def _bench(place: Place) -> Iterator[_Embedded]:
    with ExitStack() as stack:
        bench = _Embedded(place, stack)
        yield bench


class _Strike:
    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self.release = fault.release

    @property
    def count(self) -> int:
        return self._fault.caught

    @property
    def handled(self) -> int:
        return len(self._fault.replies)


class _Embedded(Bench):
    def __init__(self, place: Place, stack: ExitStack) -> None:
        super().__init__()
        self._place, self._stack = place, stack
        self._proxy: Proxy | None = None
        self._front = 0

    def producer(self, *, far: bool = False, **config: Any) -> Any:
        return Producer(producer_config(self._address(far=far), config))

    def consumer(self, *, far: bool = False, **config: Any) -> Any:
        consumer = Consumer(consumer_config(self._address(far=far), self.unique("group"), config))
        self._stack.callback(consumer.close)
        return consumer

    def admin(self) -> Any:
        return AdminClient({"bootstrap.servers": self._place.address, "log_level": 0})

    def strike(self, step: Step, deed: Deed, *, times: int = 1) -> _Strike:
        return _Strike(self._proxied().fault(_APIS[step], _DEEDS[deed], times=times))

    def wait(self, condition: Callable[[], Any], awaited: str) -> None:
        step_until(lambda: time.sleep(PAUSE_SECONDS), condition, awaited)

    def clock(self) -> float:
        return time.monotonic()

    def clean(self, topic: str, end: int) -> None:
        """A segment is cleaned once another one was begun, which a later record does."""

        def is_clean() -> bool:
            self.fill(topic, "roll", key="roll")
            keys = self._keys(topic, end)
            return len(keys) == len(set(keys))

        self.wait(is_clean, f"{topic} to be cleaned")

    def restart(self) -> None:
        self._place.restart()

    def unique(self, kind: str) -> str:
        return f"{kind}-{uuid4().hex[:10]}"

    def _keys(self, topic: str, end: int) -> list[Any]:
        """The keys of what a reader sees before an offset."""
        reader, found = self.reader(topic), []
        while (message := reader.poll(SECONDS)) is not None and message.offset() < end and not message.error():
            found.append(message.key())
        return found

    def _address(self, *, far: bool) -> str:
        if not far:
            return self._place.address
        self._proxied()
        return f"127.0.0.1:{self._front}"

    def _proxied(self) -> Proxy:
        if self._proxy is None:
            self._front, behind = free = self._place.proxies.get()
            self._stack.callback(self._place.proxies.put, free)
            self._proxy = self._stack.enter_context(Proxy(self._front, behind))
        return self._proxy
