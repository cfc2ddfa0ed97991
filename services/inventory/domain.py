"""The rules of a product's stock in a store: a unit is free, kept for one checkout, or shipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from events.inventory import (
    StockEvent,
    StockOrdered,
    StockReceived,
    StockReleased,
    StockReserved,
    StockShipped,
)
from leftfold import Decider
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

__all__ = ["Stock", "decide", "evolve", "inventory"]


@dataclass(frozen=True)
class Stock:
    """What the rules must remember of a stock: free units, and those kept for each checkout."""

    free: int = 0
    reserved: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def on_hand(self) -> int:
        """Every unit in the store."""
        return self.free + sum(self.reserved.values())


def decide(command: StockCommand, state: Stock) -> Sequence[StockEvent]:
    """What happens when this is asked of a stock in this state.

    Raises:
        DomainError: a rule says no; each command lists its own in `rejects`.
    """
    match command:
        case OrderStock():
            return [StockOrdered(stock_id=command.stock_id, at=command.at, quantity=_units(command))]
        case Receive():
            return [StockReceived(stock_id=command.stock_id, at=command.at, quantity=_units(command))]
        case Reserve():
            return [_reserve(command, state)]
        case Release():
            released: StockEvent = StockReleased(
                stock_id=command.stock_id,
                at=command.at,
                quantity=_kept(command, state),
                checkout_id=command.checkout_id,
            )
            return [released]
        case Ship():
            shipped: StockEvent = StockShipped(
                stock_id=command.stock_id,
                at=command.at,
                quantity=_kept(command, state),
                checkout_id=command.checkout_id,
            )
            return [shipped]


def evolve(state: Stock, event: StockEvent) -> Stock:
    """What a stock is after one more event."""
    match event:
        case StockOrdered():
            return state
        case StockReceived():
            return replace(state, free=state.free + event.quantity)
        case StockReserved():
            return Stock(state.free - event.quantity, {**state.reserved, event.checkout_id: event.quantity})
        case StockReleased():
            return Stock(state.free + event.quantity, _without(state, event.checkout_id))
        case StockShipped():
            return Stock(state.free, _without(state, event.checkout_id))


inventory = Decider(
    "inventory",
    commands=StockCommand,
    events=StockEvent,
    state=Stock,
    initial_state=Stock(),
    decide=decide,
    evolve=evolve,
)


def _units(command: OrderStock | Receive | Reserve) -> int:
    if command.quantity < 1:
        raise NoUnits(stock_id=command.stock_id, quantity=command.quantity)
    return command.quantity


def _reserve(command: Reserve, stock: Stock) -> StockReserved:
    quantity = _units(command)
    if command.checkout_id in stock.reserved:
        raise AlreadyReserved(stock_id=command.stock_id, checkout_id=command.checkout_id)
    if quantity > stock.free:
        raise OutOfStock(stock_id=command.stock_id, wanted=quantity, left=stock.free)
    return StockReserved(
        stock_id=command.stock_id,
        at=command.at,
        quantity=quantity,
        checkout_id=command.checkout_id,
        left=stock.free - quantity,
    )


def _kept(command: Release | Ship, stock: Stock) -> int:
    if command.checkout_id not in stock.reserved:
        raise NotReserved(stock_id=command.stock_id, checkout_id=command.checkout_id)
    return stock.reserved[command.checkout_id]


def _without(stock: Stock, checkout_id: str) -> Mapping[str, int]:
    return {kept_for: units for kept_for, units in stock.reserved.items() if kept_for != checkout_id}
