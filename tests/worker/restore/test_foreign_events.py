"""Events that no worker can fold, since another program wrote them: they stop their own partition until passed over."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from leftfold.kafka.administration.states import forget_states
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.worker import restore_scheduler
from leftfold.model import keys as names
from tests.cli.shell import Typing
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.bank import ACCOUNTS, Bank
from tests.worker.broker import Broker
from tests.worker.running import Running

pytestmark = pytest.mark.servers

HIT, REST = 1, 0
STOPPED = frozenset({HIT})


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank(partitions=len(ACCOUNTS))


def plant(broker: Broker, one: Bank, headers: Sequence[tuple[str, bytes]] = ()) -> str:
    """Writes an event that is none into the partition that is hit; its place."""
    producer, topic = broker.producer(), names.events(one.name)
    before = broker.ends(topic, committed=False)[HIT]
    producer.produce(topic, b"mine", ACCOUNTS[HIT].encode(), HIT, headers=list(headers))
    assert producer.flush(WAIT_SECONDS) == 0
    return f"{topic}[{HIT}]@{before}"


def standing(running: Running, place: str) -> bool:
    """Whether the worker has said that it stands still at a place."""
    return running.going and any(report["at"] == place for report in running.reports.of("a partition stands still"))


def skip(typed: Typing, one: Bank, place: str) -> int:
    return typed("log", "skip", one.name, place, "--reason", "an operator tried something", "--yes").code


def test_a_foreign_event_stops_its_own_partition_until_it_is_passed_over_and_stays_so_once_its_letter_has_left(
    broker: Broker, bank: Bank, client: KafkaClient, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is started again stands still as before; and so does the twin, where the note has left, too.

    Meanwhile topics that take packed batches, or keep letters for another time than the App says, are named.
    """
    monkeypatch.setattr(restore_scheduler, "_PAUSE", 0.2)
    with Running(bank, broker.distant):
        for account in ACCOUNTS.values():
            assert client.send(bank.deposit(account), timeout=WAIT_SECONDS).version == 1
        refused = typed("log", "skip", bank.name, f"{bank.name}.events[{HIT}]@0", "--reason", "why not", "--yes")
        assert (refused.code, "no worker of" in refused.err, "nothing was changed" in refused.err) == (2, True, True)
        assert typed("log", "skip", bank.name, "--reason", "why not").code == 2
        packed = f"{names.commands(bank.name)} take batches that weigh little only while they are packed"
        assert packed not in str(typed("doctor"))
        broker.alter(names.commands(bank.name), compression_type="producer")
        broker.alter(names.dead(bank.name), retention_ms="-1")
        said = str(typed("doctor"))
        assert packed in said
        assert said.count("kafka-configs --bootstrap-server ") == 2
        assert f"{names.dead(bank.name)} has retention.ms=-1, and dead_retention of app {bank.app.name} says" in said
    ahead: list[tuple[str, bytes]] = [("ce_sequence", b"50"), ("ce_decision", b"1/1"), ("ce_causationid", b"x")]
    places = [plant(broker, bank), plant(broker, bank, ahead)]
    with Running(bank, broker.distant, stopped=STOPPED) as running:
        wait_until(lambda: standing(running, places[0]), "the report")
        report = running.reports.of("a partition stands still")[0]
        assert report["at"] == places[0]
        assert report["do"] == f"leftfold log skip {bank.name} '{places[0]}' --reason WHY"
        assert running.worker.served == {REST}
    with Running(bank, broker.distant, stopped=STOPPED) as running:
        wait_until(lambda: standing(running, places[0]), "the report, again")
        assert len(broker.settled(names.dead(bank.name))) == 1
        for look in ("status", "doctor"):
            shown = typed(look)
            why = f"{places[0]} cannot be folded, so {bank.name}.commands[{HIT}] is not served"
            assert why in shown.out + shown.err
        assert client.send(bank.deposit(ACCOUNTS[REST]), timeout=WAIT_SECONDS).version == 2
        for place in places:
            wait_until(lambda: standing(running, place), place)  # noqa: B023  # called at once
            wait_until(lambda: skip(typed, bank, place) == 0, f"the note of {place}")  # noqa: B023  # called at once
        running.stopped = frozenset()
        running.wait_serving()
        assert client.send(bank.deposit(ACCOUNTS[HIT]), timeout=WAIT_SECONDS).version == 2
    for left, version in ((names.dead(bank.name), 3), (names.skipped(bank.name), 0)):
        broker.wipe(left)
        forget_states(bank.app, bank.name, broker.settings, partial(KafkaLogReader, broker.settings), "kept")
        with Running(bank, broker.distant, stopped=frozenset() if version else STOPPED) as running:
            if version:
                assert client.send(bank.deposit(ACCOUNTS[HIT]), timeout=WAIT_SECONDS).version == version
                assert not running.reports.of("a partition stands still")
                assert "cannot be folded" not in typed("status").err
            else:
                wait_until(lambda: standing(running, places[0]), "the report")  # called at once
