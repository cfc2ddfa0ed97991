"""`leftfold new`: a project that passes its own tests, type checks and overwrites nothing."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from leftfold.version import __version__
from tests.cli.shell import ROOT, Shell, Typing

TESTED = ("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
FORMATTED = ("-m", "ruff", "format", "--check", "--config", str(ROOT / "pyproject.toml"))


def test_a_new_project_passes_its_own_tests_agrees_with_its_lock_and_is_typed_and_formatted(shop: Shell) -> None:
    tested = shop.python(*TESTED).ok()
    assert "13 passed" in tested.out
    checked = shop("check")
    assert (checked.code, checked.out) == (0, "ok: 1 decider, 2 events, 2 views, as in leftfold.lock\n"), checked
    shop.python(*FORMATTED, "shop", "tests").ok()
    # Where mypy knows the framework already, which takes longest.
    Shell(ROOT, {"MYPYPATH": str(shop.place), "PYTHONPATH": ""}).python("-m", "mypy", str(shop.place / "shop")).ok()


def test_other_words_give_the_same_project_in_those_words_and_an_empty_one_has_an_app(place: Path) -> None:
    shell = Shell(place)
    assert shell("new", "cinema", "--category", "bookings", "--key", "booking").code == 0
    assert shell("new", "blank", "--empty").code == 0
    both = Shell(
        place, {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "framework", place / "cinema", place / "blank")))}
    )
    tested = both.python(*TESTED, "--import-mode=importlib", "cinema", "blank")
    assert "14 passed" in tested.out, tested.out + tested.err
    shell.python(*FORMATTED, "cinema", "blank").ok()
    cinema, blank = Shell(place / "cinema"), Shell(place / "blank")
    assert cinema("check").out == "ok: 1 decider, 2 events, 2 views, as in leftfold.lock\n"
    written = [path for path in cinema.place.rglob("*") if path.suffix in (".py", ".md", ".toml", ".lock")]
    assert [path for path in written if "cart" in path.name or "cart" in path.read_text("utf-8").lower()] == []
    events = (cinema.place / "cinema" / "events" / "bookings.py").read_text("utf-8")
    assert 'class _BookingEvent(Event, category="bookings", key="booking_id"):' in events
    assert '"booking_id": "b-1"' in (cinema.place / "README.md").read_text("utf-8")
    assert blank("check").out == "ok: 0 deciders, 0 events, 0 views, as in leftfold.lock\n"
    blank("run", "--kafka", "127.0.0.1:1").ended(2, "app blank has no deciders")
    mixed = shell("new", "other", "--empty", "--category", "tours")
    assert (mixed.code, (place / "other").exists()) == (2, False)
    assert shell("new", "museum", "--category", "tours").code == 0
    events = (place / "museum" / "museum" / "events" / "tours.py").read_text("utf-8")
    assert 'key="tour_id"' in events, "the word for one of them follows from the category"


def test_a_new_project_runs_where_leftfold_runs_and_names_the_version_that_wrote_it(place: Path) -> None:
    assert Shell(place)("new", "shop").code == 0
    ours, theirs = (
        tomllib.loads((at / "pyproject.toml").read_text("utf-8"))["project"] for at in (ROOT, place / "shop")
    )
    assert theirs["requires-python"] == ours["requires-python"]
    assert theirs["dependencies"] == [f"leftfold[kafka,redis,http]=={__version__}"]


@pytest.mark.parametrize(
    "words",
    [
        ("Bookings", "booking"),
        ("bookings", "class"),
        ("products", "product"),
        ("2s", "x"),
        ("prices", "price"),
        ("a", "at"),
        ("sequences", "sequence"),
        ("check_outs", "check_out"),
        ("rounds", "add_item"),
        ("rounds", "decider"),
        ("rounds_", "round"),
    ],
)
def test_a_word_that_is_no_name_is_refused(place: Path, typed: Typing, words: tuple[str, str]) -> None:
    result = typed("new", "cinema", "--category", words[0], "--key", words[1])
    assert result.code == 78
    assert not (place / "cinema").exists()


def test_nothing_is_overwritten(place: Path, typed: Typing) -> None:
    (place / "shop").mkdir()
    (place / "shop" / "mine.txt").write_text("mine", "utf-8")
    typed("new", "shop").ended(78, "is there already and not empty; nothing was written")
    assert [path.name for path in (place / "shop").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "name", ["Shop", "my-shop", "shop_", "1st", "class", "json", "leftfold", "pydantic", "redis", "tests", ""]
)
def test_a_name_that_is_no_package_is_refused(typed: Typing, name: str) -> None:
    result = typed("new", name)
    assert result.code == 78
    assert "choose another name" in result.err or "cannot name a package" in result.err
