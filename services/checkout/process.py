"""The checkout as a saga: reserve, redeem, authorise, capture, and then pay and ship; or give everything back.

One instance for each checkout of a basket. `evolve` says which stage follows, and `react` what is sent on entering it.
A checkout ends where its money does: taken once or never. So its deadline is a `Void`, whatever it waits for then, and
so is what follows when a client or an operator reopens its basket. Nothing leaves the store before the basket is paid.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from events.baskets import BasketCheckedOut, BasketPaid, BasketReopened, checkout_id
from events.inventory import StockReserved, stock_id
from events.loyalty import PointsRedeemed
from events.payments import Method, PaymentAuthorised, PaymentCaptured, PaymentVoided
from leftfold import Cancel, Finished, Process, Rejected, Timer
from services.baskets.commands import ConfirmPayment, ReopenBasket
from services.checkout.progress import OPEN, Input, Progress, Stage, evolve
from services.inventory.commands import Release, Reserve, Ship
from services.loyalty.commands import EarnPoints, GiveBackPoints, RedeemPoints
from services.payments.commands import Authorise, Capture, Refund, Void

__all__ = ["PATIENCE", "Effect", "Sends", "checkout", "correlate", "react"]

PATIENCE = timedelta(minutes=15)
"""How long all services and a bank have to come to an end; the household stands at the register."""

_LAST = datetime.max.replace(tzinfo=UTC) - PATIENCE
"""The last time with a deadline behind it: clients write the year 9999 for times that they do not know."""

Sends: TypeAlias = (
    Reserve
    | Release
    | Ship
    | RedeemPoints
    | GiveBackPoints
    | EarnPoints
    | Authorise
    | Capture
    | Void
    | Refund
    | ConfirmPayment
    | ReopenBasket
)
Effect: TypeAlias = Sends | Timer[Sends] | Cancel | Finished


def correlate(given: Input) -> str | None:
    """The checkout that an event belongs to; receipts that were paid at the register belong to none."""
    match given:
        case BasketCheckedOut(method=Method.AT_REGISTER) | Rejected():
            return None
        case BasketCheckedOut() | BasketPaid() | BasketReopened():
            return checkout_id(given.basket_id, given.attempt)
        case StockReserved() | PointsRedeemed():
            return given.checkout_id
        case PaymentAuthorised() | PaymentCaptured() | PaymentVoided():
            return given.payment_id


def react(given: Input, state: Progress) -> Sequence[Effect]:
    """The next step; where the stage stays, as behind an answer that comes too late, there is none."""
    after = evolve(state, given)
    first: list[Effect] = []
    if isinstance(given, BasketCheckedOut) and after.stage is not Stage.UNDOING:
        first = _begin(given)
    elif isinstance(given, BasketReopened) and after.stage in OPEN:
        first = [_void(after, given)]
    if after.stage is state.stage:
        return first
    return [*first, *_enter(after, given.command.at if isinstance(given, Rejected) else given.at)]


checkout = Process(
    "checkout",
    inputs=Input,
    sends=Sends,
    state=Progress,
    initial_state=Progress(),
    correlate=correlate,
    react=react,
    evolve=evolve,
    version=2,
)


def _begin(receipt: BasketCheckedOut) -> list[Effect]:
    """The deadline, and one command for each line that has units; one without is a correction or a coupon alone."""
    name, late = checkout_id(receipt.basket_id, receipt.attempt), min(receipt.at, _LAST) + PATIENCE
    void = Void(payment_id=name, at=late, household_id=receipt.household_id, reason="not paid in time")
    reserve = [
        Reserve(
            stock_id=stock_id(receipt.store_id, line.product_id),
            at=receipt.at,
            checkout_id=name,
            quantity=line.quantity,
        )
        for line in receipt.lines
        if line.quantity
    ]
    return [Timer(name="deadline", at=late, command=void), *reserve]


def _void(state: Progress, reopened: BasketReopened) -> Void:
    """What has payments say whether there is money for a basket that a client or an operator has reopened."""
    name, household = state.checkout_id, state.household_id
    return Void(payment_id=name, at=reopened.at, household_id=household, reason=reopened.reason)


def _enter(after: Progress, at: datetime) -> list[Effect]:
    """What is sent on entering a stage."""
    name, household = after.checkout_id, after.household_id
    match after.stage:
        case Stage.NEW | Stage.VOID | Stage.RESERVING:
            return []
        case Stage.REDEEMING:
            return [RedeemPoints(household_id=household, at=at, checkout_id=name, points=after.points)]
        case Stage.AUTHORISING:
            return [Authorise(payment_id=name, at=at, household_id=household, amount=after.due, method=after.method)]
        case Stage.CAPTURING:
            return [Capture(payment_id=name, at=at)]
        case Stage.SETTLING:
            return [Cancel("deadline"), _confirm(after, at)]
        case Stage.PAID:
            return [*_settle(after, at), Finished()]
        case Stage.UNDOING:
            return [Cancel("deadline"), *_undo(after, at)]
        case Stage.OVER:
            return [Finished()]


def _settle(after: Progress, at: datetime) -> list[Effect]:
    """What is paid is owed: this waits for its services as long as it takes."""
    name = after.checkout_id
    return [
        *(Ship(stock_id=stock, at=at, checkout_id=name) for stock in after.reserved),
        EarnPoints(household_id=after.household_id, at=at, checkout_id=name, amount=after.due),
    ]


def _confirm(after: Progress, at: datetime) -> ConfirmPayment:
    """The last that may be refused."""
    return ConfirmPayment(
        basket_id=after.basket_id,
        at=at,
        attempt=after.attempt,
        payment_id=after.checkout_id,
        amount=after.due,
    )


def _undo(after: Progress, at: datetime) -> list[Effect]:
    """Gives back; commands for one key are decided as they were sent, so what is still under way comes before this."""
    name = after.checkout_id
    back: list[Effect] = [Release(stock_id=stock, at=at, checkout_id=name) for stock in after.reserved]
    if after.redeemed:
        back.append(GiveBackPoints(household_id=after.household_id, at=at, checkout_id=name))
    if after.captured:
        back.append(Refund(payment_id=name, at=at, reason=after.why))
    if after.paid or after.reopened:
        return [*back, Finished()]
    return [*back, ReopenBasket(basket_id=after.basket_id, at=at, attempt=after.attempt, reason=after.why)]
