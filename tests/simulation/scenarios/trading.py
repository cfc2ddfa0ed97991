"""The scenario of process managers: orders that are paid, that are not paid in time, and of which there are too few."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from leftfold.model.app import App
from leftfold.model.messages import Command
from leftfold.testing.simulation.kafka.brokers import BORN
from leftfold.testing.simulation.schedules import Scenario
from tests.domains.trade import PATIENCE, Confirmed, Dropped, Pay, Place, Placed, Released, Reserved, app

__all__ = ["LIVING", "SENT", "TRADE", "UNSENT"]

_ORDERS, _PRODUCTS = 5, 3
_PAID = 0.6


def _load(chance: random.Random, orders: int = _ORDERS) -> Sequence[Sequence[Command]]:
    """One client places orders, whose patience ends within seconds; another one pays some of them."""
    places, pays = [], []
    for number in range(orders):
        at = datetime.fromtimestamp(BORN, UTC) - PATIENCE + timedelta(seconds=chance.random() * 10)
        places.append(Place(order=f"o{number}", product=f"p{chance.randrange(_PRODUCTS)}", at=at))
        if chance.random() < _PAID:
            pays.append(Pay(order=f"o{number}"))
    return [places, pays]


def _check(streams: Mapping[str, Sequence[Any]]) -> Iterable[str]:
    """An order ends, for one reason once, and a product is reserved once for an order at most."""
    for key, events in streams.items():
        ends = Counter(str(event) for event in events if isinstance(event, Confirmed | Dropped))
        if any(isinstance(event, Placed) for event in events) and sum(ends.values()) == 0:
            yield f"unended: order {key}"
        yield from (f"ended twice: order {key}: {end}" for end, count in ends.items() if count > 1)
        held = Counter(event.order for event in events if isinstance(event, Reserved))
        held.subtract(event.order for event in events if isinstance(event, Released))
        yield from (f"held {count} times: {key} for {order}" for order, count in held.items() if count not in (0, 1))


def _trade(partitions: int) -> App:
    return App("trade", partitions=partitions, deciders=app.deciders, processes=app.processes)


TRADE = Scenario(_trade(2), _load, workers=2, check=_check)
UNSENT = replace(TRADE, kinds=("unsent", "unsent", "unsent", "terminate"))
"""Routers that are killed before what they have written leaves them."""
SENT = Scenario(
    _trade(1),
    partial(_load, orders=12),
    workers=2,
    check=_check,
    kinds=("kill both", "kill both", "kill coordinator", "kill coordinator", "terminate", "stop"),
)
"""Brokers that forget transactions of process managers, whose commands lie in the topics of others."""
LIVING = replace(SENT, kinds=("kill coordinator", "kill coordinator", "kill coordinator", "kill coordinator", "stop"))
"""The same, where the process manager lives on."""
