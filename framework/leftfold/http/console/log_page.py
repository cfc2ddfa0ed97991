"""The log itself: the topics with their settings against what they should be, and SQL over all events."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from operator import itemgetter
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments

from leftfold.http.console.console_state import Visitor
from leftfold.http.console.elements import fetched, form, heading, html, panel, submit, with_name
from leftfold.http.console.html import command, details, joined, sentence, table, tag
from leftfold.runtime.console import amount, csv_value, lasting
from leftfold.runtime.operations.sql_queries import LogQuery, json_value, sql_name
from leftfold.runtime.operations.topics import TopicRow, topic_rows
from leftfold.runtime.project import together

__all__ = ["csv_text", "sql", "topics"]

_ROWS = 1000
_SIZES = (
    "Offsets count records and the markers of transactions. Bytes on disk are shown by Kafka's own kafka-log-dirs.sh; "
    "replicas are added by its kafka-reassign-partitions.sh."
)
_LOW = 15
"""Up to so many rows a grid is as high as they need."""
_CHARTED = 200
"""Most rows of a chart."""
_EXACT = 2**53
"""The largest integer that a browser does not round."""
_QUERY_SECONDS = 600.0
"""How long a query may run: others wait for it."""
_LONGEST_WORD = 100
_OFFERED = 8
"""Most words that are offered to continue one."""
_WORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "DISTINCT", "DESC",
    "COUNT", "SUM", "AVG", "MIN", "MAX", "BETWEEN", "CASE WHEN", "IS NULL", "DATE_TRUNC",
)  # fmt: skip
_TYPED = "(event) => emit(event.target.value, [...event.target.value.slice(0, event.target.selectionStart)].length)"
"""What was typed, and where the cursor is in characters, which JavaScript counts otherwise."""
_TAKEN = r"""(event) => {
  const word = event.target.closest("[data-word]")?.dataset.word;
  const query = event.currentTarget.closest("form").querySelector("textarea");
  if (!word) return;
  const begun = query.value.slice(0, query.selectionStart).match(/[\p{L}\p{N}_]*$/u)[0].length;
  query.focus();
  query.setRangeText(word, query.selectionStart - begun, query.selectionEnd, "end");
  query.dispatchEvent(new Event("input", { bubbles: true }));
  emit(query.value, [...query.value.slice(0, query.selectionStart)].length);
}"""
"""Puts a word in place of the one before the cursor, in the browser: what is typed meanwhile stays."""


async def topics(visitor: Visitor) -> None:
    """The page of topics."""
    heading("Topics", "The topics of these Apps: what they hold, and settings that differ from those of a new topic.")

    def read() -> tuple[list[TopicRow], str]:
        return topic_rows(visitor.console.apps.values(), visitor.console.servers[0])

    def shown(read: tuple[list[TopicRow], str]) -> None:
        found, warning = read
        wrong = [row for row in found if row.differences or (row.partitions not in (row.wanted, None) and row.wanted)]
        with panel("Settings"):
            if warning:
                html(sentence(warning), cls="lf-error")
            elif not wrong:
                html(tag("p", "Every topic is set as a new one would be.", cls="lf-fine"))
            rows = [
                (row.name, tag("code", name), tag("del", value), tag("ins", wanted))
                for row in wrong
                for name, value, wanted in (*row.differences, *_counts(row))
            ]
            if rows:
                html(table(("topic", "setting", "is", "should be"), rows, label="Settings that differ"))
                line = visitor.console.shell("topics", "ensure")
                why = "A difference may be meant; one that breaks a guarantee keeps the App from starting. See: "
                html(tag("p", why, command(line), cls="lf-quiet"))
        with panel(amount(len(found), "topic")):
            columns = ("topic", "app", "partitions#", "replicas#", "offsets#", "deleted#", "cleanup", "retention#")
            html(table(columns, [_topic(row) for row in found], label="Topics"))
            html(tag("p", _SIZES, cls="lf-quiet"))
            missing = [row.name for row in found if row.partitions is None]
            if missing:
                line = visitor.console.shell("topics", "ensure")
                html(tag("p", "Topics that are not made yet are made by the first run, or by: ", command(line)))

    await fetched(read, shown, what="asking the brokers")


def _counts(row: TopicRow) -> list[tuple[str, str, str]]:
    if row.wanted is None or row.partitions in (row.wanted, None):
        return []
    return [("partitions", str(row.partitions), str(row.wanted))]


def _topic(row: TopicRow) -> Sequence[object]:
    if row.partitions is None:
        return (row.name, row.app, tag("span", "not made yet", cls="lf-badge lf-warn"), "", "", "", "", "")
    retained = row.retention
    kept = "unknown" if retained is None else "for ever" if retained < 0 else lasting(retained / 1000)
    retention = "last of each key" if row.cleanup == "compact" else kept
    deleted = f"{row.deleted:,}" if row.deleted else "none"
    return (row.name, row.app, row.partitions, row.replicas, f"{row.offsets:,}", deleted, row.cleanup, retention)


def csv_text(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as comma-separated values; no spreadsheet runs a cell as a formula."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([csv_value(column) for column in columns])
    writer.writerows([csv_value(json_value(value)) for value in row] for row in rows)
    return text.getvalue()


class _Session:
    """The one Spark session of a console, started by the first query; one query runs at a time."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="sql")
        """One thread: a query that is left runs to its end, and the next one waits for it."""
        self.queries: LogQuery | None = None

    def answer(self, visitor: Visitor, statement: str) -> tuple[list[str], list[tuple[Any, ...]], str]:
        """The columns and rows of an answer, and a remark on what it leaves out."""
        if self.queries is None:
            kafka, _, archive = visitor.console.servers
            queries = LogQuery(
                together(visitor.console.apps.values()), kafka, archive, rows=_ROWS, seconds=_QUERY_SECONDS
            )
            queries.__enter__()
            visitor.console.at_end(queries.close)
            self.queries = queries
        with self.queries.answered(statement) as answer:
            rows = list(answer)
            remark = self.queries.misfits
        if answer.cut:
            cut = f"only the first {len(rows):,} rows are shown; ask for fewer, or type it in a shell with --limit"
            remark = f"{cut}. {remark}" if remark else cut
        return list(answer.columns), rows, remark


async def sql(visitor: Visitor, q: str = "") -> None:
    """The page that asks the log in SQL."""
    heading("SQL", "A query over every event of the log, on Spark: each event type and each category is a table.")
    session: _Session = visitor.console.shared("sql", _Session)
    deciders = visitor.console.deciders()
    table_ = sql_name(next(iter(deciders), "category"))
    example = f"SELECT _type, count(*) AS events FROM {table_} GROUP BY _type ORDER BY 2 DESC"  # noqa: S608  # shown only

    tables = _tables(visitor)

    def run() -> None:
        ui.navigate.to(visitor.route("/sql", q=(typed.value or "").strip()))

    def offer(event: GenericEventArguments) -> None:
        words = completions(str(event.args[0]), int(event.args[1]), tables)
        buttons = (tag("button", tag("code", one), type="button", cls="lf-copy", data_word=one) for one in words)
        offered.set_content(joined(buttons))

    with panel():
        with form(run):
            typed = ui.textarea("Query", value=q or example).props("outlined autogrow spellcheck=false")
            typed.classes("lf-editor").on("keyup", offer, js_handler=_TYPED).on("click", offer, js_handler=_TYPED)
            offered = with_name(html(cls="lf-words").props("role=group"), "Words that continue the one at the cursor")
            offered.on("click", offer, js_handler=_TAKEN)
            submit("Run query")
        html(tag("p", "Words that fit stand below the query: Tab goes to them, Enter takes one.", cls="lf-quiet"))
        html(details("Tables and columns", tables))
        html(
            tag(
                "p",
                "The same in a shell: ",
                command(visitor.console.shell("log", "sql", "--", q or example)),
                cls="lf-quiet",
            )
        )
    if not q:
        return
    with panel("Answer"):
        started = "running the query" if session.queries else "starting Spark, which takes some seconds"
        await fetched(lambda: session.answer(visitor, q), _shown, what=started, threads=session.threads)


def _shown(found: tuple[list[str], list[tuple[Any, ...]], str]) -> None:
    columns, rows, remark = found
    if remark:
        html(tag("p", remark, cls="lf-quiet"))

    def download() -> None:
        ui.download.content(csv_text(columns, rows), "answer.csv", "text/csv")

    with ui.element("div").classes("lf-buttons"):
        html(tag("span", amount(len(rows), "row"), cls="lf-badge"))
        ui.button("Download as CSV", on_click=download, color=None).props("no-caps unelevated dense").classes(
            "lf-button"
        )
        if (chart := chart_of(columns, rows)) is not None:
            shapes = ui.toggle(["Grid", "Chart"], value="Grid").classes("lf-shapes")
            shapes.props("no-caps unelevated dense role=group toggle-color=lf toggle-text-color=lf")
            with_name(shapes, "How the answer is shown").on_value_change(lambda event: draw(event.value))
    drawn = ui.element("div")

    def draw(shape: str) -> None:
        drawn.clear()
        with drawn:
            if shape == "Chart" and chart is not None:
                names = ", ".join(series["name"] for series in chart["series"])
                found = ui.echart(chart, renderer="svg").classes("lf-chart").props("role=img")
                with_name(found, f"Chart of {names} by {chart['xAxis']['name']}")
            else:
                _show_grid(columns, rows)

    draw("Grid")


def _show_grid(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    fields = [f"c{number}" for number in range(len(columns))]
    options: dict[str, Any] = {
        "columnDefs": [
            {"headerName": name, "field": field, "resizable": True, "sortable": True, "filter": True, "minWidth": 110}
            for name, field in zip(columns, fields, strict=True)
        ],
        "rowData": [dict(zip(fields, map(_cell, row), strict=True)) for row in rows],
        "enableCellTextSelection": True,
        "domLayout": "autoHeight" if len(rows) <= _LOW else "normal",
    }
    ui.aggrid(options).classes("lf-low" if len(rows) <= _LOW else "")


def chart_of(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> dict[str, Any] | None:
    """The options of a chart of an answer; None = it has no column of numbers, or too few or too many rows.

    The columns of numbers are drawn as lines over a first column of times, else as bars by the first other column.
    """
    values = list(zip(*rows, strict=True))
    numeric = [n for n, column in enumerate(values) if _is_numeric(column)]
    if not numeric or not 2 <= len(rows) <= _CHARTED:
        return None
    others = [n for n in range(len(columns)) if n not in numeric] or (numeric[:1] if len(numeric) > 1 else [])
    series = [n for n in numeric if n not in others]
    texts = [str(json_value(value))[:200] for value in values[others[0]]] if others else []
    places: list[Any] = texts or list(range(1, len(rows) + 1))
    if is_time := all(isinstance(value, date) for value in values[0]):
        places = [_milliseconds(value) for value in values[0]]
    axis = {"type": "time"} if is_time else {"type": "category", "data": places}
    return {
        "animation": False,
        "useUTC": True,
        "tooltip": {"trigger": "axis"},
        "legend": {},
        "xAxis": {**axis, "name": columns[others[0]] if others else "row", "nameLocation": "middle", "nameGap": 30},
        "yAxis": {"type": "value"},
        "series": [
            {
                "name": columns[n],
                "type": "line" if is_time else "bar",
                "data": sorted(zip(places, numbers, strict=True), key=itemgetter(0)) if is_time else numbers,
            }
            for n in series
            for numbers in [[None if value is None else float(value) for value in values[n]]]
        ],
    }


def _is_numeric(values: Sequence[Any]) -> bool:
    found = [value for value in values if value is not None]
    return bool(found) and all(isinstance(one, int | float | Decimal) and not isinstance(one, bool) for one in found)


def _milliseconds(value: date) -> float:
    """A time in ms since 1970; one without a zone, and the beginning of a date, are taken as UTC."""
    moment = value if isinstance(value, datetime) else datetime.combine(value, time())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000


def completions(text: str, cursor: int, tables: Mapping[str, Sequence[str]]) -> list[str]:
    """Up to 8 names and words of SQL that continue the word before the cursor.

    Columns of tables that the text names come first.

    Args:
        cursor: in characters. tables: the columns of each table.
    """
    # Names are short: in a long literal the search would take the square of its length.
    begun = re.search(r"\w*\Z", text[max(0, cursor - _LONGEST_WORD) : cursor])
    if begun is None or not (word := begun[0].lower()):
        return []
    named = set(re.findall(r"\w+", f"{text[: cursor - len(word)]} {text[cursor:]}".lower()))
    near = [column for name, columns in tables.items() if name.lower() in named for column in columns]
    names = [*near, *tables, *(column for columns in tables.values() for column in columns)]
    is_quoted = text[: cursor - len(word)].endswith("`")
    known = {name: f"{name}`" if is_quoted else sql_name(name) for name in names} | {one: one for one in _WORDS}
    fitting = (one for one in known if one.lower().startswith(word) and one.lower() != word)
    return [known[one] for one in fitting][:_OFFERED]


def _cell(value: Any) -> Any:
    value = json_value(value)
    is_exact = isinstance(value, float | str) or (isinstance(value, int) and abs(value) <= _EXACT)
    return value if value is None or is_exact else str(value)


def _tables(visitor: Visitor) -> Mapping[str, Sequence[str]]:
    """The tables by name, each with its fields."""
    found: dict[str, list[str]] = {}
    for category, (_, decider) in visitor.console.deciders().items():
        for cls in decider.events:
            fields = list(cls.model_fields)
            found[cls.__leftfold__.name] = fields
            found.setdefault(category, []).extend(name for name in fields if name not in found[category])
    own = ["_key", "_time", "_sequence", "_partition", "_offset", "_id"]
    for category in visitor.console.deciders():
        found[category] += ["_type", "_correlation", "_causation"]
    return {name: [*fields, *own] for name, fields in sorted(found.items())}
