"""Records that no worker wrote among its states: whoever folds on from them passes them over and says so."""

from __future__ import annotations

import pytest

from leftfold.engine.statemark import MARK
from leftfold.kafka.client import KafkaClient
from leftfold.partitioner import partition_of
from tests.worker.bank import PARTITIONS
from tests.worker.broker import SECONDS, Broker
from tests.worker.running import Running

pytestmark = pytest.mark.servers

ACCOUNT = "ann"
HOME = partition_of(ACCOUNT.encode(), PARTITIONS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\xff", b"{}"),
        (MARK, b"no mark"),
        (MARK, b"[]"),
        (MARK, b'{"commands": "many"}'),
        (MARK, b'{"commands": -1, "events": 1e999}'),
        (MARK, b"\xff"),
        (MARK, b"[" * 100_000),
        (b"", b"{}"),
    ],
)
def test_those_of_others_are_served(broker: Broker, key: bytes, value: bytes) -> None:
    one = broker.bank()
    with Running(one, broker.address), KafkaClient(one.name, broker.settings) as client:
        assert client.send(one.deposit(ACCOUNT), timeout=SECONDS).version == 1
    producer = broker.producer()
    producer.produce(one.state, value, key, HOME)
    assert producer.flush(SECONDS) == 0
    with Running(one, broker.address) as running, KafkaClient(one.name, broker.settings) as client:
        assert client.send(one.deposit(ACCOUNT), timeout=SECONDS).version == 2
        assert running.told("foreign state")


@pytest.mark.parametrize("value", [b"no state", b'{"version":', b'{"version":1,"state":'])
def test_a_stream_whose_state_somebody_has_overwritten_is_folded_anew(broker: Broker, value: bytes) -> None:
    one, producer = broker.bank(), broker.producer()
    hit = next(name for name in map(str, range(100)) if partition_of(name.encode(), PARTITIONS) == HOME)
    with Running(one, broker.address), KafkaClient(one.name, broker.settings) as client:
        for account in (ACCOUNT, hit):
            assert client.send(one.deposit(account), timeout=SECONDS).version == 1
    producer.produce(one.state, value, hit.encode(), HOME)
    assert producer.flush(SECONDS) == 0
    for version in (2, 3):
        with Running(one, broker.address) as running, KafkaClient(one.name, broker.settings) as client:
            for account in (ACCOUNT, hit):
                assert client.send(one.deposit(account), timeout=SECONDS).version == version
            assert bool(running.told("foreign state")) == (version == 2)
