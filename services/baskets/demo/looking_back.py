"""A view as it was at an earlier place of the log, and how a row came about."""

from __future__ import annotations

import json

from leftfold import Connection, Position
from projections.household_spend import household_spend
from projections.store_totals import store_totals
from services.baskets.demo.deploy import run
from services.baskets.demo.telling import say

__all__ = ["look_back"]

NAME = "then"


def look_back(lf: Connection, then: Position) -> list[str]:
    """Builds a view as of an earlier place, reads it, and explains a row; returns what went wrong."""
    wrong = []
    typed = f"leftfold rebuild {store_totals.name} --as-of POSITION --name {NAME}"
    say(f"\nA view as of the place where Spark began: {typed}")
    place = json.dumps({topic: dict(partitions) for topic, partitions in then.offsets.items()})
    if run("rebuild", store_totals.name, "--engine", "local", "--as-of", place, "--name", NAME):
        wrong.append("the view as of then could not be built")
    now = dict(lf.views[store_totals].items())
    before = dict(lf.views.as_of(store_totals, NAME).items())
    store = max(before, key=lambda key: before[key].sales_value)
    amounts = f"{before[store].sales_value:,} dollars then, {now[store].sales_value:,} now"
    say(f"store {store}: {amounts} (leftfold get {store_totals.name}@{NAME} {store})")
    wrong += [
        f"store {key} had more then than it has now"
        for key, row in before.items()
        if row.sales_value > now[key].sales_value
    ]
    households = lf.views[household_spend]
    key = min((key for key, row in households.items() if row.baskets == 3), default="", key=str)
    if key:
        say(f"\nHow a row came about: leftfold explain {household_spend.name} {key}")
        if run("explain", household_spend.name, key):
            wrong.append(f"household {key} is not what its events say")
    return wrong
