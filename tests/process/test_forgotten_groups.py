"""Brokers forget what a group has committed when it is not used for a week: nothing is done again, and nothing lost."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from confluent_kafka.admin import AdminClient

from leftfold.engine.processing.process_reactor import Reactor
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.state_restore import Restoration
from leftfold.model import keys as names
from tests.domains.trade import Confirmed, Pay, Place, Reserved, app
from tests.process.trading import Trading, happened, raised, routed, sent, twice
from tests.settled import committed
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.faults]


def forget_groups(settings: KafkaSettings) -> None:
    """Has the broker forget the groups of the process's routers and workers."""
    admin = AdminClient(settings.librdkafka())
    groups = [names.group(app.name, of) for of in ("checkout", "checkout.router")]
    for future in admin.delete_consumer_groups(groups).values():
        future.result(240.0)


def buy(trading: Trading, order: str) -> None:
    trading.client.send(Place(order=order, product=order, at=datetime.now(UTC)), timeout=240.0)
    trading.client.send(Pay(order=order), timeout=240.0)
    trading.await_event("orders", Confirmed(order=order))


@pytest.mark.parametrize("remembers", [True, False])
def test_routers_whose_group_is_forgotten_route_everything_again_and_nothing_happens_twice(
    settings: KafkaSettings, remembers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes while no router works is routed as well. The twin does not remember origins."""
    bought, waiting, missed, later = (f"{what}-{remembers}" for what in ("bought", "waiting", "missed", "later"))
    if not remembers:
        monkeypatch.setattr(Reactor, "see", lambda self, instance, given: None)
    with Trading(settings) as trading:
        buy(trading, bought)
        trading.client.send(Place(order=waiting, product=waiting, at=datetime.now(UTC)), timeout=240.0)
        trading.await_event("stock", Reserved(product=waiting, order=waiting))
    with Trading(settings, parts=("orders", "stock", "payments")) as trading:
        trading.client.send(Place(order=missed, product=missed, at=datetime.now(UTC)), timeout=240.0)
        trading.client.send(Pay(order=missed), timeout=240.0)
    before = sum(routed(settings).values())
    forget_groups(settings)
    with Trading(settings) as trading:
        trading.await_event("orders", Confirmed(order=missed))
        buy(trading, later)
        wait_until(lambda: sum(routed(settings).values()) >= 2 * before, "everything to be routed again")
        if not remembers:
            wait_until(lambda: bool(twice(sent(settings))), "a command to be sent again")
    if remembers:
        assert twice(routed(settings)), "the group was not forgotten"
        assert twice(sent(settings)) == {}
        assert twice(happened(settings)) == {}


@pytest.mark.parametrize("looks", [True, False])
def test_a_raised_version_whose_group_is_forgotten_sends_nothing_again(
    settings: KafkaSettings, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far the inputs are taken stands in the states of the version before, too; the twin does not look there."""
    if not looks:
        monkeypatch.setattr(Restoration, "_taken", lambda self, partition: 0)
    order, newer = f"raised-{looks}", raised(2 if looks else 3)
    with Trading(settings) as trading:
        buy(trading, order)
    before = sent(settings)
    forget_groups(settings)
    ensure(newer, settings)
    with Trading(settings, newer) as trading:
        buy(trading, f"{order}-later")
        taken = {r.partition for r in committed(settings, names.state("checkout", newer.processes[0].version))}
    again = [id_ for id_ in before if sent(settings)[id_] > before[id_]]
    assert taken
    assert bool(again) is not looks
