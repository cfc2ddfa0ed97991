"""How far a checkout has come, and what an input makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import TypeAlias

from events.baskets import BasketCheckedOut, BasketPaid, BasketReopened, checkout_id
from events.inventory import StockReserved, stock_id
from events.loyalty import PointsRedeemed
from events.payments import Method, PaymentAuthorised, PaymentCaptured, PaymentVoided
from leftfold import DomainError, Rejected
from services.baskets.commands import ConfirmPayment, ReopenBasket, WrongAmount
from services.inventory.commands import Release, Reserve
from services.loyalty.commands import GiveBackPoints, RedeemPoints
from services.payments.commands import Authorise, Capture, PaymentVoid, Void

__all__ = ["OPEN", "Input", "Progress", "Stage", "evolve"]

Input: TypeAlias = (
    BasketCheckedOut
    | BasketPaid
    | BasketReopened
    | StockReserved
    | PointsRedeemed
    | PaymentAuthorised
    | PaymentCaptured
    | PaymentVoided
    | Rejected[Reserve]
    | Rejected[Release]
    | Rejected[RedeemPoints]
    | Rejected[GiveBackPoints]
    | Rejected[Authorise]
    | Rejected[Capture]
    | Rejected[Void]
    | Rejected[ConfirmPayment]
    | Rejected[ReopenBasket]
)


class Stage(Enum):
    """What a checkout waits for."""

    NEW = "new"
    VOID = "void"
    RESERVING = "reserving"
    REDEEMING = "redeeming"
    AUTHORISING = "authorising"
    CAPTURING = "capturing"
    SETTLING = "settling"
    PAID = "paid"
    UNDOING = "undoing"
    OVER = "over"


OPEN = frozenset({Stage.RESERVING, Stage.REDEEMING, Stage.AUTHORISING, Stage.CAPTURING})
"""The stages in which payments have not said yet whether there is money."""


@dataclass(frozen=True)
class Progress:
    """What a checkout has to remember: what it is about, what has to be given back, and why it came to nothing.

    `reserved` and `redeemed` are what was asked for and not refused, `captured` says that the money was taken, `paid`
    and `reopened` what baskets have reported, whether or not the checkout asked for it.
    """

    stage: Stage = Stage.NEW
    basket_id: str = ""
    attempt: int = 0
    household_id: str = ""
    method: Method = Method.AT_REGISTER
    due: Decimal = Decimal("0.00")
    points: int = 0
    unanswered: frozenset[str] = frozenset()
    reserved: tuple[str, ...] = ()
    redeemed: bool = False
    captured: bool = False
    paid: bool = False
    reopened: bool = False
    why: str = ""

    @property
    def checkout_id(self) -> str:
        """The checkout's name in all services; its payment is called so, too."""
        return checkout_id(self.basket_id, self.attempt)


def evolve(state: Progress, given: Input) -> Progress:
    """The progress after one more input; an answer that the checkout no longer waits for changes nothing."""
    match given:
        case BasketCheckedOut() if state.stage is Stage.VOID:
            return replace(_begun(given), stage=Stage.UNDOING, unanswered=frozenset(), why=state.why)
        case BasketCheckedOut():
            return _go_on(_begun(given))
        case StockReserved(stock_id=stock) if stock in state.unanswered:
            return _go_on(replace(_answered(state, stock), reserved=(*state.reserved, stock)))
        case Rejected(command=Reserve(stock_id=stock), error=error) if stock in state.unanswered:
            return _go_on(replace(_answered(state, stock), why=state.why or str(error)))
        case PointsRedeemed() if state.stage is Stage.REDEEMING:
            return replace(state, stage=Stage.AUTHORISING)
        case Rejected(command=RedeemPoints(), error=error) if state.stage is Stage.REDEEMING:
            return replace(_undone(state, error), redeemed=False)
        case PaymentAuthorised() if state.stage is Stage.AUTHORISING:
            return replace(state, stage=Stage.CAPTURING)
        case Rejected(command=Authorise(), error=error) if state.stage is Stage.AUTHORISING:
            return state if isinstance(error, PaymentVoid) else _undone(state, error)
        case _:
            return _with_outcome(state, given)


def _with_outcome(state: Progress, given: Input) -> Progress:
    """What becomes of the money and of the basket, whether or not the checkout asked for it."""
    match given:
        case PaymentVoided(reason=reason) if state.stage is Stage.NEW:
            return replace(state, stage=Stage.VOID, why=reason)
        case PaymentCaptured() if state.stage is Stage.CAPTURING:
            return _ended(replace(state, stage=Stage.SETTLING, captured=True))
        case PaymentVoided(reason=reason) if state.stage in OPEN:
            return _undone(state, reason)
        case Rejected(command=ConfirmPayment(), error=WrongAmount() as error) if state.stage is Stage.SETTLING:
            return _undone(state, error)
        case BasketPaid():
            return _ended(replace(state, paid=True))
        case BasketReopened(reason=reason):
            return _ended(replace(state, reopened=True, why=state.why or reason))
        case _:
            return state


def _begun(receipt: BasketCheckedOut) -> Progress:
    return Progress(
        Stage.RESERVING,
        receipt.basket_id,
        receipt.attempt,
        receipt.household_id,
        receipt.method,
        receipt.due,
        receipt.points,
        frozenset(stock_id(receipt.store_id, line.product_id) for line in receipt.lines if line.quantity),
    )


def _answered(state: Progress, stock: str) -> Progress:
    return replace(state, unanswered=state.unanswered - {stock})


def _go_on(state: Progress) -> Progress:
    """What follows when the last line has answered."""
    if state.unanswered:
        return state
    if state.why:
        return _undone(state, state.why)
    return replace(state, stage=Stage.REDEEMING if state.points else Stage.AUTHORISING, redeemed=state.points > 0)


def _ended(state: Progress) -> Progress:
    """What follows when both are known: what became of the money, and of the basket."""
    match state.stage:
        case Stage.SETTLING if state.paid:
            return replace(state, stage=Stage.PAID)
        case Stage.SETTLING if state.reopened:
            return _undone(state, state.why)
        case Stage.UNDOING if state.paid or state.reopened:
            return replace(state, stage=Stage.OVER)
        case _:
            return state


def _undone(state: Progress, why: str | DomainError) -> Progress:
    """What is still under way counts as reserved: it is given back behind its answer."""
    reserved = (*state.reserved, *sorted(state.unanswered))
    return replace(state, stage=Stage.UNDOING, unanswered=frozenset(), reserved=reserved, why=state.why or str(why))
