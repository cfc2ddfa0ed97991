"""`leftfold new`: a project that passes its own tests, type checks and overwrites nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.shell import ROOT, Shell, Typed


def test_a_new_project_passes_its_own_tests(shop: Shell) -> None:
    told = shop.python("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    assert told.code == 0, told.out + told.err
    assert "10 passed" in told.out


def test_a_new_project_agrees_with_its_lock(shop: Shell) -> None:
    told = shop("check")
    assert told.code == 0, told.out + told.err
    assert told.out == "ok: 1 decider, 2 events, 2 views, as in leftfold.lock\n"


def test_a_new_project_is_typed(shop: Shell) -> None:
    config = ROOT / "pyproject.toml"
    told = shop.python("-m", "mypy", "--strict", f"--config-file={config}", "--explicit-package-bases", "shop")
    assert told.code == 0, told.out


def test_a_new_project_is_formatted(shop: Shell) -> None:
    told = shop.python("-m", "ruff", "format", "--check", "--config", str(ROOT / "pyproject.toml"), "shop", "tests")
    assert told.code == 0, told.out


def test_nothing_is_overwritten(place: Path, typed: Callable[..., Typed]) -> None:
    (place / "shop").mkdir()
    (place / "shop" / "mine.txt").write_text("mine", "utf-8")
    told = typed("new", "shop")
    assert told.code == 78
    assert "is there already and not empty; nothing was written" in told.err
    assert [path.name for path in (place / "shop").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["Shop", "my-shop", "1st", "class", "json", "leftfold", "tests", ""])
def test_a_name_that_is_no_package_is_refused(typed: Callable[..., Typed], name: str) -> None:
    told = typed("new", name)
    assert told.code == 78
    assert "choose another name" in told.err or "cannot name a package" in told.err
