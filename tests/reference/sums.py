"""What must agree across all services once nothing moves any more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from events.baskets import BasketCheckedOut, BasketPaid, BasketReopened, CouponApplied, CouponReturned, checkout_id
from events.inventory import StockReceived, StockReleased, StockReserved, StockShipped, stock_id
from events.loyalty import PointsEarned, PointsGivenBack, PointsRedeemed
from events.payments import Method, PaymentAuthorised, PaymentCaptured, PaymentRefunded, PaymentVoided
from leftfold import Event
from services.baskets.domain import baskets
from services.inventory.domain import inventory
from services.loyalty.domain import loyalty

__all__ = ["disagreements"]

E = TypeVar("E", bound=Event)
_NOTHING = Decimal("0.00")


class _Seen:
    """The events of each category, a stream in its order, and how the checkouts ended."""

    def __init__(self, events: Mapping[str, Iterable[Event]]) -> None:
        self.events = [event for found in events.values() for event in found]
        self.receipts = {
            checkout_id(one.basket_id, one.attempt): one
            for one in self.of(BasketCheckedOut)
            if one.method is not Method.AT_REGISTER
        }
        self.paid = Counter(checkout_id(one.basket_id, one.attempt) for one in self.of(BasketPaid))
        self.reopened = Counter(checkout_id(one.basket_id, one.attempt) for one in self.of(BasketReopened))

    def of(self, kind: type[E]) -> list[E]:
        """The events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def streams(self, category: str) -> Mapping[str, Sequence[Any]]:
        """The events of a category by stream."""
        found = defaultdict(list)
        for event in self.events:
            spec = type(event).__leftfold__
            if spec.category == category:
                found[getattr(event, spec.key)].append(event)
        return found


def disagreements(events: Mapping[str, Iterable[Event]]) -> list[str]:
    """One sentence for each sum that does not agree; events of a stream are in its order."""
    seen = _Seen(events)
    return [*_endings(seen), *_money(seen), *_stock(seen), *_points(seen), *_coupons(seen)]


def _endings(seen: _Seen) -> Iterator[str]:
    for name in seen.receipts:
        if (ends := seen.paid[name] + seen.reopened[name]) != 1:
            yield f"checkout {name} has {ends} ends"


def _money(seen: _Seen) -> Iterator[str]:
    paid = {one.payment_id: one.amount for one in seen.of(BasketPaid)}
    captured = {one.payment_id: one.amount for one in seen.of(PaymentCaptured)}
    voided = {one.payment_id for one in seen.of(PaymentVoided)}
    refunded = {one.payment_id: one.amount for one in seen.of(PaymentRefunded)}
    if not refunded.items() <= captured.items():
        yield f"refunded {refunded} is not what was captured: {captured}"
    if (kept := {name: amount for name, amount in captured.items() if name not in refunded}) != paid:
        yield f"captured and kept {kept} is not what was paid: {paid}"
    taken = sum((one.amount for one in seen.of(PaymentCaptured)), _NOTHING)
    taken -= sum((one.amount for one in seen.of(PaymentRefunded)), _NOTHING)
    due = sum((one.amount for one in seen.of(BasketPaid)), _NOTHING)
    if taken != due:
        yield f"{taken} dollars are captured and kept, and {due} paid"
    for name in (one.payment_id for one in seen.of(PaymentAuthorised)):
        if (name in captured) == (name in voided):
            yield f"payment {name} is captured: {name in captured}, void: {name in voided}"


def _stock(seen: _Seen) -> Iterator[str]:
    for key, stream in seen.streams("inventory").items():
        stock = inventory.fold(inventory.initial_state, stream)
        came, went = (sum(one.quantity for one in stream if isinstance(one, k)) for k in (StockReceived, StockShipped))
        if came != stock.on_hand + went:
            yield f"{came} of {key} came, {went} went and {stock.on_hand} are there"
        if stock.reserved:
            yield f"{key} is still reserved: {dict(stock.reserved)}"
    taken: Counter[tuple[str, str]] = Counter()
    for one in seen.of(StockShipped):
        taken[one.checkout_id, one.stock_id] += one.quantity
    wanted: Counter[tuple[str, str]] = Counter()
    for name, receipt in seen.receipts.items():
        for line in receipt.lines if seen.paid[name] else ():
            wanted[name, stock_id(receipt.store_id, line.product_id)] += line.quantity
    if +taken != +wanted:
        yield f"shipped, not paid: {taken - wanted}; paid, not shipped: {wanted - taken}"
    held = Counter(one.checkout_id for one in seen.of(StockReserved))
    free = Counter(one.checkout_id for one in seen.of(StockReleased))
    free += Counter(one.checkout_id for one in seen.of(StockShipped))
    if held != free:
        yield f"reserved and neither released nor shipped: {held - free}; the other way round: {free - held}"


def _points(seen: _Seen) -> Iterator[str]:
    for household, stream in seen.streams("loyalty").items():
        if held := loyalty.fold(loyalty.initial_state, stream).held:
            yield f"points of household {household} are still held: {dict(held)}"
    earned = Counter(one.checkout_id for one in seen.of(PointsEarned))
    if earned != seen.paid:
        yield f"points were earned for {earned - seen.paid}, and not for {seen.paid - earned}"
    spent = Counter({one.checkout_id: one.points for one in seen.of(PointsRedeemed)})
    spent.subtract({one.checkout_id: one.points for one in seen.of(PointsGivenBack)})
    due = Counter({name: seen.receipts[name].points for name in seen.paid})
    if +spent != +due:
        yield f"points spent {+spent} are not those of paid baskets: {+due}"


def _coupons(seen: _Seen) -> Iterator[str]:
    applied = sum((one.coupon_disc for one in seen.of(CouponApplied)), _NOTHING)
    returned = sum((one.coupon_disc for one in seen.of(CouponReturned)), _NOTHING)
    kept = sum((_worth(one.lines) for one in seen.of(BasketCheckedOut)), _NOTHING)
    kept -= sum((_worth(one.lines) for one in seen.of(BasketReopened)), _NOTHING)
    ends = (baskets.fold(baskets.initial_state, stream) for stream in seen.streams("baskets").values())
    kept += sum((_worth(basket.lines) for basket in ends if basket.receipt is None), _NOTHING)
    if applied != returned + kept:
        yield f"{applied} dollars of coupons were handed in, {returned} returned and {kept} kept"


def _worth(lines: Iterable[Any]) -> Decimal:
    return sum((line.coupon_disc for line in lines), _NOTHING)
