from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from leftfold.kafka.settings import KafkaSettings
from tests.domains.trade import PATIENCE, Confirmed, Dropped, Pay, Place, Released, Reserved
from tests.process.trading import Trading

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def trading(settings: KafkaSettings) -> Iterator[Trading]:
    with Trading(settings) as trading:
        yield trading


def test_what_happened_in_one_service_leads_to_commands_in_others(trading: Trading) -> None:
    now = datetime.now(UTC)
    trading.client.send(Place(order="paid", product="a", at=now), timeout=240.0)
    trading.await_event("stock", Reserved(product="a", order="paid"))
    trading.client.send(Pay(order="paid"), timeout=240.0)
    trading.await_event("orders", Confirmed(order="paid"))


def test_a_rejection_comes_back_and_is_compensated(trading: Trading) -> None:
    now = datetime.now(UTC)
    for order in ("one", "two", "three"):
        trading.client.send(Place(order=order, product="b", at=now), timeout=240.0)
        if order != "three":  # which must not overtake the others on its way to the stock
            trading.await_event("stock", Reserved(product="b", order=order))
    trading.await_event("orders", Dropped(order="three", why="no b left"))


def test_a_timer_fires_by_the_time_of_the_log(trading: Trading) -> None:
    placed = datetime.now(UTC) - PATIENCE + timedelta(seconds=2)
    trading.client.send(Place(order="late", product="c", at=placed), timeout=240.0)
    trading.await_event("stock", Reserved(product="c", order="late"))
    trading.await_event("orders", Dropped(order="late", why="not paid in time"))
    assert datetime.now(UTC) >= placed + PATIENCE
    trading.await_event("stock", Released(product="c", order="late"))
