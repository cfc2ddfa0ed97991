"""What `leftfold top` shows: what needs the operator first, on a terminal of any size."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from leftfold.cli.health.top import _drawn, _members, _table, ranked
from leftfold.model.keys import NO_ROW
from tests.cli.shell import Shell
from tests.cli.terminal import COMMAND, CTRL_C, Terminal
from tests.servers import Addresses


def row(name: str = "orders", **fields: Any) -> dict[str, Any]:
    """A member with nothing to do."""
    common = {"kind": "decider", "name": name, "problems": [], "remarks": [], "running": 1, "lag": 0, "behind": 0.0}
    return common | {"parked": None, "dead": 0, "done": 0} | fields


def test_what_needs_the_operator_comes_first() -> None:
    rows = [
        row("idle"),
        row("computed", kind="view", running=None, lag=7, remarks=["view computed is kept by batch and swap"]),
        row("behind", behind=9.0, lag=1),
        row("dead", dead=3),
        row("down", running=0),
        row("broken", problems=["start: leftfold run broken"]),
        row("far", behind=90.0, lag=1),
    ]
    expected = ["broken", "down", "dead", "far", "behind", "computed", "idle"]
    assert [one["name"] for one in ranked(rows)] == expected


def test_a_view_that_is_not_late_needs_no_operator_although_no_projector_is_counted() -> None:
    """Spark's streams of folded views are not counted as projectors."""
    view = {"kind": "view", "name": "v", "problems": [], "remarks": [], "projectors": 0, "lag": 1}
    dead = row("dead", dead=1)
    for behind, expected in ((0.2, ["dead", "v"]), (60.0, ["v", "dead"]), (None, ["v", "dead"])):
        rows = ranked([*_members(view | {"behind": behind}), dead])
        assert [one["name"] for one in rows] == expected
        drawn = _table([one | dict.fromkeys(("rate", "p50", "p99")) for one in rows], 80)
        (cell,) = [cell for cell in drawn.columns[0].cells if str(cell) == "view v"]
        assert getattr(cell, "style", None) == ("" if behind == 0.2 else "red")


def _printed(*looks: Mapping[str, Any]) -> str:
    """Looks as lines, as wide as the table needs."""
    console = Console(file=(out := StringIO()), width=200)
    for look in looks:
        console.print(_drawn(look, console))
    return out.getvalue()


def test_a_look_is_drawn_as_its_problems_and_a_table_below() -> None:
    quiet = row("orders", rate=None, p50=None, p99=None, dead=0)
    busy = row("stock", rate=1234.5, lag=12_345, behind=2.5, p50=0.0126, p99=1.5, dead=3, problems=["start: it"])
    first = {"time": "2026-01-01T00:00:00.000Z", "rows": [quiet], "problems": []}
    second = {"time": "2026-01-01T00:00:02.000Z", "rows": [busy, quiet], "problems": ["redis: no\x1b[2J answer"]}
    lines = [line.split() for line in _printed(first).splitlines()]
    assert lines == [
        ["2026-01-01T00:00:00.000Z"],
        ["nothing", "needs", "you"],
        [],
        ["member", "running", "rate/s", "lag", "behind", "p50", "p99", "parked", "dead"],
        ["decider", "orders", "1", "–", "0", "0.0", "s", "–", "–", "–", "0"],
    ]
    of_both = _printed(first, second).splitlines()
    assert of_both[: len(lines)] == _printed(first).splitlines()
    time, *problems, _, _, row_of_stock, row_of_orders = of_both[len(lines) :]
    assert time == "2026-01-01T00:00:02.000Z"
    assert row_of_stock.split()[1:] == ["stock", "1", "1,234.5", "12,345", "2.5", "s", "13", "ms", "1.5", "s", "–", "3"]
    assert row_of_orders.split() == lines[4]
    assert problems[0] == "! start: it"
    assert problems[1].startswith("! redis: no")
    assert "\x1b" not in problems[1], "what a server says moves no cursor"


def live(width: int, height: int, *rows: Mapping[str, Any]) -> list[str]:
    """What a terminal of this size shows of a look."""
    console = Console(file=(out := StringIO()), width=width, height=height, force_terminal=True, color_system=None)
    found = {"time": "2026-01-01T00:00:00.000Z", "rows": rows, "problems": []}
    with Live(console=console, auto_refresh=False, screen=True) as shown:
        out.truncate(out.seek(0))
        shown.update(_drawn(found, console, height), refresh=True)
        return [line.rstrip() for line in out.getvalue().removeprefix("\x1b[H").splitlines()]


def member(number: int, **fields: Any) -> dict[str, Any]:
    return row(f"member{number:02}", rate=1.5, p50=0.1, p99=0.1, lag=1_234_567, behind=900.0, dead=3, **fields)


def test_what_needs_the_operator_is_shown_however_many_members_there_are() -> None:
    sentence = "view v is 900 s behind; start one: leftfold run v"
    lines = live(80, 24, member(0, problems=[sentence]), *map(member, range(1, 30)))
    assert lines[1] == f"! {sentence}"
    assert (len(lines), sum("decider member" in line for line in lines)) == (24, 20)
    many = [member(number, problems=[f"problem {number}: {'why ' * 30}"]) for number in range(30)]
    lines = live(80, 24, *many)
    assert sum(line.startswith("! problem") for line in lines) == 4
    assert "… and 26 more: leftfold status" in lines
    assert sum("decider member" in line for line in lines) >= 11
    lines = live(80, 24, member(0, problems=[f"problem {number}" for number in range(30)]))
    assert sum(line.startswith("! problem") for line in lines) == 19, "one row needs no half of the screen"


def test_remarks_are_shown_quietly_and_are_no_reason_to_come_first() -> None:
    remark = f"view v leaves out 1 event without a row; leftfold explain v '{NO_ROW}'"
    view = {"kind": "view", "name": "v", "parked": [NO_ROW], "problems": [], "remarks": [remark], "lag": 0, "done": 0}
    (found,) = _members(view)
    assert (found["parked"], found["running"], found["problems"]) == (0, None, [])
    lines = live(80, 24, found | dict.fromkeys(("rate", "p50", "p99")))
    assert lines[1:3] == ["nothing needs you", remark]


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (83, "member running rate/s lag behind p50 p99 parked dead"),
        (82, "member running rate/s lag behind p99 parked dead"),
        (66, "member running lag behind parked dead"),
        (54, "member lag behind parked dead"),
        (40, "member lag parked dead"),
    ],
)
def test_a_narrow_terminal_has_fewer_columns_and_no_number_is_cut(width: int, columns: str) -> None:
    _, _, _, heading, cells = live(width, 24, member(0))[:5]
    assert heading.split() == columns.split()
    assert cells.startswith("decider mem")
    numbers = {
        "running": "1",
        "rate/s": "1.5",
        "lag": "1,234,567",
        "behind": "900.0 s",
        "p50": "100 ms",
        "p99": "100 ms",
    }
    expected = [numbers.get(name, {"parked": "–"}.get(name, "3")) for name in columns.split()[1:]]
    assert re.split(r" {2,}", cells)[1:] == expected


@pytest.mark.parametrize(
    ("width", "columns"),
    [(33, "member lag parked dead"), (32, "member parked dead"), (21, "member dead"), (13, "member"), (5, "member")],
)
def test_the_name_of_a_member_is_what_stays_on_the_narrowest_terminal(width: int, columns: str) -> None:
    table = _table([member(0)], width)
    assert [column.header for column in table.columns] == columns.split()
    assert table.columns[0].width == {33: 8, 32: 16, 21: 15, 13: 13, 5: 5}[width]


def test_the_live_table_is_drawn_look_by_look_until_ctrl_c_gives_the_terminal_back(tmp_path: Path) -> None:
    shell = Shell(tmp_path).at(Addresses("127.0.0.1:1", "redis://127.0.0.1:1"))
    words = ["top", "--app", "tests.domains.shop:app", "--every", "100ms"]
    environment = shell._environment | {"LEFTFOLD_KAFKA_REQUEST_TIMEOUT": "0.05"}
    with Terminal([*COMMAND, *words], tmp_path, environment) as terminal:
        terminal.wait_shown(r"(?s)(Z\s+! no broker at 127.0.0.1:1 .*\smember\s.*){2}")
        assert terminal.raw.count("\x1b[?1049h") == 1
        assert "\x1b[?1049l" not in terminal.raw
        terminal.type(CTRL_C)
        assert terminal.ended() == 130
        assert terminal.raw.count("\x1b[?1049l") == 1
        assert terminal.raw.count("\x1b[?25h") == 1, "and its cursor"
        assert "Traceback" not in terminal.shown
