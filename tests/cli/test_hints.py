"""Commands that a message tells to type work as they stand, for the App that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from leftfold.cli.main import spec_in
from leftfold.runtime.project import note_apps
from tests.cli.shell import Typed

SPEC = "shop.booking:app"


@pytest.mark.parametrize(
    ("text", "specs", "told"),
    [
        ("no workers; start: leftfold run booking", [SPEC], f"for these commands: export LEFTFOLD_APP={SPEC}\n"),
        ("see: leftfold run a", [SPEC, "b:app"], f"for these commands: export LEFTFOLD_APP={SPEC} or b:app\n"),
        ("see: leftfold run a", [""], ""),
        ("no command is in it", [SPEC], ""),
    ],
)
def test_commands_in_a_message_find_the_app_that_was_named(
    text: str, specs: list[str], told: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note_apps(text, specs)
    assert capsys.readouterr().err == told


def test_an_app_that_is_found_anyway_is_not_named(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "pyproject.toml").write_text(f'[tool.leftfold]\napp = ["other:app", "{SPEC}"]\n')
    monkeypatch.setenv("LEFTFOLD_APP", "b:app")
    note_apps("see: leftfold run booking", [SPEC, "b:app"])
    assert capsys.readouterr().err == ""


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
