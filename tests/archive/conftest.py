"""Servers of their own for tests that delete records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.settings import KafkaSettings
from leftfold.redis import RedisSettings
from tests.archive.past import Past
from tests.archive.spark.stopped import Stopped
from tests.archive.topics import MakeTopic, Topic
from tests.servers import Addresses, emptied, patient


@pytest.fixture(scope="package")
def own(lasting: Addresses) -> Addresses:
    """A broker and a Redis with nothing in them."""
    return emptied(lasting)


@pytest.fixture(scope="package")
def kafka(own: Addresses) -> KafkaSettings:
    return patient(own.kafka)


@pytest.fixture(scope="package")
def cluster(kafka: KafkaSettings) -> Iterator[ClusterAdmin]:
    with ClusterAdmin(kafka) as cluster:
        yield cluster


@pytest.fixture
def make_topic(kafka: KafkaSettings, cluster: ClusterAdmin, tmp_path: Path) -> MakeTopic:
    return lambda partitions=2: Topic(kafka, cluster, str(tmp_path / "archive"), partitions)


@pytest.fixture(scope="package")
def past(own: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """The ledgers App with its past in an archive only."""
    folder = str(tmp_path_factory.mktemp("archive"))
    past = Past(patient(own.kafka), RedisSettings(url=own.redis), folder)
    past.make()
    yield past
    past.store.close()


@pytest.fixture(scope="package")
def stopped(past: Past, spark: SparkSession) -> Iterator[Stopped]:
    """Rows that stand before the start of the topic."""
    with closing(Stopped(past, spark)) as stopped:
        stopped.make()
        yield stopped
