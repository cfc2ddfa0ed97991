"""One real broker for all tests of the Kafka adapter, and topics that no two tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.position import Position
from leftfold.ports.protocols import LogReader, RawRecord
from tests.servers import Addresses, emptied, patient
from tests.waiting import read_until, wait_until

MakeTopic = Callable[..., str]


@pytest.fixture(scope="package")
def kafka(lasting: Addresses) -> KafkaSettings:
    """The settings of a running broker."""
    return patient(emptied(lasting).kafka)


@pytest.fixture(scope="package")
def cluster(kafka: KafkaSettings) -> Iterator[ClusterAdmin]:
    """Questions to that broker."""
    with ClusterAdmin(kafka) as cluster:
        yield cluster


@pytest.fixture
def make_topic(cluster: ClusterAdmin) -> MakeTopic:
    """Makes a topic with a name of its own."""

    def make(partitions: int = 1, **config: str) -> str:
        name = f"t{uuid4().hex}.events"
        cluster.create(name, partitions, 1, {key.replace("_", "."): value for key, value in config.items()})
        wait_until(lambda: cluster.partition_counts([name]) == {name: partitions}, f"topic {name}")
        return name

    return make


def read_to(reader: LogReader, offset: int) -> list[RawRecord]:
    """Reads until each partition of the reader is at an offset."""
    at = reader.position().offsets
    return read_until(reader, Position({topic: dict.fromkeys(partitions, offset) for topic, partitions in at.items()}))
