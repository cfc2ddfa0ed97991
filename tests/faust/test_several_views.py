"""Several views of one stream: each holds what it says it holds, whatever becomes of those beside it.

Faust leaves fetches alone when it suspends its flow: what they bring is fetched again, and no row lacks it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from faust.types import TP

from leftfold.client import Views
from leftfold.faust.table_rows import TableRows
from leftfold.faust.transport import CommittedThread
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.memory import MemoryViewStore
from leftfold.model.position import Position
from leftfold.model.view import View
from tests.engine.streaming.test_external_rows import TOPIC, Level, at, levels, open_rows
from tests.faust.shifts import Gate, close_doors, closings, last_of, shift_at_work, totals
from tests.faust.tills import Tills
from tests.servers import Addresses
from tests.waiting import wait_until

SALES, CLOSED, ADDED = 120, 20, 5


@pytest.fixture(scope="module")
def tills(addresses: Addresses) -> Iterator[Tills]:
    """Sales that are written, and doors that were closed."""
    tills = Tills(addresses)
    with ClusterAdmin(tills.kafka) as cluster:
        cluster.create("doors.events", 2, 1, {})
    tills.write(tills.sales(SALES))
    close_doors(tills.kafka, CLOSED)
    yield tills
    tills.store.close()


@pytest.fixture(scope="module")
def shifted(tills: Tills) -> Tills:
    """The stream has kept its views for a while."""
    with shift_at_work(tills.kafka, tills.store, 1) as failures:
        wait_until(lambda: bool(failures) or live(tills, closings) != "", lambda: f"the view: {failures}")
        close_doors(tills.kafka, 1)
        closed(tills)
    assert not failures
    return tills


def closed(tills: Tills) -> int:
    """How often the front door was closed, as readers see it who want to see all that is written."""
    with ClusterAdmin(tills.kafka) as cluster:
        ends = cluster.ends(["doors.events"])
    row = Views(tills.store)[closings].get("front", after=ends, timeout=240.0)
    assert row is not None
    return row.times


def live(tills: Tills, view: View[Any, Any]) -> str:
    """The generation that readers see; '' = none."""
    found = tills.store.registry(view.name).live_of(view.hash)
    return found.id if found else ""


def sales_of(tills: Tills) -> int:
    """How many sales readers see, who want to see all that is written."""
    with ClusterAdmin(tills.kafka) as cluster:
        ends = cluster.ends(["tills.events"])
    reader = Views(tills.store)[totals]
    reader.get("s0", after=ends, timeout=240.0)
    return sum(row.sales for row in dict(reader.items()).values())


@pytest.mark.servers
def test_views_of_different_events_go_live_and_are_continued(tills: Tills) -> None:
    for added in (0, 5):
        before = live(tills, closings)
        with shift_at_work(tills.kafka, tills.store, 1) as failures:
            if added:
                close_doors(tills.kafka, added)
            wait_until(
                lambda: bool(failures) or all(live(tills, view) for view in (totals, last_of(1), closings)),
                lambda: f"the views: {failures}",
            )
            assert not failures
            assert closed(tills) == CLOSED + added, failures
            assert sales_of(tills) == len(tills.committed)
        assert not failures
        assert before in ("", live(tills, closings)), "nothing begins again"


@pytest.mark.servers
@pytest.mark.parametrize("waits", [False, True])
def test_a_view_does_not_go_back_while_one_beside_it_is_made_again(
    tills: Tills, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin writes what the stream says, which goes through the log once more."""
    old, new = (2, 3) if waits else (4, 5)
    with shift_at_work(tills.kafka, tills.store, old) as failures:
        wait_until(lambda: bool(failures) or bool(live(tills, last_of(old))), lambda: f"the views: {failures}")
        assert not failures
        assert sales_of(tills) == len(tills.committed)
    if not waits:
        monkeypatch.setattr(TableRows, "_is_behind", staticmethod(lambda rows, position: False))
    gate = Gate(behind=SALES // 2)
    with shift_at_work(tills.kafka, tills.store, new, gate) as failures:
        wait_until(lambda: bool(failures) or begun(tills, new), lambda: f"half of it: {failures}")
        assert not failures
        assert sales_of(tills) == len(tills.committed) if waits else sales_of(tills) < len(tills.committed)
        gate.opened.set()
        if waits:
            tills.write(tills.sales(20))
            wait_until(lambda: bool(failures) or bool(live(tills, last_of(new))), lambda: f"all: {failures}")
            assert sales_of(tills) == len(tills.committed)
    assert not failures
    if waits:
        with shift_at_work(tills.kafka, tills.store, old) as failures:
            tills.write(tills.sales(20))
            assert sales_of(tills) == len(tills.committed), "taken back"
        assert not failures


def begun(tills: Tills, version: int) -> bool:
    """Whether some rows of the new version are written."""
    store, hash_ = tills.store, last_of(version).hash
    made = [one for one in store.registry("last").generations.values() if one.hash == hash_]
    return any(checkpoint.rows for generation in made for checkpoint in store.checkpoints(generation).values())


@pytest.mark.servers
@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_fetch_takes_while_a_start_seeks_is_fetched_again(
    shifted: Tills, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin seeks one partition after another: what is taken behind those it has sought is lost."""
    seek, taken, tills = AIOKafkaConsumer.seek_to_committed, list[Any](), shifted
    before = closed(tills)
    close_doors(tills.kafka, ADDED)

    async def one_by_one(self: AIOKafkaConsumer) -> Any:
        committed = await seek(self)
        for doors in [tp for tp in self.assignment() if tp.topic == "doors.events" and committed[tp]]:
            while await self.position(doors) == committed[doors]:
                await self._fetcher.fetched_records({doors}, timeout=1.0)
            taken.append(doors)
        return committed

    monkeypatch.setattr(AIOKafkaConsumer, "seek_to_committed", one_by_one)
    if not at_once:
        monkeypatch.setattr(CommittedThread, "_seek_at_once", lambda self, consumer, committed: None)
    with shift_at_work(tills.kafka, tills.store, 1) as failures:
        wait_until(lambda: bool(failures) or bool(taken), lambda: f"a fetch: {failures}")
        found = closed(tills)
        assert found == before + ADDED if at_once else found < before + ADDED
    assert not failures


@pytest.mark.servers
@pytest.mark.parametrize("knows", [True, False])
def test_what_a_dropped_fetch_brought_is_fetched_again(
    tills: Tills, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin forgets that there was one: its rows say that they hold everything, and lack the first events."""
    fetch, armed, dropped = CommittedThread._fetch_records, threading.Event(), list[Any]()

    async def once_in_vain(self: Any, consumer: Any, *args: Any, **options: Any) -> Any:
        records = await fetch(self, consumer, *args, **options)
        is_of_doors = any(tp.topic == "doors.events" for tp in records)
        if armed.is_set() and not dropped and is_of_doors:
            dropped.append(records)
            if not knows:
                self._untaken.clear()
            return await fetch(self, consumer, *args, **options)
        return records

    monkeypatch.setattr(CommittedThread, "_fetch_records", once_in_vain)
    with shift_at_work(tills.kafka, tills.store, 1) as failures:
        wait_until(lambda: bool(failures) or live(tills, closings) != "", lambda: f"the view: {failures}")
        # Once a new event is counted, the start is over, and with it the seek that would bring everything again.
        close_doors(tills.kafka, 1)
        before = closed(tills)
        armed.set()
        close_doors(tills.kafka, ADDED)
        wait_until(lambda: bool(failures) or bool(dropped), lambda: f"a fetch to be dropped: {failures}")
        found = closed(tills)
        assert found == before + ADDED if knows else found < before + ADDED
    assert not failures


def test_an_event_that_one_view_waits_with_is_not_done() -> None:
    store = MemoryViewStore()
    first, _ = open_rows(store)
    first.write(first.take(), at(10, 10))
    kept = TableRows([open_rows(store)[0]])
    events = [(TP(TOPIC, partition), offset) for partition in (0, 1) for offset in (9, 10, 11)]

    async def put_and_write(position: Position) -> list[tuple[TP, int]]:
        kept._rows[0].put(Level("a", 1))
        await kept.write(position, lambda view: None)
        return kept.lacking(events)

    beyond = [(TP(TOPIC, partition), offset) for partition in (0, 1) for offset in (10, 11)]
    assert asyncio.run(put_and_write(at(12, 5))) == beyond, "one partition is further, the other is not there yet"
    assert dict(Views(store)[levels].items() if store.registry("levels").live else {}) == {}
    assert asyncio.run(put_and_write(at(12, 10))) == [(TP(TOPIC, 1), 10), (TP(TOPIC, 1), 11)]
    assert asyncio.run(put_and_write(at(12, 12))) == []
    kept.close()
