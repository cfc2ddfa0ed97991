"""Windows that users of Faust compute over typed events become rows of a view, each event once."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Producer

from leftfold.codec import utc_text
from leftfold.kafka.cluster import Cluster
from leftfold.kafka.settings import KafkaSettings
from leftfold.partitioner import partition_of
from leftfold.reading import Views
from leftfold.redis import RedisSettings, RedisViewStore
from tests.faust.sales import PARTITIONS, Sold, Window, expected, keep, lately
from tests.servers import Addresses
from tests.worker.waiting import wait_until

pytestmark = pytest.mark.servers

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Tills:
    """Sales as a worker would write them, and what readers see of them."""

    def __init__(self, addresses: Addresses) -> None:
        self.kafka = KafkaSettings(bootstrap_servers=addresses.kafka)
        self.store = RedisViewStore(RedisSettings(url=addresses.redis))
        self.committed: list[Sold] = []
        self._chance = random.Random(5)

    def sales(self, count: int) -> list[Sold]:
        """Sales in several stores, an hour long."""
        return [
            Sold(
                store=f"s{self._chance.randrange(5)}",
                cents=self._chance.randrange(1, 1000),
                at=NOW + timedelta(seconds=self._chance.randrange(3600)),
            )
            for _ in range(count)
        ]

    def write(self, sales: list[Sold], *, commit: bool = True) -> None:
        """One transaction that is committed or aborted."""
        producer = Producer({**self.kafka.librdkafka(), "transactional.id": "tills"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for sale in sales:
            key = sale.store.encode()
            headers: Any = [
                ("ce_id", str(uuid.uuid4()).encode()),
                ("ce_type", b"tills.Sold.v1"),
                ("ce_time", utc_text(sale.at).encode()),
                ("ce_sequence", b"1"),
                ("ce_decision", b"1/1"),
            ]
            body = sale.model_dump_json().encode()
            producer.produce("tills.events", body, key, partition_of(key, PARTITIONS), headers=headers)
        producer.flush(60)
        (producer.commit_transaction if commit else producer.abort_transaction)(60)
        self.committed += sales if commit else []

    def rows(self) -> dict[tuple[str, datetime], Window]:
        """What readers see, once it holds everything that is committed."""
        with Cluster(self.kafka) as cluster:
            ends = cluster.ends(["tills.events"])
        reader = Views(self.store)[lately]
        reader.get(("s0", NOW), after=ends, timeout=60.0)
        return dict(reader.items())


@contextmanager
def keeping(tills: Tills, *, guarded: bool = True) -> Iterator[list[str]]:
    """The view is kept while the block runs."""
    stop, reports, failures = threading.Event(), list[str](), list[BaseException]()

    def run() -> None:
        try:
            keep(tills.kafka.aiokafka(), tills.store, stop, reports, guarded=guarded)
        except BaseException as error:  # whatever it is, the test's thread raises it
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: bool(failures) or "view is live" in reports or is_live(tills), "the view")
        if not failures:
            yield reports
    finally:
        stop.set()
        thread.join(60.0)
        assert not thread.is_alive(), "the stream does not end"
    if failures:
        raise failures[0]


def is_live(tills: Tills) -> bool:
    """Whether readers have rows to look at."""
    return tills.store.registry(lately.name).live_of(lately.hash) is not None


@pytest.fixture(scope="module")
def tills(addresses: Addresses) -> Iterator[Tills]:
    tills = Tills(addresses)
    yield tills
    tills.store.close()


def test_windows_are_those_of_the_committed_events_also_behind_a_restart(tills: Tills) -> None:
    tills.write(tills.sales(200))
    tills.write(tills.sales(50), commit=False)
    with keeping(tills):
        tills.write(tills.sales(100))
        assert tills.rows() == expected(tills.committed)
    tills.write(tills.sales(100))
    with keeping(tills):
        tills.write(tills.sales(50))
        assert tills.rows() == expected(tills.committed)


def test_as_faust_reads_by_itself_what_was_aborted_is_counted(tills: Tills, monkeypatch: pytest.MonkeyPatch) -> None:
    real = aiokafka.AIOKafkaConsumer

    def careless(**options: Any) -> Any:
        return real(**{**options, "isolation_level": "read_uncommitted"})

    monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", careless)
    with keeping(tills):
        tills.write(tills.sales(50), commit=False)
        tills.write(tills.sales(10))
        assert tills.rows() != expected(tills.committed)
