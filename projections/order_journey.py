"""What has become of this basket, in every service that had a part in it?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import Enum

from events.baskets import BasketCheckedOut, BasketPaid, BasketReopened, basket_of, checkout_id
from events.inventory import StockReleased, StockReserved, StockShipped
from events.loyalty import PointsEarned, PointsGivenBack, PointsRedeemed
from events.payments import CaptureRequested, PaymentAuthorised, PaymentCaptured, PaymentRefunded, PaymentVoided
from leftfold import FoldView

__all__ = ["JourneyEvent", "OrderJourney", "Step", "What", "basket", "evolve", "order_journey"]

JourneyEvent = (
    BasketCheckedOut
    | StockReserved
    | PointsRedeemed
    | PaymentAuthorised
    | CaptureRequested
    | PaymentCaptured
    | StockShipped
    | PointsEarned
    | BasketPaid
    | PaymentVoided
    | PaymentRefunded
    | StockReleased
    | PointsGivenBack
    | BasketReopened
)


class What(Enum):
    """What may happen on the way, in the order in which it does."""

    CHECKED_OUT = "checked out"
    RESERVED = "stock reserved"
    REDEEMED = "points redeemed"
    AUTHORISED = "payment authorised"
    REQUESTED = "bank asked"
    CAPTURED = "payment captured"
    SHIPPED = "stock shipped"
    EARNED = "points earned"
    PAID = "paid"
    VOIDED = "payment void"
    REFUNDED = "payment refunded"
    RELEASED = "stock released"
    GIVEN_BACK = "points given back"
    REOPENED = "reopened"


_PLACE = {what: place for place, what in enumerate(What)}


@dataclass(frozen=True)
class Step:
    """A step of one checkout: how often (once for each line, in stock), when first, and dollars, points or units."""

    attempt: int
    what: What
    at: datetime
    times: int
    amount: Decimal
    why: str = ""


@dataclass(frozen=True)
class OrderJourney:
    """A basket's checkouts, step by step; whichever service is read first, the steps stand in the same order."""

    steps: tuple[Step, ...] = ()

    @property
    def last(self) -> Step:
        """How far it has come."""
        return self.steps[-1]


def basket(event: JourneyEvent) -> str:
    """The basket that an event of any service is about."""
    return basket_of(_checkout(event))


def evolve(row: OrderJourney | None, event: JourneyEvent) -> OrderJourney:
    """The journey with one more step; events of different services may come in any order."""
    name = _checkout(event)
    what, amount = _step_of(event)
    why = event.reason if isinstance(event, BasketReopened | PaymentVoided | PaymentRefunded) else ""
    step = Step(int(name.rpartition("/")[2]), what, event.at, 1, amount, why)
    others = []
    for known in row.steps if row else ():
        if (known.attempt, known.what) == (step.attempt, what):
            at, amount = min(known.at, step.at), known.amount + amount
            step = replace(step, at=at, times=known.times + 1, amount=amount)
        else:
            others.append(known)
    return OrderJourney(tuple(sorted([*others, step], key=lambda one: (one.attempt, _PLACE[one.what]))))


order_journey = FoldView("order_journey", events=JourneyEvent, row=OrderJourney, key=basket, evolve=evolve)


def _checkout(event: JourneyEvent) -> str:
    match event:
        case BasketCheckedOut() | BasketPaid() | BasketReopened():
            return checkout_id(event.basket_id, event.attempt)
        case PaymentAuthorised() | CaptureRequested() | PaymentCaptured() | PaymentVoided() | PaymentRefunded():
            return event.payment_id
        case StockReserved() | StockShipped() | StockReleased():
            return event.checkout_id
        case PointsRedeemed() | PointsEarned() | PointsGivenBack():
            return event.checkout_id


_WHAT = {
    BasketCheckedOut: What.CHECKED_OUT,
    StockReserved: What.RESERVED,
    PointsRedeemed: What.REDEEMED,
    PaymentAuthorised: What.AUTHORISED,
    CaptureRequested: What.REQUESTED,
    PaymentCaptured: What.CAPTURED,
    StockShipped: What.SHIPPED,
    PointsEarned: What.EARNED,
    BasketPaid: What.PAID,
    PaymentVoided: What.VOIDED,
    PaymentRefunded: What.REFUNDED,
    StockReleased: What.RELEASED,
    PointsGivenBack: What.GIVEN_BACK,
    BasketReopened: What.REOPENED,
}


def _step_of(event: JourneyEvent) -> tuple[What, Decimal]:
    """Which step an event is, and its dollars, points or units."""
    what = _WHAT[type(event)]
    match event:
        case BasketCheckedOut():
            return what, event.due
        case BasketReopened():
            return what, event.total
        case StockReserved() | StockShipped() | StockReleased():
            return what, Decimal(event.quantity)
        case PointsRedeemed() | PointsEarned() | PointsGivenBack():
            return what, Decimal(event.points)
        case PaymentAuthorised() | CaptureRequested() | PaymentCaptured() | PaymentVoided() | PaymentRefunded():
            return what, event.amount
        case BasketPaid():
            return what, event.amount
