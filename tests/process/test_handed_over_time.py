"""A router that gets a partition back does not know how late the events came that another one has routed meanwhile."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer

from leftfold.engine.processing.log_time import SourceClock, SourceTime, Watermark
from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.group_member import PartitionId
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from tests.domains.trade import Placed, app
from tests.process.trading import Trading, committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

EVENTS = names.events("orders")
LIVE, LOADED = datetime.now(UTC), datetime(2017, 1, 1, tzinfo=UTC)


def write(settings: KafkaSettings, at: datetime, partitions: list[int]) -> None:
    """An event of some time in each of these partitions."""
    producer = Producer(settings.librdkafka())
    for partition in partitions:
        body = Placed(order="o", product="p", at=at).model_dump_json().encode()
        told = {"ce_type": "orders.Placed.v1", "ce_id": f"{at}-{partition}", "ce_time": at.isoformat()}
        headers: Any = [(name, value.encode()) for name, value in told.items()]
        producer.produce(EVENTS, body, b"o", partition, headers=headers)
    assert producer.flush(240.0) == 0


def told(settings: KafkaSettings) -> list[Watermark]:
    """What routers have said of time."""
    checkpoints = [Watermark.decode(record.value or b"") for record in committed(settings, names.time("checkout"))]
    return checkpoints or [Watermark()]


def is_acknowledged(settings: KafkaSettings, partitions: list[int]) -> bool:
    """Whether routers have acknowledged all that is in these partitions."""
    with Groups(settings) as groups:
        done = groups.committed(names.group(app.name, "checkout.router"), [EVENTS])
        ends = groups.ends([EVENTS])
    return all(done.next_offset(EVENTS, p) >= ends.next_offset(EVENTS, p) for p in partitions)


@pytest.mark.parametrize("forgets", [True, False])
def test_a_partition_that_comes_back_is_told_of_as_one_that_nobody_knows(
    settings: KafkaSettings, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last event was loaded; the twin goes by the one before, and says that the present has come."""
    holding, tick = threading.Event(), ProcessRouter._report_time
    assigned: dict[ProcessRouter, frozenset[PartitionId]] = {}

    def held(self: ProcessRouter, now: float) -> None:
        assigned[self] = self.served
        if not holding.is_set():
            tick(self, now)

    def hold(self: SourceClock, place: PartitionId, now: datetime) -> None:
        self._since[place] = now
        self._ahead.setdefault(place, {})

    monkeypatch.setattr(ProcessRouter, "_report_time", held)
    if not forgets:
        monkeypatch.setattr(SourceClock, "drop", lambda self, places: None)
        monkeypatch.setattr(SourceClock, "hold", hold)
    with Trading(settings, parts=("router",)) as trading:
        wait_until(lambda: bool(assigned) and len(told(settings)[-1].sources) == 12, "the router to begin")
        (ours,) = assigned
        holding.set()
        count = len(committed(settings, "checkout.commands"))
        write(settings, LIVE, [0, 1, 2, 3])
        wait_until(lambda: len(committed(settings, "checkout.commands")) >= count + 4, "all to be routed")
        with Trading(settings, parts=("router",)):
            wait_until(lambda: len(assigned) == 2 and all(0 < len(tps) < 12 for tps in assigned.values()), "another")
            holding.clear()
            lost = [p for p in range(4) if (EVENTS, p) not in assigned[ours]]
            sources = {f"{EVENTS}/{partition}" for partition in lost}
            assert lost
            write(settings, LOADED, lost)
            wait_until(lambda: is_acknowledged(settings, lost), "the other one to route what is loaded")
            wait_until(
                lambda: any(len(checkpoint.sources) < 12 for checkpoint in told(settings)[-2:]), "both to tell the time"
            )
        wait_until(
            lambda: len(told(settings)[-1].sources) == 12 and not trading.failures,
            lambda: f"the router to get them back: {trading.failures}",
        )
        known = told(settings)[-1].sources
    assert all(known[source] == SourceTime() for source in sources) is forgets
