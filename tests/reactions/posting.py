"""A shop with a decider, a process, a view and a reaction that posts; the environment raises their versions."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from leftfold import App, Command, Decider, Delivery, Event, FoldView, Process, Reaction
from tests.domains.visits import Left, Paid, Pay
from tests.reactions.hooks import post

__all__ = ["PATH", "VERSIONS", "Posted", "Thanked", "Total", "app", "total_of"]

VERSIONS = "TESTS_POSTING_VERSIONS"
"""What in the environment says which versions are at work: {"decider": 2}."""
PATH = "/hook"
TOLD: dict[str, int] = json.loads(os.environ.get(VERSIONS, "{}"))


class Thanked(Event, category="thanks", key="visit"):
    visit: str
    times: int


class Thank(Command, category="thanks", key="visit"):
    visit: str
    times: int


@dataclass(frozen=True)
class Total:
    visit: str
    paid: int
    weighed: int


Posted: TypeAlias = Paid | Thanked


def pay(command: Pay, paid: int) -> Sequence[Paid | Left]:
    return [Paid(visit=command.visit, number=paid + 1), Left(visit=command.visit)]


def count(paid: int, event: Paid | Left) -> int:
    return event.number if isinstance(event, Paid) else paid


def thank(event: Left, left: int) -> Sequence[Thank]:
    return [Thank(visit=event.visit, times=left + 1)]


def total_of(version: int) -> FoldView[Paid, Total]:
    """The view in some version; what it makes of a visit names the version."""

    def add(row: Total | None, event: Paid) -> Total:
        paid = 1 + (row.paid if row else 0)
        return Total(event.visit, paid, paid * version)

    return FoldView("totals", events=Paid, row=Total, evolve=add, version=version)


def tell(event: Posted, delivery: Delivery) -> None:
    post(PATH, delivery, delivery.idempotency_key)


app = App(
    "posting",
    partitions=2,
    deciders=[
        Decider(
            "visits",
            commands=Pay,
            events=Paid | Left,
            state=int,
            initial_state=0,
            decide=pay,
            evolve=count,
            version=TOLD.get("decider", 1),
        ),
        Decider(
            "thanks",
            commands=Thank,
            events=Thanked,
            state=int,
            initial_state=0,
            decide=lambda command, state: [Thanked(visit=command.visit, times=command.times)],
            evolve=lambda state, event: event.times,
        ),
    ],
    processes=[
        Process(
            "thanking",
            inputs=Left,
            sends=Thank,
            state=int,
            initial_state=0,
            correlate=lambda event: event.visit,
            react=thank,
            evolve=lambda left, event: left + 1,
            version=TOLD.get("process", 1),
        )
    ],
    views=[total_of(TOLD.get("view", 1))],
    reactions=[Reaction("telling", events=Posted, act=tell)],
)
