"""Errors on the command line: a line or two and the right exit code."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leftfold import (
    ConfigurationError,
    ContractError,
    Fenced,
    InfrastructureError,
    LeftfoldError,
    OutcomeUnknown,
    StaleViewError,
    ViewNotBuilt,
)
from leftfold.cli.main import tell
from leftfold.runtime.project import Usage, unknown
from tests.cli.shell import Shell, Typed


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Usage("?"), 2),
        (ContractError("?"), 1),
        (ViewNotBuilt("?"), 1),
        (OutcomeUnknown("id"), 1),
        (StaleViewError("?"), 4),
        (InfrastructureError("?"), 69),
        (Fenced("?"), 75),
        (ConfigurationError("?"), 78),
        (KeyError("?"), 1),
    ],
)
def test_every_error_has_its_exit_code(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert tell(error) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2


def test_an_unforeseen_error_says_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ZeroDivisionError("oops")

    try:
        fail()
    except ZeroDivisionError as error:
        tell(error)
    told = capsys.readouterr().err
    assert "ZeroDivisionError: oops" in told
    assert "test_failures.py" in told
    assert "LEFTFOLD_TRACEBACK=1" in told
    assert "Traceback" not in told


def test_the_whole_traceback_is_there_when_asked_for(typed: Callable[..., Typed]) -> None:
    assert "Traceback" not in typed("get", "v", "k", "--app", "nothing:here").err
    assert "Traceback" in typed("--traceback", "get", "v", "k", "--app", "nothing:here").err


def test_an_unknown_name_comes_with_near_ones_and_all() -> None:
    error: LeftfoldError = unknown("view", "basket_sumary", ["store_totals", "basket_summary"])
    assert str(error) == (
        "there is no view 'basket_sumary'; did you mean basket_summary?\nknown: basket_summary, store_totals"
    )


def test_a_reader_who_has_left_is_not_complained_about(shop: Shell) -> None:
    script = """
import os, subprocess, sys
read, write = os.pipe()
os.close(read)
done = subprocess.run([sys.executable, "-m", "leftfold.cli", "--help"], stdout=write, stderr=subprocess.PIPE)
print(done.returncode, done.stderr.decode())
"""
    told = shop.python("-c", script)
    assert told.out.split(maxsplit=1)[0] != "0"
    assert "Traceback" not in told.out
    assert "error" not in told.out.lower()
