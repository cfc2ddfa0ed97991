"""A project of several Apps: each has a lock of its own, and checking one says nothing of the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.shell import Typed

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


def test_each_app_is_compared_with_its_own_lock(
    place: Path, module: Callable[[str], str], typed: Callable[..., Typed]
) -> None:
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

    told = typed("check", "--app", f"{changed}:parcels")
    assert told.code == 1
    assert told.out == (
        "error view lost: its fold changed since locks/parcels.lock; raise version= to 2, or, if it means the same, "
        f"accept it: leftfold check --write --app {changed}:parcels\n"
    )
    assert json.loads(typed("check", "--app", f"{changed}:parcels", "--json").out)["wrong"] is True
