"""Windows that users of Faust compute over typed events become rows of a view, each event once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaTimeoutError
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Producer

from leftfold import InfrastructureError, LogHole, Recorded
from leftfold.faust import EventStreams
from leftfold.faust.transport import CommittedConsumer, CommittedThread, WholeProducer
from leftfold.reading import Views
from tests.faust.sales import PARTITIONS, Sold, app, expected, lately_of
from tests.faust.tills import NOW, Program, Tills, by, by_the_document, keeping, running
from tests.servers import Addresses
from tests.worker.waiting import wait_until

pytestmark = pytest.mark.servers


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


@pytest.mark.parametrize("mended", [True, False], ids=["ours", "as aiokafka seeks"])
def test_what_was_fetched_before_tables_were_restored_and_is_not_committed_is_read_again(
    tills: Tills, mended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Faust drops what comes before its streams go on, and has the consumer seek to what is committed: here to none."""
    monkeypatch.setattr(CommittedConsumer, "_new_offset", lambda self, tp: None)
    if not mended:
        monkeypatch.setattr(CommittedThread, "seek_to_committed", AIOKafkaConsumerThread.seek_to_committed)
    seen: list[Recorded[Sold]] = []

    def work(tills: Tills, stop: threading.Event) -> None:
        streams = EventStreams(app, f"again{mended}", tills.kafka.aiokafka())

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
    assert len(first) == (2 if mended else 1) * PARTITIONS


@pytest.mark.parametrize(("whole", "version"), [(True, 7), (False, 8)], ids=["ours", "as Faust flushes"])
def test_events_are_committed_once_the_changes_of_tables_are_written(
    tills: Tills, whole: bool, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers refuse the changes of tables, after a while; the next run has only what is written to restore."""
    asked, refused, committed = threading.Event(), threading.Event(), threading.Event()
    send, is_written, commit = AIOKafkaProducer.send, WholeProducer.is_written, CommittedConsumer._commit
    changes: list[asyncio.Future[Any]] = []

    async def lose() -> None:
        while not refused.is_set():  # noqa: ASYNC110  # another thread sets it
            await asyncio.sleep(0.005)
        raise KafkaTimeoutError("no broker answers")

    async def send_or_lose(self: Any, topic: str, *args: Any, **options: Any) -> Any:
        if "changelog" not in topic:
            return await send(self, topic, *args, **options)
        if not changes:
            changes.append(asyncio.ensure_future(lose()))
        return changes[0]

    async def is_asked(self: Any) -> bool:
        if changes:
            asked.set()
        return not whole or await is_written(self)

    async def is_committed(self: Any, offsets: Any) -> bool:
        done = await commit(self, offsets)
        if any(offsets.values()):
            committed.set()
        return done

    with monkeypatch.context() as broken:
        broken.setattr(AIOKafkaProducer, "send", send_or_lose)
        broken.setattr(WholeProducer, "is_written", is_asked)
        broken.setattr(CommittedConsumer, "_commit", is_committed)
        with running(tills, by(version)) as failures:
            wait_until(lambda: bool(failures) or (asked if whole else committed).is_set(), "a commit")
            if whole:
                assert not failures
                refused.set()
                wait_until(lambda: bool(failures), "the end")  # called at once
    assert bool(failures) is whole
    assert all("changes of tables are not written" in str(error) for error in failures)
    assert committed.is_set() is not whole
    with keeping(tills, by(version), version):
        tills.write(tills.sales(50))
        assert (tills.rows(version) == expected(tills.committed)) is whole


@pytest.mark.parametrize("whole", [True, False], ids=["ours", "as Faust flushes"])
def test_a_change_of_a_table_that_cannot_be_sent_ends_the_stream(
    tills: Tills, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `flush` raises in the middle of Faust's stop is kept here: the stream would never end."""
    flush, raised = WholeProducer.flush if whole else Producer.flush, list[RuntimeError]()

    async def flush_and_keep(self: Any) -> None:
        try:
            await flush(self)
        except RuntimeError as error:
            raised.append(error)

    def work(tills: Tills, stop: threading.Event) -> None:
        streams = EventStreams(app, f"large{whole}", tills.kafka.aiokafka(), producer_max_request_size=1000)
        table = streams.faust.Table("large", default=str, partitions=PARTITIONS)

        async def note(events: AsyncIterator[Recorded[Sold]]) -> None:
            async for sold in events:
                table[sold.event.store] = table["other"] = "x" * 1000

        streams.agent(Sold, note)
        streams.run(stop)

    monkeypatch.setattr(WholeProducer, "flush", flush_and_keep)
    with running(tills, work) as failures:
        wait_until(lambda: bool(failures), "the end")  # called at once
    assert isinstance(failures[0], InfrastructureError)
    assert bool(raised) is not whole


def killed_while_it_counts(tills: Tills, addresses: Addresses, place: Path, version: int) -> None:
    """A process keeps the view, and is killed as soon as it has shown something new."""
    program = Program(addresses, place, version)
    try:
        wait_until(lambda: tills.is_live(version), program.said)
        before = tills.rows(version)
        tills.write(tills.sales(300))
        reader = Views(tills.store)[lately_of(version)]
        wait_until(lambda: dict(reader.items()) != before, program.said)
    finally:
        assert program.end(kill=True) == -signal.SIGKILL


@pytest.mark.slow
def test_who_is_killed_is_gone_on_with_and_nothing_is_counted_twice(
    tills: Tills, addresses: Addresses, tmp_path: Path
) -> None:
    killed_while_it_counts(tills, addresses, tmp_path, 5)
    killed_while_it_counts(tills, addresses, tmp_path, 5)
    program = Program(addresses, tmp_path, 5)
    try:
        assert tills.rows(5) == expected(tills.committed)
    finally:
        assert program.end() == 0


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
        future.result(240.0)
    with running(tills, by(6)) as failures:
        wait_until(lambda: bool(failures), "the refusal")  # called at once
    assert isinstance(failures[0], LogHole)
    assert not tills.is_live(6)
