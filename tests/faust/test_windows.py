"""Windows that users of Faust compute over typed events become rows of a view, each event once."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiokafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread

from leftfold import InfrastructureError, LogGap, Recorded
from leftfold.faust import EventStreams
from leftfold.faust.transport import CommittedConsumer, CommittedThread
from tests.faust.sales import PARTITIONS, Sold, app, expected
from tests.faust.tills import NOW, Tills, by, by_the_document, keeping, running
from tests.servers import Addresses
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def tills(addresses: Addresses) -> Iterator[Tills]:
    tills = Tills(addresses)
    tills.write(tills.sales(60))
    tills.write(tills.sales(30), commit=False)
    yield tills
    tills.store.close()


def test_windows_are_those_of_the_committed_events_also_behind_a_restart(tills: Tills) -> None:
    with keeping(tills, by(1)):
        tills.write(tills.sales(20))
        assert tills.rows() == expected(tills.committed)
    tills.write(tills.sales(20))
    with keeping(tills, by_the_document):
        tills.write(tills.sales(20))
        assert tills.rows() == expected(tills.committed)


def test_as_faust_reads_by_itself_what_was_aborted_is_counted(tills: Tills, monkeypatch: pytest.MonkeyPatch) -> None:
    real = aiokafka.AIOKafkaConsumer

    def careless(**options: Any) -> Any:
        return real(**{**options, "isolation_level": "read_uncommitted"})

    monkeypatch.setattr(aiokafka, "AIOKafkaConsumer", careless)
    with keeping(tills, by(2), 2):
        counted, committed = tills.rows(2), expected(tills.committed)
    assert sum(row.sales for row in counted.values()) == sum(row.sales for row in committed.values()) + 10 * 30


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


@pytest.mark.parametrize("corrected", [True, False], ids=["ours", "as aiokafka seeks"])
def test_what_was_fetched_before_tables_were_restored_and_is_not_committed_is_read_again(
    tills: Tills, corrected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust drops what comes before its streams go on, and has the consumer seek to what is committed: here to none."""
    monkeypatch.setattr(CommittedConsumer, "_new_offset", lambda self, tp: None)
    if not corrected:
        monkeypatch.setattr(CommittedThread, "seek_to_committed", AIOKafkaConsumerThread.seek_to_committed)
    seen: list[Recorded[Sold]] = []

    def work(tills: Tills, stop: threading.Event) -> None:
        streams = EventStreams(app, f"again{corrected}", tills.kafka.aiokafka())

        async def note(events: AsyncIterator[Recorded[Sold]]) -> None:
            async for sold in events:
                seen.append(sold)
                if len(seen) == len(committed):
                    await streams.faust.consumer.perform_seek()
                elif sold.key == "last":
                    stop.set()

        streams.agent(Sold, note)
        streams.run(stop)

    committed = list(tills.committed)
    with running(tills, work) as failures:
        wait_until(lambda: bool(failures) or len(seen) >= len(committed), "all events")
        tills.write([Sold(store="last", cents=1, at=NOW)])
        wait_until(lambda: bool(failures) or any(sold.key == "last" for sold in seen), "the last event")
    assert not failures
    first = [sold for sold in seen if sold.offset == 0]
    assert len(first) == (2 if corrected else 1) * PARTITIONS


def test_an_agent_that_fails_ends_the_stream_and_its_event_is_not_passed_over(tills: Tills) -> None:
    seen: list[int] = []
    is_repaired = threading.Event()

    def work(tills: Tills, stop: threading.Event) -> None:
        streams = EventStreams(app, "fails", tills.kafka.aiokafka())

        async def note(events: AsyncIterator[Recorded[Sold]]) -> None:
            async for sold in events:
                if sold.event.cents == 5000 and not is_repaired.is_set():
                    raise ValueError("too dear")
                if sold.event.cents >= 5000:
                    seen.append(sold.event.cents)

        streams.agent(Sold, note)
        streams.run(stop)

    tills.write([Sold(store="s1", cents=cents, at=NOW) for cents in (5000, 5001)])
    with running(tills, work) as failures:
        wait_until(lambda: bool(failures), "the end")
    assert isinstance(failures[0], InfrastructureError)
    assert "too dear" in str(failures[0])
    is_repaired.set()
    with running(tills, work) as failures:
        wait_until(lambda: bool(failures) or 5001 in seen, lambda: f"what comes behind: {failures} {seen}")
    assert seen == [5000, 5001]


def test_a_topic_that_was_trimmed_past_what_comes_next_is_refused(tills: Tills) -> None:
    """The last test of this module: what is deleted no other could read."""
    admin = AdminClient(tills.kafka.librdkafka())
    for future in admin.delete_records([TopicPartition("tills.events", p, 5) for p in range(PARTITIONS)]).values():
        future.result(240.0)
    with running(tills, by(6)) as failures:
        wait_until(lambda: bool(failures), "the refusal")  # called at once
    assert isinstance(failures[0], LogGap)
    assert not tills.is_live(6)
