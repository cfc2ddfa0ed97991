"""The scenarios of the read path: the purse with a row for each account and rows that meet, a deploy of folds, and
tasks of a rebuild that run twice at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from leftfold.model.app import App
from leftfold.model.messages import Event
from leftfold.model.view import FoldView, View
from leftfold.testing.simulation.schedules import Scenario
from tests.simulation.scenarios.purse import load_of
from tests.worker.bank import bank

__all__ = ["BESIDE", "DEPLOY", "SPENDING"]

_BANK = bank("spending", partitions=3)
_EVENTS: Any = Union[_BANK.app.deciders[0].events]  # noqa: UP007  # made at run time


@dataclass(frozen=True)
class Balance:
    """What an account holds, and behind how many events."""

    units: int
    events: int


def _balance(row: Balance | None, event: Event) -> Balance:
    units, events = (row.units, row.events) if row else (0, 0)
    sign = -1 if type(event).__name__ == "Withdrawn" else 1
    return Balance(units + sign * getattr(event, "amount", 0), events + 1)


def _amount(event: Event) -> int:
    return int(getattr(event, "amount", 0))


balances: View[Balance, str] = FoldView("balances", events=_EVENTS, row=Balance, evolve=_balance)
amounts: View[Balance, int] = FoldView(
    "amounts", events=_EVENTS, row=Balance, key=_amount, evolve=_balance, indexes=["events"]
)


def _doubled(row: Balance | None, event: Event) -> Balance:
    """Another fold of the same rows: each event counts twice."""
    units, events = (row.units, row.events) if row else (0, 0)
    return Balance(units, events + 2)


newer: View[Balance, str] = FoldView("balances", events=_EVENTS, row=Balance, evolve=_doubled)


def _app(*views: View[Any, Any]) -> App:
    return App("spending", partitions=3, deciders=_BANK.app.deciders, views=views)


SPENDING = Scenario(_app(balances, amounts), load_of(_BANK))
BESIDE = Scenario(_app(balances, amounts), load_of(_BANK), attempts=2)
DEPLOY = Scenario(_app(balances), load_of(_BANK), newer=_app(newer))
