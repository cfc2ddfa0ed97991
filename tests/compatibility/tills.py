"""A service of tills in one file, of which tests load versions with some text replaced."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

from leftfold import App
from leftfold.compatibility import compare, lock_of
from leftfold.compatibility.lock import CheckFinding

__all__ = ["SOURCE", "Load", "findings", "loader"]

SOURCE = '''
"""A service in one file."""
from dataclasses import dataclass, replace
from decimal import Decimal
from leftfold import App, Command, Decider, Event, FoldView

FEE = Decimal("0.10")

class Paid(Event, category="tills", key="till_id"):
    till_id: str
    amount: Decimal
    note: str = ""

class Pay(Command, category="tills", key="till_id"):
    till_id: str
    amount: Decimal

@dataclass(frozen=True)
class Till:
    total: Decimal = Decimal(0)

@dataclass(frozen=True)
class Row:
    total: Decimal = Decimal(0)

def net(amount: Decimal) -> Decimal:
    return amount - FEE

def decide(command: Pay, till: Till) -> list[Paid]:
    return [Paid(till_id=command.till_id, amount=command.amount)]

def evolve(till: Till, event: Paid) -> Till:
    """The till after one more payment."""
    return replace(till, total=till.total + net(event.amount))

def add(row: Row | None, event: Paid) -> Row:
    return Row((row or Row()).total + event.amount)

tills = Decider("tills", commands=Pay, events=Paid, state=Till, initial_state=Till(), decide=decide, evolve=evolve)
totals = FoldView("totals", events=Paid, row=Row, evolve=add, key=lambda e: e.till_id)
app = App("tills", deciders=[tills], views=[totals])
'''

Load = Callable[..., App]
_numbers = itertools.count()


def loader(folder: Path) -> Load:
    """Makes the App of the source with some text replaced."""

    def make(*replacements: tuple[str, str]) -> App:
        source = SOURCE
        for old, new in replacements:
            assert old in source
            source = source.replace(old, new)
        file = folder / f"tills_{next(_numbers)}.py"
        file.write_text(source, "utf-8")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module
        spec.loader.exec_module(module)
        app = module.app
        assert isinstance(app, App)
        return app

    return make


def findings(load: Load, *replacements: tuple[str, str]) -> list[CheckFinding]:
    """What a lock of the source finds in the source with some text replaced."""
    return compare(lock_of(load()), lock_of(load(*replacements)))
