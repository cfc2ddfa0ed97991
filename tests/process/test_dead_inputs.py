"""Inputs that fail or kill end among the dead letters, and their instances continue; due timers hide no death."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from leftfold.engine.processing.log_time import Watermark
from leftfold.engine.processing.process_instance import Due
from leftfold.engine.processing.process_processor import ProcessManagerProcessor
from leftfold.engine.processing.process_wire import due_record
from leftfold.engine.processing.worker_tasks import ProcessRefold
from leftfold.kafka import process_router as clock
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.records import KafkaMessage
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.poison_pills import attempt
from leftfold.kafka.worker.worker import Worker
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Batch
from leftfold.ports.protocols import PartitionId
from tests.domains.trade import Confirmed, Pay, Place
from tests.process import alarms
from tests.process.alarms import Wind
from tests.process.faulty import KILLS, RAISES, UNDECIDABLE, WRONG, app, corrected
from tests.process.trading import Trading
from tests.reactions.shell import Shell
from tests.settled import committed
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]

HOME = partition_of(KILLS.encode(), 4)
AROUND = [f"n{n}" for n in range(200) if partition_of(f"n{n}".encode(), 4) == HOME][:6]


def reasons(settings: KafkaSettings) -> dict[str, str]:
    """Why each dead input is one, by key."""
    letters = committed(settings, names.dead("checkout"))
    return {(r.key or b"").decode(): header(r.headers, "dead_reason").decode() for r in letters}


@pytest.mark.slow
def test_what_fails_or_kills_is_buried_and_everything_else_is_done(settings: KafkaSettings, tmp_path: Path) -> None:
    """`leftfold run` starts the worker again whenever it dies."""
    shell = Shell("tests.process.faulty:app", settings, tmp_path, {})
    with Trading(settings, app, parts=("orders", "stock", "payments")) as trading:
        for order in (*AROUND[:3], RAISES, WRONG, UNDECIDABLE, KILLS, *AROUND[3:]):
            trading.client.send(Place(order=order, product=order, at=datetime.now(UTC)), timeout=240.0)
            trading.client.send(Pay(order=order), timeout=240.0)
        with shell.running("checkout"):
            for order in AROUND:
                trading.await_event("orders", Confirmed(order=order))
            wait_until(lambda: len(reasons(settings)) == 4, lambda: f"{reasons(settings)} {shell.said()}")
        found = reasons(settings)
        confirmed = [event for event in trading.events("orders") if isinstance(event, Confirmed)]
    assert "died 3 times" in found[KILLS]
    assert "a bug in react" in shell.log.read_text("utf-8")
    assert "failed on Placed" in found[RAISES]
    assert "a bug in react" in found[RAISES]
    assert "react gave 'neither command nor timer'" in found[WRONG]
    assert "Reserve was not decided: DecisionFailed" in found[UNDECIDABLE]
    assert sorted(event.order for event in confirmed) == sorted(AROUND), "one each"


@pytest.mark.parametrize("knows", [True, False])
def test_a_raised_version_takes_what_was_taken_and_nothing_that_was_buried(
    settings: KafkaSettings, knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin folds as if there were no dead letters: it knows of orders for which nothing was ever reserved."""
    if not knows:
        monkeypatch.setattr(ProcessRefold, "skip", lambda self, letter: None)
    newer = corrected(2 if knows else 3)
    ensure(newer, settings)
    with Trading(settings, newer, parts=("checkout",)):
        records = committed(settings, names.state("checkout", newer.processes[0].version))
    states = {(r.key or b"").decode(): json.loads(r.value or b"{}") for r in records}
    products = {key: states[key]["state"]["product"] for key in (*AROUND, RAISES, KILLS, WRONG)}
    assert products == {key: key if key in AROUND or not knows else "" for key in products}
    assert all(states[key]["state"]["paid"] for key in products), "an instance continues behind what is buried"
    assert any(states[key]["timers"] for key in (RAISES, KILLS, WRONG)) is not knows


TOPIC = names.commands("alarm")
BEYOND = 1 << 60
"""Behind every input: routers may write lines while no worker is there to take them."""


def taken(settings: KafkaSettings, partition: int, *, deaths: int = 0) -> int:
    """The next input of a partition; `deaths` leaves it as so many workers do that died of it, taken alone."""
    group = {"group.id": names.group(alarms.app.name, "alarm"), "enable.auto.commit": False}
    consumer = Consumer({**settings.librdkafka(), **group})
    try:
        (at,) = consumer.committed([TopicPartition(TOPIC, partition)], WAIT_SECONDS)
        if deaths:
            consumer.commit(offsets=[TopicPartition(TOPIC, partition, at.offset, attempt(deaths))], asynchronous=False)
        return at.offset
    finally:
        consumer.close()


def is_time_known(settings: KafkaSettings, partition: int) -> bool:
    """Whether the time is known everywhere, by all that is taken."""
    reported = committed(settings, names.time("alarm"))
    checkpoint = Watermark.decode(reported[-1].value or b"") if reported else Watermark()
    return (
        len(checkpoint.sources) == 4
        and all(s.end for s in checkpoint.sources.values())
        and (taken(settings, partition) >= checkpoint.inputs[partition])
    )


def inputs(settings: KafkaSettings, bell: str) -> int:
    """How many inputs a bell was given."""
    return sum(record.key == bell.encode() for record in committed(settings, TOPIC))


@pytest.mark.parametrize("counts", [True, False])
def test_timers_that_are_due_wait_for_an_input_that_has_killed_workers(
    settings: KafkaSettings, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin writes that a timer is due first, and takes the input for one that never killed anybody."""
    ensure(alarms.app, settings)
    monkeypatch.setattr(clock, "SILENCE", timedelta(seconds=2))
    past, bell = datetime.now(UTC) - timedelta(hours=1), f"bell-{counts}"
    home = partition_of(bell.encode(), 4)
    deadly = due_record("belfry", "alarm", bell, "another", Due("2026-01-01T00:00:00Z", "", "", "c", "nothing"), home)
    due, fetch, commit = ProcessManagerProcessor.due, GroupMember.fetch, GroupMember.commit
    tried: list[str] = []
    asked: list[bool] = []

    def noted(self: GroupMember, offsets: Mapping[PartitionId, tuple[int, str]]) -> None:
        if (TOPIC, home) in offsets:
            tried.append(offsets[TOPIC, home][1])
        commit(self, offsets)

    def reported(self: ProcessManagerProcessor, nexts: Mapping[int, int]) -> Batch:
        time = self.times.get(home)
        asked.append(time is not None and time.now(BEYOND) is not None)
        return due(self, nexts if counts or home not in self.held else {home: BEYOND, **nexts})

    def late(self: GroupMember, limit: int, wait: float) -> list[KafkaMessage]:
        messages = fetch(self, limit, wait)
        if not messages or messages[0].topic() != TOPIC or any(asked):
            return messages
        self.rewind(dict(self._served))
        return []

    with Trading(settings, alarms.app, parts=("bells", "router")) as trading:
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "_fire", lambda self: None)
            with Trading(settings, alarms.app, parts=("alarm",)):
                trading.client.send(Wind(bell=bell, at=past), timeout=240.0)
                wait_until(
                    lambda: any(r.key == bell.encode() for r in committed(settings, names.state("alarm", 1))),
                    "the timer to be set",
                )
                wait_until(lambda: is_time_known(settings, home), "routers to know the time")
        write_record(settings, TOPIC, deadly)  # routers know nothing of it, as of answers that a process is given
        taken(settings, home, deaths=2)
        monkeypatch.setattr(GroupMember, "commit", noted)
        monkeypatch.setattr(GroupMember, "fetch", late)
        monkeypatch.setattr(ProcessManagerProcessor, "due", reported)
        with Trading(settings, alarms.app, parts=("alarm",)):
            wait_until(lambda: inputs(settings, bell) >= 3, "the timer to fire")
            wait_until(lambda: any(metadata.startswith("a:") for metadata in tried), "the input to be taken")
    assert (attempt(3) in tried) is counts
