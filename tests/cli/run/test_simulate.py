"""`leftfold simulate`, typed, and its pytest fixture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.shell import Typing

pytest_plugins = ["pytester"]

APP = "tests.simulation.theatre:app"
DOMAIN = ("--commands", "tests.simulation.theatre:commands", "--check", "tests.simulation.theatre:one_each")


def test_an_app_that_keeps_its_promises_is_said_to(typed: Typing) -> None:
    result = typed("simulate", APP, "--schedules", "10", *DOMAIN)
    assert (result.code, result.out.split(" (")[0]) == (0, "theatre: 10 schedules from seed 0 kept every promise")


def test_commands_are_drawn_by_their_classes(typed: Typing) -> None:
    result = typed("simulate", "services.loyalty.app:app", "--schedules", "3", "--json")
    assert (result.code, json.loads(result.out)["failure"]) == (0, None)


def test_the_first_broken_promise_is_shown_with_its_fewest_faults(typed: Typing) -> None:
    result = typed("simulate", APP, "--schedules", "500", *DOMAIN, "--new-ids", "--json")
    failure = json.loads(result.out)["failure"]
    assert result.code == 3
    assert "has two tickets for tonight" in failure["wrong"][0]
    assert failure["faults"]
    again = typed("simulate", APP, "--schedules", "1", "--seed", str(failure["seed"]), *DOMAIN, "--new-ids")
    first, wrong, *trace = again.out.splitlines()
    assert (again.code, first) == (3, "theatre: schedule 1 broke a promise")
    assert "has two tickets for tonight" in wrong
    assert len(trace) > 5, "each step of the trace is one line"


@pytest.mark.parametrize("how", ["argument", "option", "variable"])
def test_the_app_is_named_as_for_every_command(
    place: Path, typed: Typing, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    (place / "pyproject.toml").write_text('[tool.leftfold]\napp = "services.loyalty.app:app"\n', "utf-8")
    words = {"argument": [APP], "option": ["--app", APP], "variable": []}[how]
    if how == "variable":
        monkeypatch.setenv("LEFTFOLD_APP", APP)
    assert typed("simulate", *words, "--schedules", "1", "--json").ok().rows()[0]["app"] == "theatre"


@pytest.mark.parametrize("spec", ["tests.simulation.theatre:nothing", "no.such.module:at_all", "a word"])
def test_a_function_that_is_not_there_is_named(typed: Typing, spec: str) -> None:
    typed("simulate", APP, "--check", spec).ended(2, f"{spec!r} names no function")


def test_the_fixture_fails_with_the_trace_and_how_to_repeat_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from tests.simulation.theatre import app, commands, one_each

        def test_right(simulate):
            simulate(app, commands=commands, check=one_each, schedules=5)

        def test_wrong(simulate):
            simulate(app, commands=commands, check=one_each, same_ids=False, schedules=500)
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*theatre: schedule * broke a promise*", "*repeat it: pytest --schedules 1*"])
