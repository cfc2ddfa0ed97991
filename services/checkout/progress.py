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
from services.inventory.commands import Release, Reserve
from services.loyalty.commands import GiveBackPoints, RedeemPoints
from services.payments.commands import Authorise, Capture, PaymentVoid, Void

__all__ = ["Input", "Progress", "Stage", "evolve"]

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
)


class Stage(Enum):
    """What a checkout waits for."""

    NEW = "new"
    RESERVING = "reserving"
    REDEEMING = "redeeming"
    AUTHORISING = "authorising"
    CAPTURING = "capturing"
    SETTLING = "settling"
    UNDOING = "undoing"
    OVER = "over"


@dataclass(frozen=True)
class Progress:
    """What a checkout has to remember: what it is about, what has to be given back, and why it came to nothing.

    `reserved` and `redeemed` are what was asked for and not refused.
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
    why: str = ""

    @property
    def checkout_id(self) -> str:
        """The checkout's name in all services; its payment is called so, too."""
        return checkout_id(self.basket_id, self.attempt)


def evolve(state: Progress, given: Input) -> Progress:
    """The progress after one more input; an answer that nobody waits for any more changes nothing."""
    match given:
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
        case Rejected(command=Authorise(), error=error) if not isinstance(error, PaymentVoid):
            return _undone(state, error)
        case PaymentCaptured() if state.stage is Stage.CAPTURING:
            return replace(state, stage=Stage.SETTLING)
        case PaymentVoided(reason=reason) if state.stage not in (Stage.UNDOING, Stage.OVER):
            return _undone(state, reason)
        case BasketPaid() | BasketReopened():
            return replace(state, stage=Stage.OVER)
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


def _undone(state: Progress, why: str | DomainError) -> Progress:
    """What is still under way counts as reserved: it is given back behind its answer."""
    reserved = (*state.reserved, *sorted(state.unanswered))
    return replace(state, stage=Stage.UNDOING, unanswered=frozenset(), reserved=reserved, why=state.why or str(why))
