"""One process at a time keeps a view of a stream, once the brokers know its tables; others take over when it dies."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from faust.transport.drivers import aiokafka as driver

from leftfold import InfrastructureError
from leftfold.engine.streaming import external_rows as streamed_rows
from leftfold.errors import Fenced
from leftfold.faust import EventStreams, ExternalRows, transport
from leftfold.faust.transport import CommittedThread
from leftfold.model.position import Position
from tests.faust.sales import PARTITIONS, Window, app, expected, lately_of, wired
from tests.faust.tills import NOW, Program, Tills, by, keeping, running
from tests.servers import Addresses
from tests.threads import Background
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


def test_a_second_process_is_refused_at_once_and_the_first_continues(tills: Tills) -> None:
    with keeping(tills, by(11), 11):
        with running(tills, by(11)) as failures:
            wait_until(lambda: bool(failures), "the refusal")
        assert isinstance(failures[0], InfrastructureError)
        assert not isinstance(failures[0], Fenced)
        assert "view lately is kept already by " in str(failures[0])
        tills.write(tills.sales(20))
        assert tills.rows(11) == expected(tills.committed)


def test_without_that_the_second_ends_the_first(tills: Tills, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_rows, "exclusive_lease", lambda *given: nullcontext())
    with running(tills, by(12)) as failures:
        wait_until(lambda: bool(failures) or tills.is_live(12), "the view")
        before = tokens(tills, 12)
        with keeping(tills, by(12), 12):
            wait_until(lambda: bool(failures) or tokens(tills, 12) != before, "the second to take the marks")
            tills.write(tills.sales(20))
            wait_until(lambda: bool(failures), "the end of the first")
    assert isinstance(failures[0], Fenced)


def tokens(tills: Tills, version: int) -> set[str]:
    """Who has written the checkpoints of the live generation."""
    generation = tills.store.registry("lately").live_of(lately_of(version).hash)
    assert generation is not None
    return {checkpoint.token for checkpoint in tills.store.checkpoints(generation).values()}


def test_a_rebuild_keeps_others_out_until_it_is_closed(tills: Tills) -> None:
    rows, other = (
        ExternalRows(lately_of(15), tills.store, {"tills.events": PARTITIONS}, is_rebuild=True) for _ in range(2)
    )
    with closing(EventStreams(app, "lately", tills.kafka.aiokafka(), rows=[rows])) as streams:
        wired(streams, rows)
        assert streams.run(threading.Event(), once=True)
        with pytest.raises(InfrastructureError, match="is being rebuilt already"), other.alone():
            pass
    with other.alone():
        pass


@pytest.mark.slow
@pytest.mark.faults
def test_who_waits_takes_over_from_who_is_killed_and_every_event_counts_once(
    tills: Tills, addresses: Addresses, tmp_path: Path
) -> None:
    with Program(addresses, tmp_path, 13) as first:
        wait_until(lambda: tills.is_live(13), first.said)
        with Program(addresses, tmp_path, 13) as second:
            wait_until(lambda: "is kept already by" in second.said(), second.said)
            before = tills.rows(13)
            tills.write(tills.sales(300))
            wait_until(lambda: tills.seen(13) != before, first.said)
            assert first.end(kill=True) == -signal.SIGKILL
            tills.write(tills.sales(50))
            assert tills.rows(13) == expected(tills.committed), second.said()
            assert second.end() == 0
    assert "streaming" in second.said()


@pytest.mark.faults
@pytest.mark.slow
def test_a_rebuild_goes_through_the_log_once_more_and_the_process_that_keeps_the_view_continues_with_that(
    tills: Tills, addresses: Addresses, tmp_path: Path
) -> None:
    with Program(addresses, tmp_path, 14) as keeper:
        wait_until(lambda: tills.is_live(14), keeper.said)
        before, rows = tills.live(14), tills.rows(14)
        reported = keeper.tell("rebuild", "lately", "--json")
        (result,) = reported.ok().rows()
        assert (result["predecessor"], result["equal"], result["swapped"]) == (before, True, True)
        assert tills.live(14) == result["generation"]
        assert tills.seen(14) == rows
        wait_until(lambda: keeper.process.poll() is not None, keeper.said)
        assert keeper.process.returncode == Fenced.exit_code, keeper.said()
        assert f"was rebuilt as generation {result['generation']}" in keeper.said()
    with Program(addresses, tmp_path, 14) as keeper:
        tills.write(tills.sales(50))
        assert tills.rows(14) == expected(tills.committed), keeper.said()
        assert tills.live(14) == result["generation"]


@pytest.mark.faults
@pytest.mark.slow
def test_a_rebuild_loses_nothing_of_what_is_sold_meanwhile_and_run_continues_by_itself(
    tills: Tills, addresses: Addresses, tmp_path: Path
) -> None:

    def sell(stop: threading.Event) -> None:
        while not stop.wait(0.05):
            tills.write(tills.sales(5))

    with Program(addresses, tmp_path, 17, whole=True) as keeper:
        wait_until(lambda: tills.is_live(17), keeper.said)
        before = tills.live(17)
        with Background(sell):
            reported = keeper.tell("rebuild", "lately")
        reported.ok()
        assert tills.live(17) != before
        wait_until(lambda: "exit=75" in keeper.said(), keeper.said)
        assert tills.rows(17) == expected(tills.committed), keeper.said()


@pytest.mark.faults
@pytest.mark.slow
def test_a_rebuild_finds_rows_that_are_wrong_and_shows_other_ones_only_when_asked_to(
    tills: Tills, addresses: Addresses, tmp_path: Path
) -> None:
    with Program(addresses, tmp_path, 15) as keeper:
        wait_until(lambda: tills.is_live(15), keeper.said)
        tills.rows(15)
    view = lately_of(15)
    rows: ExternalRows[Window, Any] = ExternalRows(view, tills.store, {"tills.events": PARTITIONS})
    rows.open()
    wrong = Window("s0", NOW, 0, 0)
    rows.put(wrong)
    rows.write(rows.take(), Position())
    assert tills.seen(15) != expected(tills.committed)
    reported = keeper.tell("rebuild", "lately")
    assert (reported.code, "not swapped" in reported.out) == (3, True), reported
    assert tills.seen(15)["s0", NOW] == wrong
    keeper.tell("rebuild", "lately", "--anyway").ok()
    assert tills.seen(15) == expected(tills.committed)
    assert "only that stream can compute it again" in keeper.tell("verify", "lately").err


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Brokers make the topic of a table only once this is set."""
    asked, create, making = threading.Event(), driver.Producer.create_topic, list[asyncio.Task[None]]()

    async def create_later(self: Any, *args: Any, **options: Any) -> None:
        async def make() -> None:
            while not asked.is_set():  # noqa: ASYNC110  # set by another thread
                await asyncio.sleep(0.05)
            await create(self, *args, **options)

        making.append(asyncio.create_task(make()))

    monkeypatch.setattr(driver.Producer, "create_topic", create_later)
    return asked


def test_a_stream_waits_for_the_topics_of_its_tables(
    tills: Tills, asked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = transport._unknown

    async def notice(client: Any, topics: set[str]) -> list[str]:
        missing = await unknown(client, topics)
        if missing:
            asked.set()
        return missing

    monkeypatch.setattr(transport, "_unknown", notice)
    with keeping(tills, by(21), 21):
        assert asked.is_set()
        assert tills.rows(21) == expected(tills.committed)


def test_brokers_that_never_know_a_table_are_named(
    tills: Tills, asked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_KNOWN_SECONDS", 0.0)
    with running(tills, by(22)) as failures:
        wait_until(lambda: bool(failures), "the stream to give up")
    assert not asked.is_set()
    assert isinstance(failures[0], InfrastructureError)
    assert "windows-changelog" in str(failures[0])
    assert "leftfold doctor" in str(failures[0])


def test_twin_where_a_stream_does_not_wait_it_takes_them_for_empty(
    tills: Tills, asked: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_wait(self: CommittedThread, topics: set[str]) -> None:
        return None

    monkeypatch.setattr(CommittedThread, "_until_known", no_wait)
    with running(tills, by(23)) as failures:
        wait_until(lambda: bool(failures) or tills.is_live(23), "the stream to fail")
    assert not asked.is_set()
    assert "has 0 partitions" in str(failures[0])
