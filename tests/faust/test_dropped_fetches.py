"""Faust leaves fetches alone when it suspends its flow: what they bring is fetched again, and no row lacks it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from leftfold.faust.transport import CommittedThread
from leftfold.kafka.cluster import Cluster
from leftfold.reading import Views
from tests.faust.shifts import close_doors, closings, shift_at_work
from tests.faust.test_several_views import live, tills
from tests.faust.tills import Tills
from tests.worker.waiting import wait_until

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


def closed(tills: Tills) -> int:
    """How often the front door was closed, as readers see it who want to see all that is written."""
    with Cluster(tills.kafka) as cluster:
        ends = cluster.ends(["doors.events"])
    row = Views(tills.store)[closings].get("front", after=ends, timeout=240.0)
    assert row is not None
    return row.times
