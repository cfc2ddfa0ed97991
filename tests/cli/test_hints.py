"""Commands that a message tells to type work as they stand, for the App that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leftfold.runtime.project import for_app, spec_in
from tests.cli.shell import Typed

SPEC = "shop.booking:app"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no workers; start: leftfold run booking", f"no workers; start: leftfold run --app {SPEC} booking"),
        ("see: leftfold timers list booking", f"see: leftfold timers list --app {SPEC} booking"),
        ("then: leftfold log skip booking; no more", f"then: leftfold log skip --app {SPEC} booking; no more"),
        ("leftfold drop spend 3-ab12 --yes", f"leftfold drop --app {SPEC} spend 3-ab12 --yes"),
        ("what leftfold run booking logs", f"what leftfold run --app {SPEC} booking logs"),
        ("run leftfold topics ensure --app package.module:app", "run leftfold topics ensure --app package.module:app"),
        ("start one: leftfold up", "start one: leftfold up"),
        ("see: leftfold log trace 1", "see: leftfold log trace 1"),
    ],
)
def test_a_hint_names_the_app(text: str, told: str, place: Path) -> None:
    assert for_app(text, SPEC) == told
    assert for_app(text, "") == text, "nothing was said behind --app"
    (place / "pyproject.toml").write_text(f'[tool.leftfold]\napp = "{SPEC}"\n')
    assert for_app(text, SPEC) == text, "the project's own App need not be named"


def test_what_was_said_behind_app_is_found() -> None:
    assert spec_in(["run", "--app", SPEC, "booking"]) == SPEC
    assert spec_in(["run", f"--app={SPEC}"]) == SPEC
    assert spec_in(["run", "--app"]) == ""
    assert spec_in(["run", "booking"]) == ""


def test_an_id_of_nothing_is_not_looked_for(typed: Callable[..., Typed]) -> None:
    told = typed("log", "trace", "")
    assert (told.code, told.out) == (2, "")
    assert told.err.startswith("error: whose trace? give the id of a command")


SOURCE = """
from dataclasses import dataclass
from datetime import datetime
from leftfold import App, Command, Decider, Delivery, Event, FoldView, Reaction

class Rung(Event, category="bells", key="bell"):
    bell: str
    at: datetime

class Ring(Command, category="bells", key="bell"):
    bell: str
    at: datetime

@dataclass(frozen=True)
class Row:
    times: int

def at(event: Rung) -> tuple[str, datetime]:
    return (event.bell, event.at)

bells = Decider("bells", commands=Ring, events=Rung, state=int, initial_state=0,
    decide=lambda command, state: [Rung(bell=command.bell, at=command.at)], evolve=lambda state, event: state + 1)
rung = FoldView("rung", events=Rung, row=Row, key=at, evolve=lambda row, event: Row(1))
tell = Reaction("telling", events=Rung, act=lambda event, delivery: None)
app = App("tower", deciders=[bells], views=[rung], reactions=[tell])
"""


def test_a_misspelt_name_is_looked_for_among_views_and_reactions(
    typed: Callable[..., Typed], module: Callable[[str], str]
) -> None:
    told = typed("retry", "teling", "--app", f"{module(SOURCE)}:app")
    assert told.code == 2
    assert "there is no view or reaction in app tower called 'teling'; did you mean telling?" in told.err
    assert "known: rung, telling" in told.err


def test_a_time_without_zone_is_no_part_of_a_key(typed: Callable[..., Typed], module: Callable[[str], str]) -> None:
    told = typed(
        "get", "rung", "b/2026-01-01T12:00", "--app", f"{module(SOURCE)}:app", "--redis", "redis://127.0.0.1:1"
    )
    assert told.code == 2, told.err
    assert "2026-01-01T12:00:00 has no time zone; write 2026-01-01T12:00:00Z for UTC" in told.err
