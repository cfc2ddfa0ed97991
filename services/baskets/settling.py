"""What may become of a receipt: it is paid, or it is undone."""

from __future__ import annotations

from collections.abc import Sequence

from events.baskets import BasketEvent, BasketPaid, BasketReopened, CouponReturned
from services.baskets.basket import Basket, Receipt
from services.baskets.commands import ConfirmPayment, NotWaitingForPayment, ReopenBasket, WrongAmount

__all__ = ["confirm", "reopen"]


def confirm(command: ConfirmPayment, basket: Basket) -> BasketPaid:
    """The basket is paid.

    Raises:
        NotWaitingForPayment: this checkout is over, or never was. WrongAmount: it is more or less than what is due.
    """
    due = _waiting(command, basket).due
    if command.amount != due:
        raise WrongAmount(basket_id=command.basket_id, amount=command.amount, due=due)
    return BasketPaid(
        basket_id=command.basket_id,
        at=command.at,
        household_id=basket.household_id,
        store_id=basket.store_id,
        attempt=command.attempt,
        payment_id=command.payment_id,
        amount=command.amount,
    )


def reopen(command: ReopenBasket, basket: Basket) -> Sequence[BasketEvent]:
    """The basket is open again, and every coupon in it goes back.

    Raises:
        NotWaitingForPayment: this checkout is over, or never was.
    """
    receipt = _waiting(command, basket)
    reopened = BasketReopened(
        basket_id=command.basket_id,
        at=command.at,
        household_id=basket.household_id,
        store_id=basket.store_id,
        lines=basket.lines,
        total=basket.total,
        attempt=command.attempt,
        checked_out_at=receipt.at,
        reason=command.reason,
    )
    returned = [
        CouponReturned(
            basket_id=command.basket_id,
            at=command.at,
            product_id=line.product_id,
            coupon_disc=line.coupon_disc,
            coupon_match_disc=line.coupon_match_disc,
        )
        for line in basket.lines
        if line.coupon_disc
    ]
    return [reopened, *returned]


def _waiting(command: ConfirmPayment | ReopenBasket, basket: Basket) -> Receipt:
    if basket.receipt is None or basket.attempt != command.attempt:
        raise NotWaitingForPayment(basket_id=command.basket_id, attempt=command.attempt)
    return basket.receipt
