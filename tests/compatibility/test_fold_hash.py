"""Hashes of folds see what methods, local imports and values reach, and nothing that differs between processes."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from leftfold import App, FoldView
from leftfold.compatibility.fold_hash import fold_hash
from leftfold.errors import ConfigurationError
from leftfold.runtime.lifecycle import folds_of
from tests.domains.trade import Confirmed, Placed

FOLDS = """
import logging
import os
import threading
from attrs import frozen
from functools import cache, cached_property, singledispatchmethod
from types import SimpleNamespace

class Base:
    def share(self, row):
        return row * 2

class Connection:
    state = "open"

    def __repr__(self):
        if self.state == "closed":
            raise RuntimeError("it is closed")
        return f"<{self.state} connection of process {os.getpid()}>"

class Rules:
    def __init__(self, most):
        self.most = most

    def least(self, row):
        return min(row, self.most)

class Folder(Base):
    __slots__ = ("limit",)

    def __init__(self, limit, most=3):
        self.limit, self.rules, self.itself, self.unused = limit, Rules(most), self, limit
        self.lock, self.log, self.connection = threading.Lock(), logging.getLogger("folds"), Connection()

    def __getattr__(self, name):
        raise RuntimeError(f"{name} was looked for")

    def evolve(self, row, event):
        with self.lock:
            self.log.debug("%s", self.connection)
            return self._apply(row) + self.itself.rules.least(row) + super().share(row) + self.absent

    def decide(self, command, row):
        return [11]

    @cache
    def _apply(self, row):
        return row + 7 + self.top + self.bonus + self.limit

    @property
    def top(self):
        return 13

    @cached_property
    def bonus(self):
        return 17

class Spend:
    RATE = 19

    @classmethod
    def evolve(cls, row, event):
        return cls.more(row) * cls.RATE

    @classmethod
    def more(cls, row):
        return row + 23 + cls.fee()

    @staticmethod
    def fee():
        return 29

class Policy:
    def __init__(self, floor):
        self.floor = floor

    def __call__(self, row):
        return max(row, self.floor)

POLICY = Policy(43)

def of_policy(row, event):
    return POLICY(row)

def doubled(row):
    return row + 47

class Caller:
    def __init__(self, floor=53):
        self.policy, self.doubled = Policy(floor), cache(doubled)

    def evolve(self, row, event):
        return self.apply(event) + self.policy(row) + self.doubled(row)

    @singledispatchmethod
    def apply(self, event):
        return 59

    @apply.register
    def _(self, event: int):
        return event + 61 + self.fee()

    @apply.register
    @classmethod
    def _(cls, event: str):
        return 67

    def fee(self):
        return 71

def shared(row, event):
    from .rules import rate as of
    from . import rules
    return of(row) + rules.fee(row)

@frozen
class Named:
    names: frozenset

PLAIN = SimpleNamespace(names={"alpha", "beta", "gamma", "delta"})
OF_ATTRS = Named(frozenset({"alpha", "beta", "gamma", "delta"}))

def plain(row, event):
    return row if PLAIN.names else OF_ATTRS
"""
RULES = """
def rate(row):
    return row + 31

def fee(row):
    return row + 37

def unused(row):
    return row + 41
"""
LAZY = """
def fold(row, event):
    from . import {module}
    return {module}.rate(row)
"""
Load = Callable[..., ModuleType]
_numbers = itertools.count()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Makes a package of the two modules with some text replaced, and imports the one with the folds."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(old: str = "", new: str = "") -> ModuleType:
        package = tmp_path / f"folds_{next(_numbers)}"
        package.mkdir()
        assert old in FOLDS + RULES
        for name, source in (("__init__", ""), ("folds", FOLDS), ("rules", RULES)):
            (package / f"{name}.py").write_text(source.replace(old, new) if old else source, "utf-8")
        importlib.invalidate_caches()
        return importlib.import_module(f"{package.name}.folds")

    return make


ROOTS: dict[str, Callable[[ModuleType], object]] = {
    "method": lambda module: module.Folder(5).evolve,
    "class method": lambda module: module.Spend.evolve,
    "imports": lambda module: module.shared,
    "calls": lambda module: module.Caller().evolve,
}


@pytest.mark.parametrize(
    ("root", "old", "new"),
    [
        ("method", "* 2", "* 3"),
        ("method", "min(row", "max(row"),
        ("method", "+ 7 +", "+ 8 +"),
        ("method", "return 13", "return 14"),
        ("method", "return 17", "return 18"),
        ("class method", "RATE = 19", "RATE = 20"),
        ("class method", "+ 23 +", "+ 24 +"),
        ("class method", "return 29", "return 30"),
        ("imports", "+ 31", "+ 32"),
        ("imports", "+ 37", "+ 38"),
        ("calls", "+ 47", "+ 48"),
        ("calls", "floor=53", "floor=54"),
        ("calls", "return 59", "return 60"),
        ("calls", "+ 61 +", "+ 62 +"),
        ("calls", "return 67", "return 68"),
        ("calls", "return 71", "return 72"),
    ],
)
def test_what_a_method_or_an_import_of_a_function_reaches_is_part_of_its_fold(
    load: Load, root: str, old: str, new: str
) -> None:
    before = fold_hash(ROOTS[root](load()))
    assert before == fold_hash(ROOTS[root](load("return [11]", "return [12]")))
    assert before == fold_hash(ROOTS[root](load("+ 41", "+ 42")))
    assert before != fold_hash(ROOTS[root](load(old, new)))


def test_the_values_that_a_method_names_are_part_of_its_fold(load: Load) -> None:
    folder = load().Folder
    assert fold_hash(folder(5).evolve) == fold_hash(folder(5).evolve)
    assert fold_hash(folder(5).evolve) != fold_hash(folder(6).evolve)
    assert fold_hash(folder(5).evolve) != fold_hash(folder(5, most=4).evolve)
    assert fold_hash(folder(5).decide) == fold_hash(folder(6).decide), "it names neither"


def test_an_object_that_is_called_is_part_of_its_fold_with_what_it_names(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load()
    assert fold_hash(module.Policy(5)) == fold_hash(module.Policy(5)) != fold_hash(module.Policy(6))
    before = fold_hash(module.of_policy)
    monkeypatch.setattr(module, "POLICY", module.Policy(44))
    assert fold_hash(module.of_policy) != before


@pytest.mark.parametrize("source", ["import not_there", "1 / 0", "raise SystemExit('usage')"])
def test_a_fold_whose_import_fails_has_no_hash_and_ends_no_process(load: Load, tmp_path: Path, source: str) -> None:
    package = tmp_path / load().__name__.partition(".")[0]
    (package / "failing.py").write_text(f"{source}\n\ndef rate(row):\n    return row\n", "utf-8")
    (package / "lazy.py").write_text(LAZY.format(module="failing"), "utf-8")
    fold = importlib.import_module(f"{package.name}.lazy").fold
    with pytest.raises(ConfigurationError, match=r"failing, which .*lazy imports, cannot be imported here \(\w+: .*\)"):
        fold_hash(fold)
    view = FoldView("counts", events=Placed, row=Confirmed, key=lambda event: event.order, evolve=fold)
    assert folds_of(App("counting", views=[view])) == {}, "unknown, where another hash would be taken for other code"


def test_a_library_that_is_not_installed_is_no_part_of_a_fold(load: Load, tmp_path: Path) -> None:
    package = tmp_path / load().__name__.partition(".")[0]
    (package / "lazy.py").write_text(LAZY.format(module="not_there").replace("from . ", ""), "utf-8")
    assert fold_hash(importlib.import_module(f"{package.name}.lazy").fold)


def test_what_an_object_does_meanwhile_is_no_part_of_a_fold(load: Load) -> None:
    folder = load().Folder(5)
    before = fold_hash(folder.evolve)
    assert folder.bonus == 17
    folder.log.setLevel("DEBUG")
    for folder.connection.state in ("busy", "closed"):
        with folder.lock:
            assert fold_hash(folder.evolve) == before


def test_hashes_do_not_depend_on_the_order_of_a_set_or_on_the_process(load: Load, tmp_path: Path) -> None:
    name = load().__name__
    script = (
        f"from {name} import *; from leftfold.compatibility.fold_hash import fold_hash\n"
        f"print([fold_hash(one) for one in (Caller().evolve, Folder(5).evolve, Spend.evolve, plain, shared)])"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join([str(tmp_path), *sys.path])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1
