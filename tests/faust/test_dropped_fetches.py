"""Faust leaves fetches alone when it suspends its flow: what they bring is fetched again, and no row lacks it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from leftfold.client import Views
from leftfold.faust.transport import CommittedThread
from leftfold.kafka.administration.cluster import ClusterAdmin
from tests.faust.shifts import close_doors, closings, shift_at_work
from tests.faust.test_several_views import live, tills
from tests.faust.tills import Tills
from tests.waiting import wait_until

__all__ = ["tills"]
ADDED = 5


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


@pytest.mark.servers
@pytest.mark.parametrize("at_once", [True, False])
def test_what_a_fetch_takes_while_a_start_seeks_is_fetched_again(
    tills: Tills, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin seeks one partition after another: what is taken behind those it has sought is lost."""
    seek, taken = AIOKafkaConsumer.seek_to_committed, list[Any]()
    with shift_at_work(tills.kafka, tills.store, 1) as failures:
        wait_until(lambda: bool(failures) or live(tills, closings) != "", lambda: f"the view: {failures}")
        close_doors(tills.kafka, 1)
        before = closed(tills)
    assert not failures
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


def closed(tills: Tills) -> int:
    """How often the front door was closed, as readers see it who want to see all that is written."""
    with ClusterAdmin(tills.kafka) as cluster:
        ends = cluster.ends(["doors.events"])
    row = Views(tills.store)[closings].get("front", after=ends, timeout=240.0)
    assert row is not None
    return row.times
