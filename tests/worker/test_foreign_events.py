"""Events that no worker can fold, since somebody else wrote them: they stop their own partition, until passed over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from leftfold.kafka.administration.states import forget_states
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from tests.waiting import wait_until
from tests.worker import bank as bank_module
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import Broker
from tests.worker.conftest import Typing
from tests.worker.running import Running

pytestmark = pytest.mark.servers

ACCOUNTS = {partition_of(name.encode(), PARTITIONS): name for name in map(str, range(40))}
HIT = 1


@pytest.fixture
def one(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Bank:
    """A bank with an event in each partition; the command line knows it as `tests.worker.bank:app`."""
    one = broker.bank()
    monkeypatch.setattr(bank_module, "app", one.app, raising=False)
    with Running(one, broker.distant), KafkaClient(one.name, broker.settings) as client:
        for account in ACCOUNTS.values():
            assert client.send(one.deposit(account), timeout=240.0).version == 1
    return one


def plant(broker: Broker, one: Bank, headers: Sequence[tuple[str, bytes]] = ()) -> str:
    """Writes an event that is none into the partition that is hit; its place."""
    producer, topic = broker.producer(), names.events(one.name)
    before = broker.ends(topic, committed=False)[HIT]
    producer.produce(topic, b"mine", ACCOUNTS[HIT].encode(), HIT, headers=list(headers))
    assert producer.flush(240.0) == 0
    return f"{topic}[{HIT}]@{before}"


@pytest.mark.faults
def test_a_foreign_event_stops_its_own_partition_until_it_is_passed_over(
    broker: Broker, one: Bank, typed: Typing
) -> None:
    """Workers that are started again stand still as before, until somebody has said that they need not."""
    ahead: list[tuple[str, bytes]] = [("ce_sequence", b"50"), ("ce_decision", b"1/1"), ("ce_causationid", b"x")]
    places = [plant(broker, one), plant(broker, one, ahead)]
    rest = {partition: name for partition, name in ACCOUNTS.items() if partition != HIT}
    for _ in range(2):
        with Running(one, broker.distant, stopped=frozenset({HIT})) as running:
            wait_until(lambda: standing(running, places[0]), "the report")  # called at once
            told = running.told("a partition stands still")[0]
            assert told["at"] == places[0]
            assert told["do"] == f"leftfold log skip {one.name} '{places[0]}' --reason WHY"
            assert running.worker.served == frozenset(rest)
    assert len(broker.settled(names.dead(one.name))) == 1
    for look in ("status", "doctor"):
        assert f"{places[0]} cannot be folded, so {one.name}.commands[{HIT}] is not served" in typed(look)[1]
    with (
        Running(one, broker.distant, stopped=frozenset({HIT})) as running,
        KafkaClient(one.name, broker.settings) as client,
    ):
        for account in rest.values():
            assert client.send(one.deposit(account), timeout=240.0).version == 2
        for place in places:
            wait_until(lambda: standing(running, place), place)  # noqa: B023  # called at once
            wait_until(lambda: skip(typed, one, place) == 0, f"the note of {place}")  # noqa: B023  # called at once
        running.stopped = frozenset()
        running.wait_serving()
        assert client.send(one.deposit(ACCOUNTS[HIT]), timeout=240.0).version == 2
    with Running(one, broker.distant) as running, KafkaClient(one.name, broker.settings) as client:
        assert not running.told("a partition stands still")
        assert client.send(one.deposit(ACCOUNTS[HIT]), timeout=240.0).version == 3
    assert "cannot be folded" not in typed("status")[1]


@pytest.mark.parametrize("gone", [pytest.param("letters", marks=pytest.mark.faults), "letters and marks"])
def test_what_is_passed_over_stays_so_when_its_letter_has_left(
    broker: Broker, one: Bank, typed: Typing, gone: str
) -> None:
    """A fold from the beginning meets it again, years later maybe."""
    place = plant(broker, one)
    with Running(one, broker.distant, stopped=frozenset({HIT})) as running:
        wait_until(lambda: standing(running, place), "the report")
        wait_until(lambda: skip(typed, one, place) == 0, "the note")
    broker.wipe(names.dead(one.name))
    if gone != "letters":
        broker.wipe(names.skipped(one.name))
    forget_states(one.app, one.name, broker.settings, partial(KafkaLogReader, broker.settings), "kept")
    if gone != "letters":
        with Running(one, broker.distant, stopped=frozenset({HIT})) as running:
            wait_until(lambda: standing(running, place), "the report")
        return
    with Running(one, broker.distant) as running, KafkaClient(one.name, broker.settings) as client:
        assert client.send(one.deposit(ACCOUNTS[HIT]), timeout=240.0).version == 2
        assert not running.told("a partition stands still")


def standing(running: Running, place: str) -> bool:
    """Whether the worker has said that it stands still at a place."""
    return running.going and any(told["at"] == place for told in running.told("a partition stands still"))


def skip(typed: Typing, one: Bank, place: str) -> int:
    return typed("log", "skip", one.name, place, "--reason", "somebody tried something", "--yes")[0]


def test_what_no_worker_stands_still_at_is_not_passed_over(broker: Broker, one: Bank, typed: Typing) -> None:
    code, said = typed("log", "skip", one.name, f"{one.name}.events[{HIT}]@0", "--reason", "why not", "--yes")
    assert (code, "no worker of" in said, "nothing was changed" in said) == (2, True, True)
    assert typed("log", "skip", one.name, "--reason", "why not")[0] == 2
    dead: Any = broker.records(names.dead(one.name))
    assert not dead


def test_topics_that_take_packed_batches_or_keep_letters_otherwise_are_named(
    broker: Broker, one: Bank, typed: Typing
) -> None:
    told = f"{names.commands(one.name)} take batches that weigh little only while they are packed"
    assert told not in typed("doctor")[1]
    broker.alter(names.commands(one.name), compression_type="producer")
    broker.alter(names.dead(one.name), retention_ms="-1")
    with Running(one, broker.distant):
        said = typed("doctor")[1]
        assert told in said
        assert f"{names.dead(one.name)} has retention.ms=-1, and dead_retention of app {one.app.name} says" in said
