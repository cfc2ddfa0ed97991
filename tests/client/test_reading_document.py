"""The code of docs/reading.md, run as it stands, on views with the names and indexes of those in projections/."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from leftfold import App, Command, Decider, Event, FoldView, Position, memory
from projections.household_360 import household_360 as projections_360
from projections.household_spend import household_spend as projections_spend
from tests.threads import working

TEXT = (Path(__file__).parents[2] / "docs" / "reading.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Segment(Enum):
    OTHER = "other"
    DEVOTED = "devoted"


class Bought(Event, category="visits", key="household_id"):
    household_id: str
    amount: int


class Buy(Command, category="visits", key="household_id"):
    household_id: str
    amount: int


@dataclass(frozen=True)
class Nothing:
    pass


@dataclass(frozen=True)
class Spend:
    total: Decimal = Decimal(0)
    segment: Segment = Segment.OTHER


def decide(command: Buy, state: Nothing) -> list[Bought]:
    return [Bought(household_id=command.household_id, amount=command.amount)]


def add(row: Spend | None, event: Bought) -> Spend:
    total = (row or Spend()).total + event.amount
    return replace(row or Spend(), total=total, segment=Segment.DEVOTED if total > 400 else Segment.OTHER)


@dataclass(frozen=True)
class Points:
    points: int = 0


def earn(row: Points | None, event: Bought) -> Points:
    return Points((row or Points()).points + event.amount)


visits = Decider(
    "visits",
    commands=Buy,
    events=Bought,
    state=Nothing,
    initial_state=Nothing(),
    decide=decide,
    evolve=lambda state, event: state,
)
household_spend = FoldView(
    "household_spend", events=Bought, row=Spend, evolve=add, indexes=projections_spend.rows.indexes
)
household_360 = FoldView("household_360", events=Bought, row=Points, evolve=earn, indexes=projections_360.rows.indexes)
app = App("visits", partitions=2, deciders=[visits], views=[household_spend, household_360])


class Saved(Exception):
    """A position was kept."""


def test_the_document_has_code() -> None:
    assert len(BLOCKS) == 2


def test_the_code_of_the_document_runs_as_it_stands() -> None:
    def save(position: Position) -> None:
        raise Saved

    with memory(app, now=NOW) as lf:
        receipt = lf.client.send(Buy(household_id="h-7", amount=450))
        views = {"household_spend": household_spend, "household_360": household_360}
        names: dict[str, Any] = {"lf": lf, "Segment": Segment, "receipt": receipt, **views}
        exec(BLOCKS[0], names)  # noqa: S102  # our own document
        assert names["everything"] == {"h-7": Spend(Decimal(450), Segment.DEVOTED)}

        def buy(stop: threading.Event) -> None:
            while not stop.wait(0.1):
                lf.client.send(Buy(household_id="h-8", amount=1))

        with working(buy), pytest.raises(Saved):
            exec(BLOCKS[1], names | {"save": save})  # noqa: S102  # our own document
