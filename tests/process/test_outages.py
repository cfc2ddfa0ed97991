"""Services of the chain that are away while a basket is checked out, and come back behind its deadline."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from events.baskets import BasketPaid, BasketReopened
from events.inventory import StockReserved
from leftfold import App, Event
from leftfold.kafka import process_router as clock
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.runtime.operations.timers import time_of
from services.baskets.commands import ReopenBasket
from services.checkout.process import PATIENCE, checkout
from services.loyalty.commands import EarnPoints
from tests.process.trading import Trading
from tests.reference import careless
from tests.reference.chain import chain_with, shop, stock
from tests.reference.sums import disagreements
from tests.waiting import wait_until

pytestmark = [pytest.mark.servers, pytest.mark.slow, pytest.mark.faults]

SERVICES = ("baskets", "payments", "loyalty", "inventory")
SOON = timedelta(seconds=10)
chain = chain_with(processes=[checkout])


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers that have just begun do not wait a minute for an event that tells the time."""
    monkeypatch.setattr(clock, "SILENCE", timedelta(seconds=2))


class Outage:
    """A store, a household and a basket of one name, whose checkout meets services that are down."""

    def __init__(self, settings: KafkaSettings, app: App, name: str, down: Sequence[str]) -> None:
        ensure(app, settings)
        self.settings, self.name, self._app, self._down = settings, name, app, down
        self.up = Trading(settings, app, parts=(*(s for s in SERVICES if s not in down), "checkout", "router"))
        self.due = datetime.now(UTC)

    def others(self) -> Trading:
        """The services that are down, at work while the block runs."""
        return Trading(self.settings, self._app, parts=tuple(self._down))

    def shop(self) -> None:
        """Fills shelves and account; then, without who is down, a basket is checked out whose time is up soon."""
        name, now = self.name, datetime.now(UTC)
        with self.others():
            for delivery in stock("milk", "bread", store=name, at=now):
                self.up.client.send(delivery, timeout=240.0)
            earn = EarnPoints(household_id=name, at=now, checkout_id=f"before-{name}", amount=Decimal("50.00"))
            self.up.client.send(earn, timeout=240.0)
        at = datetime.now(UTC) - PATIENCE + SOON
        self.due = at + PATIENCE
        for command in shop(name, "milk", "bread", points=5, at=at, household=name, store=name):
            self.up.client.send(command, timeout=240.0)

    def events(self) -> dict[str, list[Event]]:
        """What happened to them, by category."""
        return {category: [one for one in self.up.events(category) if self._is_ours(one)] for category in SERVICES}

    def ends(self) -> list[Event]:
        """How the checkout ended."""
        return [event for event in self.events()["baskets"] if isinstance(event, BasketPaid | BasketReopened)]

    def wrong(self) -> list[str]:
        """What does not agree."""
        return disagreements(self.events())

    def log_time(self) -> datetime:
        """What time it is for the checkout."""
        with ClusterAdmin(self.settings) as cluster:
            return time_of(cluster, self.settings, chain, checkout).now or datetime.min.replace(tzinfo=UTC)

    def _is_ours(self, event: Event) -> bool:
        fields: dict[str, Any] = dict(event)
        return not str(fields.get("checkout_id", "")).startswith("before") and any(
            str(fields.get(key, "")).startswith(self.name)
            for key in ("basket_id", "payment_id", "household_id", "stock_id")
        )


@pytest.mark.parametrize(
    "down", [("inventory",), ("loyalty",), ("payments",), ("payments", "loyalty", "inventory")], ids="-".join
)
def test_a_checkout_ends_by_itself_and_what_is_answered_too_late_is_given_back(
    settings: KafkaSettings, down: Sequence[str]
) -> None:
    outage = Outage(settings, chain, "-".join(down), down)
    with outage.up:
        outage.shop()
        if "payments" not in down:
            wait_until(lambda: bool(outage.ends()), lambda: f"the basket to be open again: {outage.events()}")
        else:
            wait_until(lambda: outage.log_time() > outage.due + SOON, "the deadline to be over")
            assert outage.ends() == [], "nobody else knows whether there is money"
        with outage.others():
            wait_until(
                lambda: bool(outage.ends()) and not outage.wrong(),
                lambda: f"all to agree: {outage.wrong()} {outage.events()}",
            )
        (end,) = outage.ends()
    assert isinstance(end, BasketReopened)
    assert (end.reason, end.at) == ("not paid in time", outage.due)
    assert not outage.up.records("checkout.dead")


@pytest.mark.parametrize("app", [chain, careless.credulous], ids=["given back", "twin"])
def test_what_a_basket_that_somebody_reopens_has_asked_for_is_given_back(settings: KafkaSettings, app: App) -> None:
    """The twin takes the reopening for the end of the checkout."""
    outage = Outage(settings, app, "by-hand" if app is chain else "believed", ("payments",))
    undone = ReopenBasket(basket_id=outage.name, at=datetime.now(UTC), attempt=1, reason="by hand")
    with outage.up:
        outage.shop()
        outage.up.client.send(undone, timeout=240.0)
        with outage.others():
            wait_until(lambda: outage.log_time() > outage.due + SOON, "the deadline to be over")
            if app is chain:
                wait_until(lambda: not outage.wrong(), lambda: f"all to agree: {outage.wrong()}")
        (end,) = outage.ends()
    assert isinstance(end, BasketReopened)
    assert end.reason == "by hand"
    assert any("is still reserved" in text for text in outage.wrong()) is (app is not chain)


def test_without_a_deadline_the_basket_waits_as_long_as_the_service_is_down_and_is_paid_when_nobody_waits(
    settings: KafkaSettings,
) -> None:
    outage = Outage(settings, careless.patient, "patient", ("inventory",))
    with outage.up:
        outage.shop()
        wait_until(lambda: outage.log_time() > outage.due + SOON, "the deadline to be over")
        assert outage.ends() == []
        with outage.others():
            wait_until(lambda: bool(outage.ends()), "an end")
        (end,) = outage.ends()
    assert isinstance(end, BasketPaid)


def test_a_checkout_that_gives_back_only_what_was_answered_leaves_the_rest_reserved(settings: KafkaSettings) -> None:
    outage = Outage(settings, careless.hasty, "hasty", ("inventory",))
    with outage.up:
        outage.shop()
        wait_until(lambda: bool(outage.ends()), "the basket to be open again")
        with outage.others():
            for command in stock("milk", "bread", store="hasty", at=datetime.now(UTC)):
                outage.up.client.send(command, timeout=240.0)  # whatever was sent before is decided before
            reserved = [one for one in outage.events()["inventory"] if isinstance(one, StockReserved)]
        assert len(reserved) == 2
    assert sum("is still reserved" in text for text in outage.wrong()) == 2
