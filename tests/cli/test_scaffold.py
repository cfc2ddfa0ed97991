"""`leftfold new`: a project that passes its own tests, type checks and overwrites nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.shell import ROOT, Shell, Typed


def test_a_new_project_passes_its_own_tests(shop: Shell) -> None:
    told = shop.python("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    assert told.code == 0, told.out + told.err
    assert "12 passed" in told.out


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


def test_other_words_give_the_same_project_in_those_words(place: Path, typed: Callable[..., Typed]) -> None:
    assert typed("new", "cinema", "--category", "bookings", "--key", "booking").code == 0
    cinema = Shell(place / "cinema")
    tested = cinema.python("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    assert "12 passed" in tested.out, tested.out + tested.err
    format_ = ("-m", "ruff", "format", "--check", "--config", str(ROOT / "pyproject.toml"), "cinema", "tests")
    assert (formatted := cinema.python(*format_)).code == 0, formatted.out
    assert cinema("check").out == "ok: 1 decider, 2 events, 2 views, as in leftfold.lock\n"
    written = [path for path in (place / "cinema").rglob("*") if path.suffix in (".py", ".md", ".toml", ".lock")]
    assert [path for path in written if "cart" in path.name or "cart" in path.read_text("utf-8").lower()] == []
    events = (place / "cinema" / "cinema" / "events" / "bookings.py").read_text("utf-8")
    assert 'class _BookingEvent(Event, category="bookings", key="booking_id"):' in events
    assert '"booking_id": "b-1"' in (place / "cinema" / "README.md").read_text("utf-8")


def test_the_word_for_one_of_them_follows_from_the_category(place: Path, typed: Callable[..., Typed]) -> None:
    assert typed("new", "museum", "--category", "tours").code == 0
    assert 'key="tour_id"' in (place / "museum" / "museum" / "events" / "tours.py").read_text("utf-8")


def test_an_empty_project_has_an_app_and_a_test_that_passes(place: Path, typed: Callable[..., Typed]) -> None:
    assert typed("new", "blank", "--empty").code == 0
    blank = Shell(place / "blank")
    tested = blank.python("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider")
    assert "1 passed" in tested.out, tested.out + tested.err
    assert blank("check").out == "ok: 0 deciders, 0 events, 0 views, as in leftfold.lock\n"
    run = blank("run", "--kafka", "127.0.0.1:1")
    assert (run.code, "app blank has no deciders" in run.err) == (2, True)
    mixed = typed("new", "other", "--empty", "--category", "tours")
    assert (mixed.code, (place / "other").exists()) == (2, False)


@pytest.mark.parametrize(
    "words", [("Bookings", "booking"), ("bookings", "class"), ("products", "product"), ("2s", "x")]
)
def test_a_word_that_is_no_name_is_refused(place: Path, typed: Callable[..., Typed], words: tuple[str, str]) -> None:
    told = typed("new", "cinema", "--category", words[0], "--key", words[1])
    assert told.code == 78
    assert not (place / "cinema").exists()


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
