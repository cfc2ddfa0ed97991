"""`leftfold check` warns of amounts in events that may be of any size, and is content with them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import Field

from leftfold import App, Event, FoldView
from leftfold.cli.run.check import unbounded
from tests.cli.shell import Typed
from tests.domains.ledger import app

Money = Annotated[Decimal, Field(max_digits=18, decimal_places=2)]


class Paid(Event, category="bills", key="bill"):
    bill: str
    amount: Money
    tip: Money | None = None
    fee: Annotated[Decimal | None, Field(max_digits=9, decimal_places=2)] = None


def test_amounts_without_bounds_are_named() -> None:
    assert unbounded(app).startswith("a Decimal may have any number of digits in ledgers.Moved.amount; ")


def test_amounts_with_bounds_are_not() -> None:
    assert (
        unbounded(App("bills", views=[FoldView("bills", events=Paid, row=Paid, evolve=lambda row, event: event)])) == ""
    )


def test_a_check_warns_and_ends_as_before(place: Path, typed: Callable[..., Typed]) -> None:
    (place / "pyproject.toml").write_text('[tool.leftfold]\napp = "tests.domains.ledger:app"\n')
    assert typed("check", "--write").code == 0
    told = typed("check")
    assert told.code == 0, told.out
    assert "ledgers.Moved.amount; SQL passes over" in told.err
