"""Commits events at a steady rate in small transactions, as a processor does, in a process of its own."""

from __future__ import annotations

import time
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from confluent_kafka import Producer

from benchmarks.headers import lane_headers
from benchmarks.purses import PARTITIONS, TOPIC, Spent, spendings
from leftfold.engine.rebuild.tasks import tuned_gc
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import partition_of
from leftfold.ports.codec import MessageCodec

__all__ = ["Committed", "commit_steadily"]

INTERVAL_SECONDS = 0.005
SAMPLED = 2
"""One event of every so many transactions is followed to its reader."""


class Committed(NamedTuple):
    """A sampled event: its key, its place, and when its transaction's commit returned (monotonic seconds)."""

    key: str
    partition: int
    next_offset: int
    at: float


def commit_steadily(address: str, rate: int, seconds: float, told: Connection) -> None:
    """Writes for some seconds, tells each sample, and at the end how many events there were and how long it took."""
    tuned_gc()
    steady = _Steady(address, told)
    log = spendings(int(rate * seconds))
    began, done = time.monotonic(), 0
    while done < int(rate * seconds):
        due = int((time.monotonic() - began) * rate)
        done += steady.commit(list(islice(log, max(0, due - done))))
        time.sleep(max(0.0, INTERVAL_SECONDS - (time.monotonic() - began) % INTERVAL_SECONDS))
    told.send((done, time.monotonic() - began))
    told.close()


class _Steady:
    def __init__(self, address: str, told: Connection) -> None:
        config: dict[str, Any] = {"transactional.id": "steady", "linger.ms": 1, "retry.backoff.ms": 10}
        self._producer = Producer({**KafkaSettings(bootstrap_servers=address).librdkafka(), **config})
        self._producer.init_transactions(30)
        self._codec, self._told = MessageCodec([Spent]), told
        self._written = self._transactions = 0
        self._offset = -1

    def commit(self, log: list[tuple[int, Spent]]) -> int:
        """One transaction of these events; returns how many."""
        if not log:
            return 0
        self._producer.begin_transaction()
        for version, event in log:
            self._write(event, version, sampled=event is log[-1][1])
        self._producer.commit_transaction(30)
        at = time.monotonic()
        self._transactions += 1
        if self._transactions % SAMPLED == 0:
            key = log[-1][1].purse
            self._told.send(Committed(key, partition_of(key.encode(), PARTITIONS), self._offset + 1, at))
        return len(log)

    def _write(self, event: Spent, version: int, *, sampled: bool) -> None:
        key = event.purse.encode()
        self._written += 1
        headers = lane_headers(event, event.purse, self._codec.types[Spent], self._written, version)
        options: dict[str, Any] = {"on_delivery": self._delivered} if sampled else {}
        place = partition_of(key, PARTITIONS)
        self._producer.produce(TOPIC, self._codec.encode(event), key, place, headers=headers, **options)

    def _delivered(self, error: object, message: Any) -> None:
        if error is not None:
            raise SystemExit(f"an event was not written: {error}")
        self._offset = message.offset()
