"""The state topic is a convenience: compacted, wiped, cut or forged, a worker's state is the fold of the events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from leftfold import App
from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint
from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.worker import state_restore
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.state_restore import Restoration
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.protocols import LogReader, RawRecord
from tests.process.alarms import Rang, Wind, alarm_called, bells
from tests.process.trading import Trading
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker import bank as banks
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import Broker
from tests.worker.load import Sent, audit
from tests.worker.running import Running

pytestmark = pytest.mark.servers

ACCOUNTS = [f"account-{number}" for number in range(8)]
"""Some in each partition; so have the last four."""
FOREIGN = [
    (b"\xff", b"{}"),
    (MARK, b"no mark"),
    (MARK, b"[]"),
    (MARK, b'{"commands": "many"}'),
    (MARK, b'{"commands": -1, "events": 1e999}'),
    (MARK, b"\xff"),
    (MARK, b"[" * 100_000),
    (b"", b"{}"),
]
TORN = [b"no state", b'{"version":', b'{"version":1,"state":']
DECIDERS = b'{"version":1,"state":1,"answered":[],"origins":{}}'
"""A state, but none of a process."""


def test_a_topic_that_was_compacted_cut_or_wiped_restores_the_same_states_and_a_hole_in_the_events_needs_them(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    """The twin of a hole that is refused: with the states there, the same hole costs nothing."""
    quickly = {"segment_ms": "300", "min_cleanable_dirty_ratio": "0.01", "max_compaction_lag_ms": "100"}
    broker.alter(bank.state, **quickly)
    sent: list[Sent] = []
    with Running(bank, broker.distant) as running:
        wait_until(lambda: _compacted(broker, bank, client, sent), "the cleaner")
        half = broker.ends(bank.state, committed=True)
        _send(client, bank, sent, accounts=ACCOUNTS[4:])
        before = _streams(running)
    assert set(broker.starts(bank.state).values()) == {0}
    for cut in (dict[int, int](), half, None):
        if cut != {}:
            broker.wipe(bank.state, cut)
        with Running(bank, broker.distant) as running:
            assert _streams(running) == before
            _send(client, bank, sent)
            before = _streams(running)
        if cut:
            marked = _marked_starts(broker, bank)
            assert marked == broker.starts(bank.state), "every restore would fold the whole log again"
    assert audit(broker, bank, sent) == []
    broker.wipe(names.events(bank.name), dict.fromkeys(range(PARTITIONS), 1))
    with Running(bank, broker.distant) as running:
        assert _streams(running) == before
    broker.wipe(bank.state)
    with pytest.raises(InfrastructureError, match="gap in the log"), Running(bank, broker.distant):
        pass


def test_records_that_no_worker_wrote_are_passed_over_and_streams_whose_state_they_replaced_are_folded_again(
    broker: Broker, bank: Bank, client: KafkaClient
) -> None:
    home = partition_of(b"ann", PARTITIONS)
    hit = [name for name in map(str, range(100)) if partition_of(name.encode(), PARTITIONS) == home][: len(TORN)]
    torn = [(account.encode(), value) for account, value in zip(hit, TORN, strict=True)]
    for version in (1, 2, 3):
        with Running(bank, broker.distant) as running:
            for account in ("ann", *hit):
                assert client.send(bank.deposit(account), timeout=WAIT_SECONDS).version == version
            reports = running.reports.of("foreign state")
            assert len({one["at"] for one in reports if "at" in one}) == (len(FOREIGN) if version > 1 else 0)
            assert [one["of"] for one in reports if "of" in one] == ([sorted(hit)] if version == 2 else [])
        if version == 1:
            _forge(broker, bank.state, home, [*FOREIGN, *torn])


def test_those_of_a_process_end_no_worker_and_its_timers_ring(broker: Broker) -> None:
    app = App("belfry", partitions=1, deciders=[bells], processes=[alarm_called("alarm")])
    ensure(app, broker.settings)
    states, bell = names.state("alarm", 1), "bell"
    with Trading(broker.settings, app, parts=("bells", "alarm", "router")) as trading:
        trading.client.send(Wind(bell=bell, at=datetime(2999, 1, 1, tzinfo=UTC)), timeout=WAIT_SECONDS)
        wait_until(lambda: any(r.key == bell.encode() for r in trading.records(states)), "the timer")
    _forge(broker, states, 0, [*FOREIGN, (bell.encode(), DECIDERS)])  # its inputs are folded again
    with Trading(broker.settings, app, parts=("bells", "alarm", "router")) as trading:
        found = trading.reports.of("foreign state")
        assert len({one["at"] for one in found if "at" in one}) >= len(FOREIGN)
        assert [one["of"] for one in found if "of" in one] == [[bell]]
        trading.client.send(Wind(bell=bell, at=datetime(2020, 1, 1, tzinfo=UTC)), timeout=WAIT_SECONDS)
        trading.await_event("bells", Rang(bell=bell))


def test_answers_of_another_version_are_taken_over_in_small_steps(broker: Broker) -> None:
    """However many there are, what is served meanwhile is served on."""
    old = broker.bank(partitions=1)
    new = broker.opened(banks.bank(old.name, version=2, partitions=1))
    with KafkaClient(old.name, broker.settings) as client, Running(old, broker.address) as running:
        for number in range(5):
            client.send(old.look(f"account-{number}"), timeout=WAIT_SECONDS)
        reads: list[str] = []
        onlooker = KafkaClientSupplier(broker.settings)
        member = onlooker.member(old.group, names.commands(old.name), lambda partitions, ours: None)
        ports = onlooker.restore_ports(member)
        one_by_one = replace(ports, open_log=lambda: OneByOne(ports.open_log(), reads))
        restoration = Restoration(new.app, new.name, [0], one_by_one)
        most, done = 0, False
        while not done:
            before = len(reads)
            done = restoration.step()
            most = max(most, len(reads) - before)
        adopted = dict(restoration.found[0].refold.changed)
        restoration.close()
        member.close()
        onlooker.close()
        assert running.going
    assert (most, reads.count(old.state) >= 5) == (1, True)
    assert adopted.keys() == {f"account-{number}" for number in range(5)}


def test_a_restore_without_progress_for_a_minute_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its offsets are answered late, and then a transaction on the events stays open that it cannot end."""
    now, unanswered, one = [1000.0], [True], banks.bank("stalled")
    monkeypatch.setattr(state_restore, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def committed(places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if unanswered:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return [TopicPartition(place.topic, place.partition, 0, "clean") for place in places]

    stable, uncommitted = (
        SimpleNamespace(get_watermark_offsets=lambda place, timeout, end=end: (0, end)) for end in (0, 1)
    )
    ports: Any = SimpleNamespace(
        member=SimpleNamespace(committed=committed), stable=stable, uncommitted=uncommitted,
        identities=lambda task: {}, hanging=lambda app, task: SimpleNamespace(end=lambda partitions, **how: []),
    )  # fmt: skip
    restoration = Restoration(one.app, one.name, [0], ports)
    assert not restoration.step()
    now[0] += 59
    unanswered.clear()
    assert not restoration.step(), "it makes progress"
    now[0] += 59
    assert not restoration.step()
    now[0] += 2
    with pytest.raises(InfrastructureError, match=r"no progress within 60 s \(watermarks\); nothing is served"):
        restoration.step()


class OneByOne:
    """A reader that brings one record at a time, and notes what it was asked for."""

    def __init__(self, log: LogReader, reads: list[str]) -> None:
        self._log, self._reads = log, reads

    def poll(self, limit: int, timeout: float) -> list[RawRecord]:
        self._reads.extend(self._log.position().offsets)
        return self._log.poll(1, timeout)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def _forge(broker: Broker, topic: str, partition: int, records: list[tuple[bytes, bytes]]) -> None:
    producer = broker.producer()
    for key, value in records:
        producer.produce(topic, value, key, partition)
    assert producer.flush(WAIT_SECONDS) == 0


def _send(client: KafkaClient, bank: Bank, sent: list[Sent], *, accounts: list[str] = ACCOUNTS) -> None:
    new = [Sent(f"id-{len(sent) + n}", account, bank.deposit(account, n)) for n, account in enumerate(accounts)]
    answers = client.send_many([one.command for one in new], ids=[one.id for one in new], timeout=WAIT_SECONDS)
    for one, answer in zip(new, answers, strict=True):
        one.answer = answer
    sent += new


def _compacted(broker: Broker, bank: Bank, client: KafkaClient, sent: list[Sent]) -> bool:
    """Writes on, which rolls segments, until every partition has lost records that were replaced."""
    _send(client, bank, sent)
    wanted = Counter(one.key for one in sent)
    found = Counter((r.key or b"").decode() for r in broker.records(bank.state))
    return all(found[account] < number / 2 for account, number in wanted.items())


def _streams(running: Running) -> Mapping[str, tuple[int, object]]:
    """Version and state of every stream that the worker holds."""
    return {
        key: (fields["version"], fields["state"])
        for held in running.worker._processor.held.values()
        for key, fields in ((key, json.loads(value)) for key, value in held.store.items())
    }


def _marked_starts(broker: Broker, bank: Bank) -> dict[int, int]:
    """Where each state partition began, as its last `@` knows it."""
    checkpoints = {
        r.partition: ChangelogCheckpoint.decode(r.value or b"") for r in broker.records(bank.state) if r.key == MARK
    }
    return {partition: checkpoint.start for partition, checkpoint in checkpoints.items()}
