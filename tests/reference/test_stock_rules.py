"""What a stock lets happen, rule by rule; and nothing of it ever gets lost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given as supposing
from hypothesis import strategies as st

from events.inventory import StockOrdered, StockReceived, StockReleased, StockReserved, StockShipped, stock_id
from leftfold import DomainError
from leftfold.testing import check_deciding_twice, given
from services.inventory.commands import (
    AlreadyReserved,
    NotReserved,
    NoUnits,
    OrderStock,
    OutOfStock,
    Receive,
    Release,
    Reserve,
    Ship,
    StockCommand,
)
from services.inventory.domain import inventory

AT = datetime(2017, 3, 1, 12, tzinfo=UTC)
KEY = stock_id("s", "milk")

ten = StockReceived(stock_id=KEY, at=AT, quantity=10)
for_one = StockReserved(stock_id=KEY, at=AT, checkout_id="b/1", quantity=7, left=3)


def reserve(checkout: str = "b/1", units: int = 7) -> Reserve:
    """Asks for some units."""
    return Reserve(stock_id=KEY, at=AT, checkout_id=checkout, quantity=units)


def test_what_is_there_can_be_reserved() -> None:
    given(inventory, ten).when(reserve()).then(for_one)
    given(inventory, ten, for_one).when(reserve("c/1", 3)).then(
        StockReserved(stock_id=KEY, at=AT, checkout_id="c/1", quantity=3, left=0)
    )


def test_what_is_kept_for_others_cannot_be_reserved() -> None:
    given(inventory, ten, for_one).when(reserve("c/1", 4)).then_rejected(OutOfStock(stock_id=KEY, wanted=4, left=3))
    given(inventory).when(reserve()).then_rejected(OutOfStock(stock_id=KEY, wanted=7, left=0))


def test_a_checkout_reserves_a_product_once() -> None:
    given(inventory, ten, for_one).when(reserve(units=1)).then_rejected(
        AlreadyReserved(stock_id=KEY, checkout_id="b/1")
    )


def test_what_is_released_can_be_reserved_again() -> None:
    released = StockReleased(stock_id=KEY, at=AT, checkout_id="b/1", quantity=7)
    given(inventory, ten, for_one).when(Release(stock_id=KEY, at=AT, checkout_id="b/1")).then(released)
    given(inventory, ten, for_one, released).when(reserve("b/1", 10)).then(
        StockReserved(stock_id=KEY, at=AT, checkout_id="b/1", quantity=10, left=0)
    )


def test_what_is_shipped_is_gone() -> None:
    shipped = StockShipped(stock_id=KEY, at=AT, checkout_id="b/1", quantity=7)
    given(inventory, ten, for_one).when(Ship(stock_id=KEY, at=AT, checkout_id="b/1")).then(shipped)
    given(inventory, ten, for_one, shipped).when(reserve("c/1", 4)).then_rejected(
        OutOfStock(stock_id=KEY, wanted=4, left=3)
    )


@pytest.mark.parametrize("command", [Release, Ship])
def test_only_what_is_reserved_is_released_or_shipped(command: type[Release | Ship]) -> None:
    asked = command(stock_id=KEY, at=AT, checkout_id="c/1")
    given(inventory, ten, for_one).when(asked).then_rejected(NotReserved(stock_id=KEY, checkout_id="c/1"))


@pytest.mark.parametrize("command", [OrderStock, Receive])
def test_what_is_ordered_or_received_is_something(command: Any) -> None:
    given(inventory).when(command(stock_id=KEY, at=AT, quantity=0)).then_rejected(NoUnits(stock_id=KEY, quantity=0))
    given(inventory).when(reserve(units=-1)).then_rejected(NoUnits(stock_id=KEY, quantity=-1))


def test_an_order_is_no_delivery() -> None:
    ordered = StockOrdered(stock_id=KEY, at=AT, quantity=5)
    given(inventory).when(OrderStock(stock_id=KEY, at=AT, quantity=5)).then(ordered)
    given(inventory, ordered).when(reserve(units=1)).then_rejected(OutOfStock(stock_id=KEY, wanted=1, left=0))


CHECKOUTS, UNITS = st.sampled_from(["a/1", "b/1", "c/1"]), st.integers(1, 9)
COMMANDS = st.one_of(
    st.builds(Receive, stock_id=st.just(KEY), at=st.just(AT), quantity=UNITS),
    st.builds(Reserve, stock_id=st.just(KEY), at=st.just(AT), checkout_id=CHECKOUTS, quantity=UNITS),
    st.builds(Release, stock_id=st.just(KEY), at=st.just(AT), checkout_id=CHECKOUTS),
    st.builds(Ship, stock_id=st.just(KEY), at=st.just(AT), checkout_id=CHECKOUTS),
)


@supposing(st.lists(COMMANDS, max_size=30))
def test_what_came_in_is_there_or_was_shipped(commands: list[StockCommand]) -> None:
    state, received, shipped = inventory.initial_state, 0, 0
    for command in commands:
        try:
            events = inventory.decide(command, state)
        except DomainError:
            continue
        state = inventory.fold(state, events)
        received += sum(event.quantity for event in events if isinstance(event, StockReceived))
        shipped += sum(event.quantity for event in events if isinstance(event, StockShipped))
        assert state.free >= 0
        assert received == state.on_hand + shipped
    check_deciding_twice(inventory, commands)
