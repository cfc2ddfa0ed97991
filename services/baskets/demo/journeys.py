"""Two baskets through all services: one is paid, the payment of the other is declined and everything given back."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

from events.inventory import stock_id
from events.payments import Method
from leftfold import Command, Connection, InfrastructureError, LeftfoldError, OutcomeUnknown
from leftfold.runtime.operations.traces import traced
from projections.order_journey import OrderJourney, What, order_journey
from services.baskets.commands import AddItem, ApplyCoupon, CheckOut, OpenBasket
from services.baskets.demo.fleet import LEFTFOLD, Fleet
from services.baskets.demo.picture import write_picture
from services.baskets.demo.telling import say
from services.inventory.commands import Receive

__all__ = ["PAID", "journeys", "other_services"]

SERVICES = tuple(
    f"services.{name}.app:app" for name in ("payments", "loyalty", "inventory", "checkout", "replenishment")
)
STORE, HOUSEHOLD = "367", "900"
PRICES = {"1082185": Decimal("1.29"), "6534178": Decimal("160.00")}
PAID, DECLINED = "tonight-1", "tonight-2"
BASKETS = {PAID: (("1082185",), Method.CARD), DECLINED: (("1082185", "6534178"), Method.CHECK)}


@contextmanager
def other_services(logs: Path) -> Iterator[None]:
    """The other services at work, each an App of its own; their routers first read all that has happened so far."""
    say(f"The other services start: leftfold run {' '.join(f'--app {name}' for name in SERVICES)}")
    with Fleet(logs / "services.log", *SERVICES):
        yield


def journeys(lf: Connection, pictures: Path) -> list[str]:
    """Buys two baskets, prints and draws what followed; returns what went wrong."""
    say("\nTwo baskets go through all services: one is paid by card, the other by a check that is too much.")
    for number, command in enumerate(_shopping(datetime.now(UTC))):
        _send(lf, command, f"CheckOut-{command.basket_id}" if isinstance(command, CheckOut) else f"shopping-{number}")
    rows = {basket: _ended(lf, basket) for basket in BASKETS}
    return [wrong for basket, row in rows.items() for wrong in _print_journey(basket, row, pictures)]


def _shopping(at: datetime) -> list[Command]:
    found: list[Command] = [Receive(stock_id=stock_id(STORE, product), at=at, quantity=4) for product in PRICES]
    for basket, (products, method) in BASKETS.items():
        found += [
            OpenBasket(basket_id=basket, at=at, household_id=HOUSEHOLD, store_id=STORE),
            *(
                AddItem(basket_id=basket, at=at, product_id=product, quantity=2, sales_value=PRICES[product])
                for product in products
            ),
            ApplyCoupon(basket_id=basket, at=at, product_id=products[0], coupon_disc=Decimal("0.30")),
            CheckOut(basket_id=basket, at=at, method=method),
        ]
    return found


def _send(lf: Connection, command: Command, id_: str) -> None:
    """Sends a command, as soon as its service has its topics and a worker."""
    deadline = time.monotonic() + 60
    while True:
        try:
            lf.client.send(command, id=id_)
            return
        except (InfrastructureError, OutcomeUnknown):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _ended(lf: Connection, basket: str) -> OrderJourney:
    """The journey of a basket, once it has come to an end or will not in time."""
    deadline, row = time.monotonic() + 120, None
    while time.monotonic() < deadline:
        try:
            row = lf.views[order_journey].get(basket)
        except LeftfoldError:
            row = None  # its projector has just begun
        if row is not None and row.last.what in (What.PAID, What.REOPENED):
            return row
        time.sleep(0.2)
    return row or OrderJourney()


def _print_journey(basket: str, row: OrderJourney, pictures: Path) -> list[str]:
    """Prints and draws a journey; what is wrong with it."""
    steps = {step.what: step for step in row.steps}
    say(f"\nBasket {basket} by views[order_journey]: " + ", ".join(step.what.value for step in row.steps) + ".")
    if What.REOPENED in steps:
        say(f"It was reopened: {steps[What.REOPENED].why}")
    id_, wrong = f"CheckOut-{basket}", list[str]()
    say(f"leftfold log trace {id_}")
    if subprocess.run([*LEFTFOLD, "log", "trace", id_, "--since", "10m"], check=False).returncode == 0:
        write_picture(pictures / f"{id_}.svg", traced(id_, datetime.now(UTC) - timedelta(minutes=10), None), id_)
    else:
        wrong.append(f"{basket} cannot be traced")
    if basket == PAID and (What.PAID not in steps or steps[What.PAID].amount != steps[What.CHECKED_OUT].amount):
        wrong.append(f"{basket} is not paid as it should be: {row}")
    if basket == DECLINED and (What.REOPENED not in steps or steps[What.RELEASED].times != steps[What.RESERVED].times):
        wrong.append(f"{basket} was not given back as it should be: {row}")
    return wrong
