"""A command that the network held back until its sender had given up is refused, and its repeat decided once."""

from __future__ import annotations

import pytest

from leftfold.errors import OutcomeUnknown
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.messages import Command
from tests.waiting import wait_until
from tests.worker.broker import SECONDS, Broker
from tests.worker.proxy import Api, Proxy
from tests.worker.running import Running

pytestmark = pytest.mark.servers


def test_an_original_that_arrives_behind_its_deadline_is_refused(broker: Broker, proxy: Proxy) -> None:
    bank = broker.bank()
    command, behind = bank.deposit("account"), KafkaSettings(bootstrap_servers=broker.proxied)
    with Running(bank, broker.address) as running:
        with KafkaClient(bank.name, behind, delivery=1.0) as client:
            held = proxy.fault(Api.PRODUCE, "hold request")
            with pytest.raises(OutcomeUnknown):
                client.send(command, id="pay-1", timeout=SECONDS)
            held.release()
            wait_until(lambda: running.worker.counts["late"] == 1, lambda: f"{running.worker.counts}")
            wait_until(lambda: _repeated(client, command) == 1, "the repeat")
        assert running.worker.counts["late"] == running.worker.counts["accepted"] == 1
    assert len(broker.settled(names.events(bank.name))) == 1


def _repeated(client: KafkaClient, command: Command) -> int:
    """The version that the repeat has written; 0 when it meets the answer to the original, which has its id."""
    try:
        return client.send(command, id="pay-1", timeout=SECONDS).version
    except OutcomeUnknown:
        return 0
