"""`leftfold top`: a live view of the members of Apps, with what needs the operator at the top."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.options import (
    AppsOption,
    ArchiveOption,
    JsonOption,
    KafkaOption,
    RedisOption,
    ScrapeOption,
    examples,
    seconds,
)
from leftfold.model.keys import NO_ROW
from leftfold.runtime.console import draw, emit
from leftfold.runtime.operations.components import FAR
from leftfold.runtime.operations.scrape import Rates, Scrape
from leftfold.runtime.operations.survey import Survey
from leftfold.runtime.project import Usage, archive_of, load_apps
from leftfold.runtime.telemetry_export import check_address
from leftfold.safety import printable, veiled

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table
    from rich.text import Text

__all__ = ["EXAMPLES", "ranked", "top"]

EXAMPLES = examples(
    "leftfold top",
    "leftfold top --metrics 127.0.0.1:9464     also p50 and p99, from what leftfold run --metrics serves",
    "leftfold top --once --json | jq .rows",
)

_GAP = 2
_LEFT_OUT = {"p50": None, "p99": None, "rate/s": None, "running": 12, "behind": 12, "lag": 8, "parked": 8, "dead": 8}
"""The columns that a narrow terminal has no room for, the first one first, unless members are cut to such a width."""
_LEAST = 3
"""Lines of sentences that are shown however low the terminal is."""
_COLUMNS = ("member", "running", "rate/s", "lag", "behind", "p50", "p99", "parked", "dead")


def ranked(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with those first that need the operator: problems, no process, dead and parked, seconds, then offsets.

    `running` is None where it is not known, as of views that Spark or a stream computes.
    """

    def pain(row: Mapping[str, Any]) -> tuple[Any, ...]:
        waiting = (row["dead"] or 0) + (row["parked"] or 0)
        return (-len(row["problems"]), not _is_down(row), -waiting, -(row["behind"] or 0.0), -(row["lag"] or 0))

    return sorted(rows, key=lambda row: (*pain(row), row["kind"], row["name"]))


def _is_down(row: Mapping[str, Any]) -> bool:
    """Whether no process is at work on a member; a view that is not late may be kept by Spark, which is not counted."""
    is_kept = row["kind"] == "view" and row["behind"] is not None and row["behind"] <= FAR
    return row["running"] == 0 and not is_kept


def top(
    every: Annotated[
        float, typer.Option("--every", metavar="TIME", parser=seconds, help="Seconds between looks: 500ms, 5s.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    metrics: ScrapeOption = "",
    app: AppsOption = None,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show deciders, processes, reactions, streams and views as they work, until Ctrl-C.

    What needs you is at the top, with the sentence that says why and the command to type. Below, per member: how many
    processes are at work, records per second, lag in offsets and in seconds, how long half and 99 % of the batches took
    since the last look, what is parked, and dead letters. The numbers are those of leftfold status; with --json each
    look is one line. Exit code 69 with --once when a server does not answer.
    """
    if not (once or as_json or sys.stdout.isatty()):
        raise Usage("standard output is no terminal: say --once, or --json for one line per look")
    if metrics:
        check_address(metrics)
    apps = list(load_apps(app or []).values())
    looks = _looks(apps, (kafka, redis, archive_of(archive)), metrics, every)
    if not (once or as_json):
        _live(looks)
    for found in looks:
        if as_json:
            emit(found)
            sys.stdout.flush()
        else:
            draw(_drawn(found, _console()))
        if once:
            raise typer.Exit(69 if found["missing"] else 0)


def _live(looks: Iterable[Mapping[str, Any]]) -> None:
    from rich.live import Live

    console = _console()
    with Live(console=console, auto_refresh=False, screen=True) as live:
        for found in looks:
            live.update(_drawn(found, console, console.height), refresh=True)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def _looks(
    apps: Sequence[Any], servers: tuple[str | None, str | None, str], metrics: str, seconds: float
) -> Iterator[dict[str, Any]]:
    """A look in every interval, without end: `time`, `rows`, further `problems`, whether a server is `missing`."""
    rates = Rates()
    while True:
        began, survey = time.monotonic(), Survey(*servers)
        rows = [one for app in apps for row in survey.members(app) for one in _members(row)]
        scrape = Scrape.read(metrics) if metrics else None
        rates.added(rows, scrape, time.monotonic())
        named = {problem for row in rows for problem in (*row["problems"], *row["remarks"])}
        others = [problem for problem in dict.fromkeys(survey.problems) if problem not in named]
        if metrics and scrape is None:
            others.append(f"{metrics}/metrics has no metrics of a run; start: leftfold run --metrics {metrics}")
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        yield {"time": at, "rows": ranked(rows), "problems": others, "missing": survey.missing}
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))


def _members(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The members in a row of the survey: a process is one, and its routers are another."""
    kind, name = row["kind"], row["name"]
    common = {"kind": kind, "name": name, **{of: list(map(veiled, row[of])) for of in ("problems", "remarks")}}
    if kind == "view":
        # Events without a row are no fault, and are not retried.
        parked = None if row.get("parked") is None else sum(key != NO_ROW for key in row["parked"])
        own = {"running": row.get("projectors"), "parked": parked, "dead": None}
        return [common | own | {key: row.get(key) for key in ("lag", "behind", "done")}]
    found = {key: row.get(key) for key in ("lag", "done", "parked", "dead")}
    found |= {"running": row.get("workers", row.get("running")), "behind": row.get("behind", row.get("untaken"))}
    if kind != "process":
        return [common | found]
    router = {"kind": "router", "running": row["routers"], "lag": row["unrouted_lag"], "behind": row["unrouted"]}
    rest = {"name": name, "problems": [], "remarks": [], "parked": None, "dead": None, "done": row["unrouted_done"]}
    return [common | found, router | rest]


def _drawn(found: Mapping[str, Any], console: Console, height: int | None = None) -> Group:
    """A look: sentences with what needs the operator, and the table below them.

    Args:
        height: lines of the terminal, which can show no more; sentences leave half of them to the table, or what it
            needs. None = any number.
    """
    from rich.console import Group
    from rich.text import Text

    def said(of: str) -> dict[str, None]:
        return dict.fromkeys(printable(one) for row in found["rows"] for one in row[of])

    problems = said("problems") | dict.fromkeys(printable(veiled(one)) for one in found["problems"])
    sentences = [Text.assemble(("! ", "yellow"), one) for one in problems] or [Text("nothing needs you", style="dim")]
    sentences += [Text(one, style="dim") for one in said("remarks") if one not in problems]
    if height is not None:
        room = max(_LEAST, height - min(height // 2, len(found["rows"]) + 1) - 3)
        sentences = _some(sentences, console, room)
    return Group(Text(found["time"], style="dim"), *sentences, Text(""), _table(found["rows"], console.width))


def _some(sentences: list[Text], console: Console, room: int) -> list[Text]:
    """The first sentences, as many as have room in so many lines, and how many others there are."""
    from rich.text import Text

    ends = list(accumulate(len(one.wrap(console, console.width)) for one in sentences))
    shown = max(1, sum(end <= room for end in ends))
    if not (others := len(sentences) - shown):
        return sentences
    return [*sentences[:shown], Text(f"… and {others:,} more: leftfold status", style="dim")]


def _table(rows: Sequence[Mapping[str, Any]], width: int) -> Table:
    """The rows as a table, without those columns for which a terminal of this width is too narrow."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(cell) for cell in _cells(row)] for row in rows]
    widths = {column[0]: max(map(cell_len, column)) for column in zip(_COLUMNS, *cells, strict=True)}
    longest = widths.pop("member")
    for name, member in _LEFT_OUT.items():
        if min(longest, member or longest) + sum(wide + _GAP for wide in widths.values()) > width:
            del widths[name]
    room = width - sum(wide + _GAP for wide in widths.values())
    widths = {"member": max(1, min(longest, room)), **widths}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, wide in widths.items():
        table.add_column(name, justify="left" if name == "member" else "right", no_wrap=True, width=wide)
    for row, found in zip(rows, cells, strict=True):
        style = "red" if row["problems"] or _is_down(row) else ""
        named = zip(_COLUMNS, found, strict=True)
        table.add_row(*(Text(cell, style=style) for name, cell in named if name in widths))
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    def number(value: float | None, form: str = ",.0f", unit: str = "") -> str:
        return "–" if value is None else f"{value:{form}}{unit}"

    def lasting(value: float | None) -> str:
        return number(value, ",.1f", " s") if value is None or value >= 1 else number(value * 1000, unit=" ms")

    return [
        f"{row['kind']} {row['name']}",
        number(row["running"]),
        number(row["rate"], ",.1f"),
        number(row["lag"]),
        number(row["behind"], ",.1f", " s"),
        lasting(row["p50"]),
        lasting(row["p99"]),
        number(row["parked"]),
        number(row["dead"]),
    ]
