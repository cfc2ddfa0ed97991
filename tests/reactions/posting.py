"""A shop with a decider, a view and a reaction that posts; the environment raises their versions."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from leftfold import App, Decider, Delivery, FoldView, Reaction
from tests.domains.visits import Left, Paid, Pay, visits
from tests.reactions.hooks import post

__all__ = ["PATH", "VERSIONS", "Total", "app", "total_of"]

VERSIONS = "TESTS_POSTING_VERSIONS"
"""What in the environment says which versions are at work: {"decider": 2}."""
PATH = "/hook"
TOLD: dict[str, int] = json.loads(os.environ.get(VERSIONS, "{}"))


@dataclass(frozen=True)
class Total:
    visit: str
    paid: int
    weighed: int


def total_of(version: int) -> FoldView[Paid, Total]:
    """The view in some version; what it makes of a visit names the version."""

    def add(row: Total | None, event: Paid) -> Total:
        paid = 1 + (row.paid if row else 0)
        return Total(event.visit, paid, paid * version)

    return FoldView("totals", events=Paid, row=Total, evolve=add, version=version)


def tell(event: Paid, delivery: Delivery) -> None:
    post(PATH, delivery, delivery.idempotency_key)


_visits = Decider(
    "visits",
    commands=Pay,
    events=Paid | Left,
    state=int,
    initial_state=0,
    decide=visits.decide,
    evolve=visits.evolve,
    version=TOLD.get("decider", 1),
)
app = App(
    "posting",
    partitions=2,
    deciders=[_visits],
    views=[total_of(TOLD.get("view", 1))],
    reactions=[Reaction("telling", events=Paid, act=tell)],
)
