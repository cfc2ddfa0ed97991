"""`leftfold check`: amounts of any size, removed events, and a lock for each App of a project."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import Field

from leftfold import App, Event, FoldView
from leftfold.cli.run.check import unbounded
from tests.cli.shell import Shell, Typing
from tests.domains.ledger import app

Money = Annotated[Decimal, Field(max_digits=18, decimal_places=2)]
MODULE = """
from dataclasses import dataclass
from leftfold import App, Event, FoldView

class Paid(Event, category="bills", key="bill"):
    bill: str

class Lost(Event, category="parcels", key="parcel"):
    parcel: str

@dataclass(frozen=True)
class Count:
    number: int

def first(row: Count | None, event: Paid | Lost) -> Count:
    return Count({number})

bills = App("bills", views=[FoldView("paid", events=Paid, row=Count, evolve=first)])
parcels = App("parcels", views=[FoldView("lost", events=Lost, row=Count, evolve=first)])
"""


class Paid(Event, category="bills", key="bill"):
    bill: str
    amount: Money
    tip: Money | None = None
    fee: Annotated[Decimal | None, Field(max_digits=9, decimal_places=2)] = None


def test_amounts_of_any_size_are_named_and_a_check_ends_as_before(place: Path, typed: Typing) -> None:
    bounded = App("bills", views=[FoldView("bills", events=Paid, row=Paid, evolve=lambda row, event: event)])
    assert unbounded(bounded) == ""
    assert unbounded(app).startswith("a Decimal may have any number of digits in ledgers.Moved.amount; ")
    (place / "pyproject.toml").write_text('[tool.leftfold]\napp = "tests.domains.ledger:app"\n')
    assert typed("check", "--write").code == 0
    result = typed("check").ok()
    assert "ledgers.Moved.amount; SQL passes over" in result.err


def test_each_app_is_compared_with_its_own_lock(place: Path, module: Callable[[str], str], typed: Typing) -> None:
    name, changed = (module(MODULE.replace("{number}", number)) for number in ("1", "2"))
    (place / "pyproject.toml").write_text(f'[tool.leftfold]\napp = "{name}:bills"\n', "utf-8")
    missing = typed("check", "--app", f"{name}:parcels")
    assert f"locks/parcels.lock: is not there yet; write and commit it: leftfold check --write --app {name}" in (
        missing.out
    )
    assert typed("check", "--write").err.endswith("wrote leftfold.lock; commit it\n")
    other = typed("check", "--write", "--app", f"{name}:parcels")
    assert (other.code, other.err.splitlines()[-1]) == (0, "wrote locks/parcels.lock; commit it")
    for words in ((), ("--app", f"{name}:bills"), ("--app", f"{name}:parcels")):
        assert typed("check", *words).code == 0, words
    (place / "pyproject.toml").write_text(f'[tool.leftfold]\napp = ["{name}:bills", "{name}:parcels"]\n', "utf-8")
    assert typed("check").out.count("ok: 0 deciders, 1 event, 1 view") == 2
    result = typed("check", "--app", f"{changed}:parcels")
    assert result.code == 1
    assert result.out == (
        "error view lost: its fold changed since locks/parcels.lock; raise version= to 2, or, if it means the same, "
        f"accept it: leftfold check --write --app {changed}:parcels\n"
    )
    assert json.loads(typed("check", "--app", f"{changed}:parcels", "--json").out)["wrong"] is True


def test_a_damaged_lock_is_the_one_that_is_named(place: Path, module: Callable[[str], str], typed: Typing) -> None:
    """Who removes the project's own lock instead accepts every difference of another App unseen."""
    name = module(MODULE.replace("{number}", "1"))
    (place / "pyproject.toml").write_text(f'[tool.leftfold]\napp = ["{name}:bills", "{name}:parcels"]\n', "utf-8")
    assert typed("check", "--write").code == 0
    lock = place / "locks" / "parcels.lock"
    lock.write_text(f"<<<<<<< HEAD\n{lock.read_text('utf-8')}", "utf-8")
    for words in ((), ("--app", f"{name}:parcels")):
        result = typed("check", *words).ended(78, "error: locks/parcels.lock cannot be read")
        assert result.err.endswith(f"write a new one: leftfold check --write --app {name}:parcels\n")
        assert "leftfold.lock" not in result.err
    (place / "leftfold.lock").write_text("{}", "utf-8")
    typed("check").ended(78, "error: leftfold.lock cannot be read", "new one: leftfold check --write\n")


def test_a_removed_event_is_never_accepted_and_it_is_said_what_to_do(shop: Shell) -> None:
    """As after the carts of `leftfold new` made room for something of one's own."""
    lock = shop.place / "leftfold.lock"
    written = lock.read_text("utf-8")
    released = json.loads(written)
    released["events"]["carts.CartStolen.v1"] = released["events"]["carts.CartCheckedOut.v1"]
    released["views"]["thefts"] = released["views"]["cart_summary"]
    lock.write_text(json.dumps(released), "utf-8")
    try:
        accepted, after = shop("check", "--write"), shop("check")
    finally:
        lock.write_text(written, "utf-8")
    assert "accepted view thefts: is removed\n" in accepted.out
    for result in (accepted, after):
        assert result.code == 1
        assert "error event carts.CartStolen.v1: was released and no class reads it any more" in result.out
        assert "if it never reached a log, delete it from leftfold.lock" in result.out
    assert "thefts" not in after.out
