"""The App after a deploy that changes one fold: a household is a regular from 250 dollars on, no longer from 500."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from events.baskets import BasketCheckedOut, BasketReopened
from leftfold import App, FoldView
from projections.household_spend import HouseholdSpend, Segment, add, household_spend
from services.baskets import app as before

__all__ = ["app"]

REGULAR_FROM = Decimal(250)


def judge(row: HouseholdSpend | None, event: BasketCheckedOut | BasketReopened) -> HouseholdSpend:
    """The household after one more receipt, judged more kindly."""
    after = add(row, event)
    kindly = after.segment is Segment.OCCASIONAL and after.total >= REGULAR_FROM
    return replace(after, segment=Segment.REGULAR) if kindly else after


changed = FoldView(
    household_spend.name,
    events=BasketCheckedOut | BasketReopened,
    row=HouseholdSpend,
    key=lambda e: e.household_id,
    evolve=judge,
    indexes=("segment",),
    version=household_spend.version,
)
app = App(
    before.app.name,
    partitions=before.app.partitions,
    deciders=before.app.deciders,
    senders=before.app.senders,
    views=[changed if view is household_spend else view for view in before.app.views],
)
