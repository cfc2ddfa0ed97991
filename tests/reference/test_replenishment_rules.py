"""When shelves are filled, that nothing is ordered twice, and that each order comes."""

from __future__ import annotations

from datetime import UTC, datetime

from events.inventory import StockOrdered, StockReceived, StockReserved
from leftfold import Timer
from leftfold.testing import check_redelivery, given
from services.inventory.commands import OrderStock, Receive
from services.replenishment.process import replenishment
from services.replenishment.supplier import DELIVERY, supplier

AT = datetime(2017, 3, 1, 12, tzinfo=UTC)


def taken(quantity: int, left: int) -> StockReserved:
    """A checkout took some."""
    return StockReserved(stock_id="s/milk", at=AT, checkout_id="b/1", quantity=quantity, left=left)


def order(quantity: int) -> OrderStock:
    """What is ordered."""
    return OrderStock(stock_id="s/milk", at=AT, quantity=quantity)


ordered = StockOrdered(stock_id="s/milk", at=AT, quantity=12)
received = StockReceived(stock_id="s/milk", at=AT, quantity=12)


def test_little_is_less_than_three_or_than_what_was_just_taken() -> None:
    given(replenishment).when(taken(1, left=3)).then_nothing()
    given(replenishment).when(taken(1, left=2)).then(order(12))
    given(replenishment).when(taken(2000, left=1999)).then(order(8000))


def test_nothing_is_ordered_while_an_order_is_under_way() -> None:
    given(replenishment, taken(1, left=2)).when(taken(1, left=1)).then_nothing()
    given(replenishment, taken(1, left=2), ordered).when(taken(1, left=1)).then_nothing()
    given(replenishment, ordered).when(taken(1, left=1)).then_nothing()


def test_what_came_may_run_out_again() -> None:
    given(replenishment, taken(1, left=2), ordered, received).when(taken(1, left=2)).then(order(12))


def test_what_is_delivered_again_orders_nothing() -> None:
    check_redelivery(replenishment, [taken(1, left=2), ordered, received, taken(1, left=0)])


def delivery(number: int, quantity: int = 12) -> Timer[Receive]:
    """What comes a day later."""
    at = AT + DELIVERY
    return Timer(name=f"order-{number}", at=at, command=Receive(stock_id="s/milk", at=at, quantity=quantity))


def test_each_order_comes_a_day_later() -> None:
    given(supplier).when(ordered).then(delivery(1))
    given(supplier, ordered).when(ordered).then(delivery(2))
    check_redelivery(supplier, [ordered, ordered])
