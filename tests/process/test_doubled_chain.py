"""All that a checkout hears is told twice, while baskets are bought: at the end all services agree."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from tests.process.child import Child
from tests.process.children import StartChild
from tests.process.effects import routed, sent, twice
from tests.process.shopping import Log, Shopping
from tests.process.shopping import send as ask
from tests.process.test_killed_chain import running, settle
from tests.reference.chain import chain
from tests.reference.sums import disagreements
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]


@pytest.mark.parametrize("recognised", [True, False])
def test_the_services_agree_though_everything_is_routed_twice(
    recognised: bool, tmp_path: Path, start: StartChild
) -> None:
    """In the twin neither the checkout nor any service recognises what was there before: commands are sent again."""
    module = "tests.reference.chain" if recognised else "tests.reference.forgetful"
    shopping = Shopping.of(baskets=40, patience=timedelta(seconds=30))
    with running(chain, module, tmp_path) as (_, servers):
        settings = KafkaSettings(bootstrap_servers=servers.kafka)
        other = start(Child(servers.kafka, "checkout.router", f"{module}:chain", group=".second"))
        wait_until(lambda: bool(other.told("routing")), lambda: f"{other}")
        with KafkaClient("chain", settings) as client, closing(Log(chain, settings)) as log:
            ask(client, [(f"stock-{n}", one) for n, one in enumerate(shopping.deliveries)])
            ask(client, shopping.commands)
            settle(log, client, shopping.checkouts)
            wait_until(lambda: len(twice(routed(settings))) > 200, lambda: f"events twice: {other}")
            if recognised:
                wait_until(lambda: not disagreements(log.look()), lambda: f"{disagreements(log.events)[:9]}")
            assert (twice(sent(settings, chain)) == {}) is recognised
            assert other.code is None, str(other)
