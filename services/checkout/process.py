"""The checkout as a saga: reserve, redeem, authorise, capture, and then pay and ship; or give everything back.

One instance for each checkout of a basket. Every step is caused by the one before, so the state only has to count what
was reserved: all of it has to be answered before anything is undone.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

from events.baskets import BasketCheckedOut, BasketPaid, BasketReopened, checkout_id
from events.inventory import StockReserved, stock_id
from events.loyalty import PointsRedeemed
from events.payments import Method, PaymentAuthorised, PaymentCaptured, PaymentVoided
from leftfold import Cancel, Finished, Process, Rejected, Timer
from services.baskets.commands import ConfirmPayment, ReopenBasket
from services.checkout.progress import Input, Progress, evolve
from services.inventory.commands import Release, Reserve, Ship
from services.loyalty.commands import EarnPoints, GiveBackPoints, RedeemPoints
from services.payments.commands import Authorise, Capture, Void

__all__ = ["PATIENCE", "Effect", "Sends", "checkout", "correlate", "react"]

PATIENCE = timedelta(minutes=15)
"""How long a bank has to clear a check; the household stands at the register."""

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
    | ConfirmPayment
    | ReopenBasket
)
Effect: TypeAlias = Sends | Timer[Sends] | Cancel | Finished


def correlate(given: Input) -> str | None:
    """The checkout that an event belongs to; receipts that were paid at the register concern nobody."""
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
    """The next step."""
    after = evolve(state, given)
    match given:
        case BasketCheckedOut():
            return _reserve(given) or _go_on(after, given.at)
        case StockReserved():
            return _go_on(after, given.at)
        case PointsRedeemed():
            return [_authorise(after, given.at)]
        case PaymentAuthorised(payment_id=payment, at=at):
            void = Void(payment_id=payment, at=at + PATIENCE, reason="not captured in time")
            return [Capture(payment_id=payment, at=at), Timer(name="capture", at=at + PATIENCE, command=void)]
        case PaymentCaptured():
            return [Cancel("capture"), *_settle(after, given.at)]
        case PaymentVoided():
            return [Cancel("capture"), *_undo(after, given.at)]
        case BasketPaid() | BasketReopened():
            return [Finished()]
        case Rejected(command=Capture() | Void()):
            return []  # the other of the two was faster, and says so itself
        case Rejected(command=command):
            return _go_on(after, command.at)


checkout = Process(
    "checkout",
    inputs=Input,
    sends=Sends,
    state=Progress,
    initial_state=Progress(),
    correlate=correlate,
    react=react,
    evolve=evolve,
)


def _reserve(receipt: BasketCheckedOut) -> list[Effect]:
    """One command for each line that has units; a line without is a correction or a coupon alone."""
    name = checkout_id(receipt.basket_id, receipt.attempt)
    return [
        Reserve(
            stock_id=stock_id(receipt.store_id, line.product_id),
            at=receipt.at,
            checkout_id=name,
            quantity=line.quantity,
        )
        for line in receipt.lines
        if line.quantity
    ]


def _go_on(after: Progress, at: datetime) -> list[Effect]:
    """What follows when the last line is reserved, or when something was refused and nothing is open any more."""
    if after.unanswered:
        return []
    if after.why:
        return _undo(after, at)
    if not after.points:
        return [_authorise(after, at)]
    redeem = RedeemPoints(household_id=after.household_id, at=at, checkout_id=after.checkout_id, points=after.points)
    return [redeem]


def _authorise(after: Progress, at: datetime) -> Authorise:
    return Authorise(
        payment_id=after.checkout_id, at=at, household_id=after.household_id, amount=after.due, method=after.method
    )


def _settle(after: Progress, at: datetime) -> list[Effect]:
    name = after.checkout_id
    return [
        *(Ship(stock_id=stock, at=at, checkout_id=name) for stock in after.reserved),
        EarnPoints(household_id=after.household_id, at=at, checkout_id=name, amount=after.due),
        ConfirmPayment(basket_id=after.basket_id, at=at, attempt=after.attempt, payment_id=name, amount=after.due),
    ]


def _undo(after: Progress, at: datetime) -> list[Effect]:
    name = after.checkout_id
    back: list[Effect] = [Release(stock_id=stock, at=at, checkout_id=name) for stock in after.reserved]
    if after.redeemed:
        back.append(GiveBackPoints(household_id=after.household_id, at=at, checkout_id=name))
    back.append(ReopenBasket(basket_id=after.basket_id, at=at, attempt=after.attempt, reason=after.why))
    return back
