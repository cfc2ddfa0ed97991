"""The whole chain as one App, for worlds in which everybody meets, and shopping in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from events.inventory import stock_id
from events.payments import Method
from leftfold import App, World
from services.baskets.app import app as baskets
from services.baskets.commands import AddItem, ApplyCoupon, BasketCommand, CheckOut, OpenBasket
from services.checkout.app import app as checkout
from services.inventory.app import app as inventory
from services.inventory.commands import Receive
from services.loyalty.app import app as loyalty
from services.payments.app import app as payments
from services.replenishment.app import app as replenishment

__all__ = ["AT", "apps", "chain", "chain_with", "of", "shop", "stock"]

AT = datetime(2017, 3, 1, 12, tzinfo=UTC)
apps = (baskets, payments, loyalty, inventory, checkout, replenishment)


def chain_with(partitions: int = 4, **other: Any) -> App:
    """All services in one App, in which something may be different."""
    parts: dict[str, Any] = {
        "deciders": [decider for app in apps for decider in app.deciders],
        "processes": [process for app in apps for process in app.processes],
        "views": [view for app in apps for view in app.views],
    }
    return App("chain", partitions=partitions, **{**parts, **other})


chain = chain_with()


def stock(*products: str, units: int = 10, at: datetime = AT, store: str = "s") -> Iterator[Receive]:
    """Fills the shelves of a store with some products."""
    for product in products:
        yield Receive(stock_id=stock_id(store, product), at=at, quantity=units)


def shop(
    basket: str,
    *products: str,
    price: str = "5.00",
    coupon: str = "",
    method: Method = Method.CARD,
    points: int = 0,
    at: datetime = AT,
    household: str = "h",
    store: str = "s",
) -> Sequence[BasketCommand]:
    """A household takes two units of some products in a store and checks them out; a coupon is for the first."""
    items = [
        AddItem(basket_id=basket, at=at, product_id=product, quantity=2, sales_value=Decimal(price))
        for product in products
    ]
    coupons = [
        ApplyCoupon(basket_id=basket, at=at, product_id=product, coupon_disc=Decimal(coupon))
        for product in products[:1]
        if coupon
    ]
    opened = OpenBasket(basket_id=basket, at=at, household_id=household, store_id=store)
    return [opened, *items, *coupons, CheckOut(basket_id=basket, at=at, method=method, points=points)]


def of(world: World, category: str, *kinds: type) -> list[Any]:
    """The events of a category, or only those of some kinds, partition by partition."""
    found = [recorded.event for recorded in world.events(category)]
    return [event for event in found if isinstance(event, kinds)] if kinds else found
