"""How far a checkout has come, and what an input makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypeAlias

from events.baskets import BasketCheckedOut, BasketPaid, BasketReopened, checkout_id
from events.inventory import StockReserved, stock_id
from events.loyalty import PointsRedeemed
from events.payments import Method, PaymentAuthorised, PaymentCaptured, PaymentVoided
from leftfold import Rejected
from services.inventory.commands import Reserve
from services.loyalty.commands import RedeemPoints
from services.payments.commands import Authorise, Capture, Void

__all__ = ["Input", "Progress", "evolve"]

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
    | Rejected[RedeemPoints]
    | Rejected[Authorise]
    | Rejected[Capture]
    | Rejected[Void]
)


@dataclass(frozen=True)
class Progress:
    """What a checkout has to remember: what it is about, what is reserved and redeemed, and why it came to nothing."""

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
    """The progress after one more input."""
    match given:
        case BasketCheckedOut():
            return _begun(given)
        case StockReserved(stock_id=stock):
            return replace(state, unanswered=state.unanswered - {stock}, reserved=(*state.reserved, stock))
        case PointsRedeemed():
            return replace(state, redeemed=True)
        case PaymentVoided(reason=reason):
            return replace(state, why=reason)
        case Rejected(command=Reserve(stock_id=stock), error=error):
            return replace(state, unanswered=state.unanswered - {stock}, why=state.why or str(error))
        case Rejected(command=RedeemPoints() | Authorise(), error=error):
            return replace(state, why=str(error))
        case Rejected() | PaymentAuthorised() | PaymentCaptured() | BasketPaid() | BasketReopened():
            return state


def _begun(receipt: BasketCheckedOut) -> Progress:
    return Progress(
        receipt.basket_id,
        receipt.attempt,
        receipt.household_id,
        receipt.method,
        receipt.due,
        receipt.points,
        frozenset(stock_id(receipt.store_id, line.product_id) for line in receipt.lines if line.quantity),
    )
