"""What clients say reaches neither terminal nor log as anything but text, whatever command repeats it."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from leftfold import FoldView
from leftfold.cli.data.get import _show_changes, _show_entry
from leftfold.cli.views.explain import _tell
from leftfold.client import Change, Entry
from leftfold.engine.verify.history import RowStep, RowUpdate
from leftfold.engine.views.decoding import Decoded
from leftfold.model.position import Position
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.console import csv_rows, emit, say, styled
from leftfold.runtime.logging import open_report
from leftfold.safety import printable
from tests.cli.shell import ROOT, Shell, Typed, running, serving
from tests.domains.shop import CheckedOut
from tests.servers import Addresses
from tests.waiting import wait_until

HOSTILE = "\x1b[31m\x07\x9b2J\u202egnp\u2028x\r\nforged: line\t\x7f\u200f[sku-1][/x]"
STEERING = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def board(empty_servers: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A project at work, with events, rows, parked rows and events, and dead letters that repeat a hostile text."""
    shell = Shell(tmp_path_factory.mktemp("board")).at(empty_servers)
    (shell.place / "pyproject.toml").write_text('[tool.leftfold]\napp = "tests.cli.noticeboard:app"\n')
    with serving(shell, "notices", "board", "by_text", "poster"):
        for id_ in ("first", HOSTILE):
            fields = json.dumps({"notice": HOSTILE, "text": HOSTILE})
            assert shell("send", "Pin", fields, "--id", id_).code == 0
        bury(empty_servers)
        shell.wait_said("dead letters", "parked")
        # The reaction parks as well, and may be ahead of the view.
        wait_until(lambda: shell("get", "board", HOSTILE).code == 0, shell.said)
        wait_until(lambda: shell("reactions", "parked", "poster").code == 1, shell.said)
        yield shell


def bury(servers: Addresses) -> None:
    producer = Producer({"bootstrap.servers": servers.kafka})
    headers: list[tuple[str, str | bytes | None]] = [("ce_type", b"notices.\x1b[2J\n.v1"), ("ce_id", HOSTILE.encode())]
    producer.produce("notices.commands", b'{"\x1b": "\\ud800\\u202e"', HOSTILE.encode(), headers=headers)
    assert producer.flush(240.0) == 0


@pytest.mark.servers
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("events", "notices"), 0),
        (("events", "notices", HOSTILE), 0),
        (("events", "notices", HOSTILE, "--json"), 0),
        (("events", "notices", f"{HOSTILE}?"), 1),
        (("get", "board", HOSTILE), 0),
        (("get", "board", HOSTILE, "--json"), 0),
        (("get", "board", f"{HOSTILE}?"), 1),
        (("explain", "board", HOSTILE), 3),
        (("explain", "board", f"{HOSTILE}?"), 1),
        (("watch", "board", "--after", "notices.events[0:0]", "--limit", "1"), 0),
        (("verify", "board"), 0),
        (("rebuild", "board", "--engine", "local"), 0),
        (("rebuild", "board", "--as-of", "notices.events[0:1]", "--name", HOSTILE), 2),
        (("log", "trace", HOSTILE), 0),
        (("log", "trace", HOSTILE, "--json"), 0),
        (("dead", "list"), 1),
        (("dead", "show", "notices.dead[0]@0"), 0),
        (("dead", "show", "notices.dead[0]@0", "--json"), 0),
        (("reactions", "parked", "poster"), 1),
        (("timers", "list", HOSTILE), 2),
        (("status",), 0),
        (("status", "--json"), 0),
        (("send", "Pin", json.dumps({"notice": "n", "text": f"no{HOSTILE}"})), 1),
        (("send", HOSTILE, "{}"), 2),
        (("--traceback", "get", HOSTILE, HOSTILE), 2),
    ],
    ids=lambda value: printable(" ".join(value))[:60] if isinstance(value, tuple) else "",
)
def test_no_command_prints_what_steers_a_terminal(board: Shell, words: tuple[str, ...], code: int) -> None:
    result = board(*words)
    assert result.code == code, result.err
    assert_steers_nothing(result)
    assert words in (("verify", "board"), ("dead", "list")) or "[sku-1]" in re.sub(r"\s", "", result.out + result.err)
    if "--json" in words:
        result.rows()


def assert_steers_nothing(result: Typed) -> None:
    printed = result.out.replace("\r\n", "\n") + result.err
    assert not STEERING.findall(printed)
    assert not [line for line in printed.split("\n") if line.startswith("forged")]


@pytest.mark.servers
@pytest.mark.usefixtures("_spark")
def test_no_answer_of_spark_steers_a_terminal_and_json_is_exact(board: Shell) -> None:
    for form in ((), ("--json",), ("--csv",)):
        result = board("log", "sql", "SELECT text, '[/x]' AS `[b]` FROM Pinned", *form).ok()
        assert_steers_nothing(result)
        assert form or "[sku-1]" in re.sub(r"\s", "", result.out)
        assert "[/x]" in result.out
        assert form == ("--json",) or "[b]" in result.out
    assert board("events", "notices", "--json").rows()[0]["event"]["text"] == HOSTILE


@pytest.mark.servers
def test_an_event_without_a_row_is_counted_and_explained(board: Shell) -> None:
    """Runs behind the other questions."""
    for text in ("", "behind", ""):
        assert board("send", "Pin", json.dumps({"notice": f"x{text}", "text": text})).code == 0
    wait_until(lambda: board("get", "by_text", "behind", "--json").code == 0, board.said)
    left_out = "view by_text leaves out 2 events without a row; leftfold explain by_text '(no row)'"
    wait_until(lambda: left_out in board("status").err, lambda: board("status").err)
    result = board("explain", "by_text", "(no row)")
    assert [line for line in result.out.splitlines() if "Pinned" in line and " x v" in line], result.out
    assert "NoRowKey: a row key may not be empty" in result.out
    assert "correct key= and type leftfold rebuild by_text" in result.err
    result = board("retry", "by_text", "(no row)")
    assert (result.code, "correct key= and rebuild" in result.out) == (1, True), result.err
    verified = board("verify", "by_text")
    assert (verified.code, "(no row)" in verified.out) == (0, True), verified.out + verified.err


@pytest.mark.faults
@pytest.mark.servers
def test_an_amount_that_fits_no_column_is_passed_over_and_named(board: Shell, place: Path) -> None:
    """Runs behind the other questions."""
    assert board("send", "Pin", '{"notice": "heavy", "text": "x", "weight": "1E+400000"}').code == 0
    result = board("log", "sql", "SELECT DISTINCT weight FROM Pinned", "--json")
    assert (result.code, result.rows()) == (0, [{"weight": "0E-10"}]), result.err
    named = "1 event passed over, since a value does not fit its column: notices.events[0]@"
    assert named in result.err
    assert "(weight)" in result.err
    result = board("log", "sql", "SELECT DISTINCT weight FROM Pinned")
    assert result.err.splitlines()[-1].startswith(named)
    result = board("rebuild", "weights").ok()
    assert f"view weights: {named}" in result.err
    assert board("get", "weights", "heavy").code == 1
    assert board("get", "weights", HOSTILE).code == 0
    stream = Shell(place, board._environment)
    with running(stream, "run", "weights", "--app", "tests.cli.noticeboard:app"):
        stream.wait_said("generation live", "events passed over")
    assert named in stream.said()


def test_lines_of_a_log_for_people_cannot_be_forged() -> None:
    out = io.StringIO()
    report = open_report("projector", as_json=False, stream=out)
    report("parked", {"why": HOSTILE, "keys": [HOSTILE]})
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        report("failed", {"exc_info": True})
    first, second, *trace = out.getvalue().rstrip("\n").split("\n")
    assert (first[9:19], second[9:19]) == ("projector ", "projector ")
    assert all(line.startswith("  ") for line in trace)
    assert not STEERING.findall(out.getvalue())


def test_lines_of_a_log_in_json_are_lines() -> None:
    out = io.StringIO()
    open_report("projector", as_json=True, stream=out)("parked", {"why": f"{HOSTILE}\ud800"})
    assert out.getvalue().isascii()
    assert len(out.getvalue().splitlines()) == 1
    assert json.loads(out.getvalue())["why"] == f"{HOSTILE}\ud800"


def test_colours_are_added_behind_the_cleaning(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdout", screen := Screen())
    say(styled("\x1b[8mhidden", fg="red"), "\x1b[8m\n")
    assert screen.getvalue() == "\x1b[31m\\x1b[8mhidden\x1b[0m\\x1b[8m\\x0a\n"


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=cmd|'/C calc'!A0", "'=cmd|'/C calc'!A0"),
        ("+1+1", "'+1+1"),
        ("-1+cmd", "'-1+cmd"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\\x09=1"),
        ("\r=1", "'\\x0d=1"),
        ("-1.50", "-1.50"),
        ("+3e5", "+3e5"),
        (-5, "-5"),
        (Decimal("-1.50"), "-1.50"),
        (None, ""),
        ("a=b", "a=b"),
        ([Decimal("1.50"), None], '["1.50",null]'),
        ({date(2026, 1, 1): {"a": "ä"}}, '{"2026-01-01":{"a":"ä"}}'),
    ],
)
def test_a_spreadsheet_finds_no_formula(value: object, cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    csv_rows(["=a"], [[value]])
    assert list(csv.reader(io.StringIO(capsys.readouterr().out))) == [["'=a"], [cell]]


def test_nothing_else_of_the_command_line_prints() -> None:
    found = {
        f"{path.name}: {line.strip()}"
        for path in (ROOT / "framework" / "leftfold" / "cli").rglob("*.py")
        if path.name != "console.py"
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"\bs?print\(|typer\.s?echo|secho|std(out|err)\.write|typer\.style|Console\(\)", line)
    }
    assert not found


def test_what_a_question_repeats_is_cleaned(typed: Callable[..., object]) -> None:
    """Usage errors repeat what was typed."""
    result = typed("nothing\x1b[2J")
    assert not STEERING.findall(result.err)  # type: ignore[attr-defined]


def test_numbers_that_json_does_not_have_are_null(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"nan": float("nan"), "far": [float("-inf")], "near": 0.5})
    assert capsys.readouterr().out == '{"nan":null,"far":[null],"near":0.5}\n'


def test_json_that_a_client_nested_deeply_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    deep = "[" * 500 + "]" * 500
    emit({"value": json.loads(deep), "at": Decimal("1.50")})
    assert capsys.readouterr().out == f'{{"value":{deep},"at":"1.50"}}\n'


@dataclass(frozen=True)
class Card:
    ref: str


@dataclass(frozen=True)
class Cash:
    ref: str


@dataclass(frozen=True)
class Bill:
    how: Card | Cash


def test_get_watch_and_explain_name_the_class_in_a_union(capsys: pytest.CaptureFixture[str]) -> None:
    view = FoldView("bills", events=CheckedOut, row=Bill, evolve=lambda row, event: row)
    card, cash = Bill(Card("x")), Bill(Cash("x"))
    event: Any = CheckedOut(basket_id="b", household="h", total=Decimal(1), lines=())
    decoded = Decoded("t", 0, 0, "b", event, None, 1, True, "2026-01-01T00:00:00Z", b"baskets.CheckedOut.v1")
    step = RowStep(RowUpdate("b", event, RawRecord("t", 0, 0, b"b", b"", ()), decoded), card, cash)
    for as_json, shown in ((True, '{"how":{"@":"Cash","ref":"x"}}'), (False, '{"@": "Cash", "ref": "x"}')):
        _show_entry(view, "b", Entry(cash, 1, Position(), None, "g"), as_json=as_json)
        assert shown in capsys.readouterr().out.replace("'", '"')
        _show_changes(view, [Change("b", cash, 1, Position())], None, keys=(), as_json=as_json)
        assert shown in capsys.readouterr().out
        _tell(view, step, as_json=as_json)
        assert shown in capsys.readouterr().out.replace("'", '"')
