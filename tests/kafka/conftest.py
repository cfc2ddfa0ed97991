"""One real broker for all tests of the Kafka adapter, and topics that no two tests share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports.protocols import LogReader, RawRecord
from tests import waiting
from tests.servers import Addresses, emptied

WAIT_SECONDS = 240.0

MakeTopic = Callable[..., str]
WaitUntil = Callable[[Callable[[], bool], str], None]
ReadAll = Callable[[LogReader, int], list[RawRecord]]


@pytest.fixture(scope="package")
def kafka(lasting: Addresses) -> KafkaSettings:
    """The settings of a running broker."""
    return KafkaSettings(bootstrap_servers=emptied(lasting).kafka)


@pytest.fixture(scope="package")
def cluster(kafka: KafkaSettings) -> Iterator[ClusterAdmin]:
    """Questions to that broker."""
    with ClusterAdmin(kafka) as cluster:
        yield cluster


@pytest.fixture
def make_topic(cluster: ClusterAdmin, wait_until: WaitUntil) -> MakeTopic:
    """Makes a topic with a name of its own."""

    def make(partitions: int = 1, **config: str) -> str:
        name = f"t{uuid4().hex}.events"
        cluster.create(name, partitions, 1, {key.replace("_", "."): value for key, value in config.items()})
        wait_until(lambda: cluster.partition_counts([name]) == {name: partitions}, f"topic {name}")
        return name

    return make


@pytest.fixture(scope="session")
def wait_until() -> WaitUntil:
    """Waits for a condition, and fails saying what was awaited."""
    return waiting.wait_until


@pytest.fixture(scope="session")
def read_to() -> ReadAll:
    """Reads one partition until its position is an offset, and fails if it does not get there."""

    def read(reader: LogReader, offset: int) -> list[RawRecord]:
        records: list[RawRecord] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while not _at(reader, offset):
            assert time.monotonic() < deadline, f"waited {WAIT_SECONDS:g} s for {offset}; at {reader.position()}"
            records += reader.poll(100, 0.1)
        return records

    return read


def _at(reader: LogReader, offset: int) -> bool:
    return all(at >= offset for offsets in reader.position().offsets.values() for at in offsets.values())
