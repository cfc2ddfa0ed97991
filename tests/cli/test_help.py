"""Help: quick, complete and with examples."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from leftfold.cli import options
from leftfold.cli.main import COMMANDS as SECTIONS
from leftfold.engine.views import projection_writer as writer
from tests.cli.shell import ROOT, Shell, Typed

GROUPS = {"dead", "log", "reactions", "state", "timers", "topics"}
COMMANDS = sorted({name for section in SECTIONS.values() for name in section} - GROUPS)
HEAVY = ("confluent_kafka", "pydantic_settings", "pyspark", "redis", "rich", "structlog")


def test_the_first_tour_is_all_there() -> None:
    assert {"new", "dev", "up", "down", "status", "run", "send", "events", "get", "rebuild", "check"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(typed: Callable[..., Typed], command: str) -> None:
    told = typed(command, "--help")
    assert told.code == 0
    assert f"Usage: leftfold {command}" in told.out
    assert "Examples:\n    leftfold " in told.out


@pytest.mark.parametrize("words", ["timers list", "timers fire", "timers cancel"])
def test_commands_about_timers_have_help_with_examples(typed: Callable[..., Typed], words: str) -> None:
    told = typed(*words.split(), "--help")
    assert told.code == 0
    assert f"Usage: leftfold {words}" in told.out
    assert f"Examples:\n    leftfold {words} " in told.out


@pytest.mark.parametrize("words", ["", *sorted(GROUPS)])
def test_no_sentence_of_a_list_of_commands_is_cut(
    typed: Callable[..., Typed], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    told = typed(*words.split(), "--help").out
    assert not [line for line in told.splitlines()[1:] if line.endswith("...")]
    assert max(map(len, told.splitlines())) <= 80


def test_help_imports_nothing_heavy(shop: Shell) -> None:
    script = f"""
import sys
from leftfold.cli.main import run
assert run(["--help"]) == 0
print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""
    assert shop.python("-c", script).err.strip() == "[]"


def test_the_version_is_told(typed: Callable[..., Typed]) -> None:
    told = typed("--version")
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("leftfold 0.")


def test_a_misspelt_command_is_met_with_the_nearest(typed: Callable[..., Typed]) -> None:
    told = typed("sennd")
    assert told.code == 2
    assert "Did you mean 'send'?" in told.err


def test_a_wrong_option_shows_the_usage(typed: Callable[..., Typed]) -> None:
    told = typed("events", "baskets", "--tial", "3")
    assert told.code == 2
    assert "--tail" in told.err
    assert "help: leftfold events --help" in told.err


def test_options_have_the_engines_defaults() -> None:
    assert options.MAX_PARKED == writer.MAX_PARKED


def test_the_exit_codes_of_the_help_are_those_of_the_reference(typed: Callable[..., Typed]) -> None:
    told = re.findall(r"(\d+) ", typed("--help").out.partition("Exit codes:")[2])
    table = (ROOT / "docs" / "reference.md").read_text("utf-8").partition("## Exit codes")[2]
    assert told == re.findall(r"^\| (\d+) \|", table, re.MULTILINE)
    assert {"0", "1", "2", "3", "4", "69", "75", "78", "130"} == set(told)


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        (("diff",), "3"),
        (("explain",), "3"),
        (("get",), "4"),
        (("log", "verify-archive"), "3"),
        (("rebuild",), "3"),
        (("state", "verify"), "3"),
        (("verify",), "34"),
    ],
    ids=" ".join,
)
def test_a_command_that_ends_with_3_or_4_says_when(
    typed: Callable[..., Typed], words: tuple[str, ...], codes: str
) -> None:
    told = " ".join(typed(*words, "--help").out.split())
    assert all(re.search(rf"Exit code ({code} |[^.]*, {code} )when", told) for code in codes), told
