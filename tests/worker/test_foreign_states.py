"""Records that no worker wrote among its states: whoever folds on from them passes them over and says so."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from leftfold import App
from leftfold.engine.processing.stream_state import MARK
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from tests.process.alarms import Rang, Wind, alarm_called, bells
from tests.process.trading import Trading
from tests.waiting import wait_until
from tests.worker.bank import PARTITIONS
from tests.worker.broker import SECONDS, Broker
from tests.worker.running import Running

pytestmark = pytest.mark.servers

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

ACCOUNT = "ann"
HOME = partition_of(ACCOUNT.encode(), PARTITIONS)


def test_those_of_others_are_served(broker: Broker) -> None:
    one = broker.bank()
    with Running(one, broker.distant), KafkaClient(one.name, broker.settings) as client:
        assert client.send(one.deposit(ACCOUNT), timeout=SECONDS).version == 1
    producer = broker.producer()
    for key, value in FOREIGN:
        producer.produce(one.state, value, key, HOME)
    assert producer.flush(SECONDS) == 0
    with Running(one, broker.distant) as running, KafkaClient(one.name, broker.settings) as client:
        assert client.send(one.deposit(ACCOUNT), timeout=SECONDS).version == 2
        assert len({found["at"] for found in running.told("foreign state")}) == len(FOREIGN)


def test_a_stream_whose_state_somebody_has_overwritten_is_folded_anew(broker: Broker) -> None:
    one, producer = broker.bank(), broker.producer()
    hit = [name for name in map(str, range(100)) if partition_of(name.encode(), PARTITIONS) == HOME][: len(TORN)]
    with Running(one, broker.distant), KafkaClient(one.name, broker.settings) as client:
        for account in (ACCOUNT, *hit):
            assert client.send(one.deposit(account), timeout=SECONDS).version == 1
    for account, value in zip(hit, TORN, strict=True):
        producer.produce(one.state, value, account.encode(), HOME)
    assert producer.flush(SECONDS) == 0
    for version in (2, 3):
        with Running(one, broker.distant) as running, KafkaClient(one.name, broker.settings) as client:
            for account in (ACCOUNT, *hit):
                assert client.send(one.deposit(account), timeout=SECONDS).version == version
            assert bool(running.told("foreign state")) == (version == 2)


def test_those_of_a_process_end_no_worker_and_its_timers_ring(broker: Broker) -> None:
    app = App("belfry", partitions=PARTITIONS, deciders=[bells], processes=[alarm_called("alarm")])
    settings = KafkaSettings(bootstrap_servers=broker.distant)
    bell = "bell-8"  # at home in one partition: the silence of another one is waited for
    ensure(app, settings)
    states, home = names.state("alarm", 1), partition_of(bell.encode(), PARTITIONS)
    with Trading(settings, app, parts=("bells", "alarm", "router")) as trading:
        trading.client.send(Wind(bell=bell, at=datetime(2999, 1, 1, tzinfo=UTC)), timeout=SECONDS)
        wait_until(lambda: any(r.key == bell.encode() for r in trading.records(states)), "the timer")
    producer = broker.producer()
    for key, value in [*FOREIGN, (bell.encode(), TORN[-1])]:  # its inputs are folded again
        producer.produce(states, value, key, home)
    assert producer.flush(SECONDS) == 0
    with Trading(settings, app, parts=("bells", "alarm", "router")) as trading:
        found = [details for what, details in trading.reports if what == "foreign state"]
        assert len({one["at"] for one in found if "at" in one}) >= len(FOREIGN)
        assert [one["of"] for one in found if "of" in one] == [[bell]]
        trading.client.send(Wind(bell=bell, at=datetime(2020, 1, 1, tzinfo=UTC)), timeout=SECONDS)
        trading.await_event("bells", Rang(bell=bell))
