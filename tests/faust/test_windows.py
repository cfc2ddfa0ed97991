"""Windows that users of Faust compute over typed events become rows of a view, each event once."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import aiokafka
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from leftfold import InfrastructureError, LogHole, Recorded
from leftfold.codec import utc_text
from leftfold.faust import EventStreams
from leftfold.faust.transport import CommittedConsumer
from leftfold.kafka.cluster import Cluster
from leftfold.kafka.settings import KafkaSettings
from leftfold.partitioner import partition_of
from leftfold.reading import Views
from leftfold.redis import RedisSettings, RedisViewStore
from tests.faust.sales import PARTITIONS, Sold, Window, app, expected, keep, lately_of
from tests.servers import Addresses
from tests.worker.waiting import wait_until

pytestmark = pytest.mark.servers

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[2]


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

    def rows(self, version: int = 1) -> dict[tuple[str, datetime], Window]:
        """What readers see, once it holds everything that is committed."""
        with Cluster(self.kafka) as cluster:
            ends = cluster.ends(["tills.events"])
        reader = Views(self.store)[lately_of(version)]
        reader.get(("s0", NOW), after=ends, timeout=90.0)
        return dict(reader.items())

    def is_live(self, version: int) -> bool:
        """Whether readers have rows to look at."""
        view = lately_of(version)
        return self.store.registry(view.name).live_of(view.hash) is not None


Keep: TypeAlias = Callable[[Tills, threading.Event], None]


def by(version: int, **options: Any) -> Keep:
    """Keeps a version of the view."""
    return lambda tills, stop: keep(tills.kafka.aiokafka(), tills.store, stop, version=version, **options)


def by_the_document(tills: Tills, stop: threading.Event) -> None:
    """Keeps the view with the code of docs/faust.md as it stands there."""
    text = (ROOT / "docs" / "faust.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    module = ModuleType("document")
    sys.modules["document"] = module  # where dataclasses look for what annotations name
    exec(code, module.__dict__)  # noqa: S102  # our own document
    module.keep(tills.kafka, tills.store, stop, lambda what, details: None)


@contextmanager
def running(tills: Tills, work: Keep) -> Iterator[list[BaseException]]:
    """The view is kept while the block runs, on a thread; what that failed of."""
    stop, failures = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            work(tills, stop)
        except BaseException as error:  # whatever it is, the test looks at it
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join(60.0)
        assert not thread.is_alive(), "the stream does not end"


@contextmanager
def keeping(tills: Tills, work: Keep, version: int = 1) -> Iterator[None]:
    """The view is live and kept while the block runs."""
    with running(tills, work) as failures:
        wait_until(lambda: bool(failures) or tills.is_live(version), "the view")
        if not failures:
            yield
    if failures:
        raise failures[0]


@pytest.fixture(scope="module")
def tills(addresses: Addresses) -> Iterator[Tills]:
    tills = Tills(addresses)
    tills.write(tills.sales(100))
    tills.write(tills.sales(50), commit=False)
    yield tills
    tills.store.close()


def test_windows_are_those_of_the_committed_events_also_behind_a_restart(tills: Tills) -> None:
    with keeping(tills, by(1)):
        tills.write(tills.sales(50))
        assert tills.rows() == expected(tills.committed)
    tills.write(tills.sales(50))
    with keeping(tills, by_the_document):
        tills.write(tills.sales(50))
        assert tills.rows() == expected(tills.committed)


def test_as_faust_reads_by_itself_what_was_aborted_is_counted(tills: Tills, monkeypatch: pytest.MonkeyPatch) -> None:
    real = aiokafka.AIOKafkaConsumer

    def careless(**options: Any) -> Any:
        return real(**{**options, "isolation_level": "read_uncommitted"})

    monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", careless)
    with keeping(tills, by(2), 2):
        counted, committed = tills.rows(2), expected(tills.committed)
    assert sum(row.sales for row in counted.values()) == sum(row.sales for row in committed.values()) + 10 * 50


@pytest.mark.parametrize(("guarded", "version"), [(True, 3), (False, 4)], ids=["guarded", "unguarded"])
def test_events_that_come_again_are_counted_once_where_entries_know_their_offset(
    tills: Tills, guarded: bool, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as lost:
        lost.setattr(CommittedConsumer, "_new_offset", lambda self, tp: None)
        with keeping(tills, by(version, guarded=guarded), version):
            assert tills.rows(version) == expected(tills.committed)
    once = sum(row.sales for row in expected(tills.committed).values())
    with keeping(tills, by(version, guarded=guarded), version):
        tills.write(tills.sales(10))
        counted = tills.rows(version)
    committed = expected(tills.committed)
    if guarded:
        assert counted == committed
    else:
        assert sum(row.sales for row in counted.values()) == sum(row.sales for row in committed.values()) + once


def killed_while_it_counts(tills: Tills, addresses: Addresses, version: int) -> None:
    """A process keeps the view, and is killed as soon as it has shown something new."""
    path = os.pathsep.join([str(ROOT / "framework"), str(ROOT)])
    command = [sys.executable, "-m", "tests.faust.sales", addresses.kafka, addresses.redis, str(version)]
    child = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, cwd=ROOT)
    try:
        wait_until(lambda: child.poll() is not None or tills.is_live(version), "the view", 120.0)
        before = tills.rows(version)
        tills.write(tills.sales(300))
        reader = Views(tills.store)[lately_of(version)]
        wait_until(lambda: dict(reader.items()) != before, "something of it")
    finally:
        child.kill()
        assert child.wait(60) == -signal.SIGKILL


@pytest.mark.slow
def test_who_is_killed_is_gone_on_with_and_nothing_is_counted_twice(tills: Tills, addresses: Addresses) -> None:
    killed_while_it_counts(tills, addresses, 5)
    killed_while_it_counts(tills, addresses, 5)
    with keeping(tills, by(5), 5):
        assert tills.rows(5) == expected(tills.committed)


def test_an_agent_that_fails_ends_the_stream_and_its_event_is_not_passed_over(tills: Tills) -> None:
    seen: list[int] = []
    is_mended = threading.Event()

    def work(tills: Tills, stop: threading.Event) -> None:
        streams = EventStreams(app, "fails", tills.kafka.aiokafka())

        async def note(events: AsyncIterator[Recorded[Sold]]) -> None:
            async for sold in events:
                if sold.event.cents == 5000 and not is_mended.is_set():
                    raise ValueError("too dear")
                if sold.event.cents >= 5000:
                    seen.append(sold.event.cents)

        streams.agent(Sold, note)
        streams.run(stop)

    tills.write([Sold(store="s1", cents=cents, at=NOW) for cents in (5000, 5001)])
    for _ in range(2):
        with running(tills, work) as failures:
            wait_until(lambda: bool(failures), "the end")  # called at once
        assert isinstance(failures[0], InfrastructureError)
        assert "too dear" in str(failures[0])
    is_mended.set()
    with running(tills, work) as failures:
        wait_until(lambda: bool(failures) or 5001 in seen, lambda: f"what comes behind: {failures} {seen}")
    assert seen == [5000, 5001]


def test_a_topic_that_was_trimmed_past_what_comes_next_is_refused(tills: Tills) -> None:
    """The last test of this module: what is deleted no other could read."""
    admin = AdminClient(tills.kafka.librdkafka())
    for future in admin.delete_records([TopicPartition("tills.events", p, 5) for p in range(PARTITIONS)]).values():
        future.result(20)
    with running(tills, by(6)) as failures:
        wait_until(lambda: bool(failures), "the refusal")  # called at once
    assert isinstance(failures[0], LogHole)
    assert not tills.is_live(6)
