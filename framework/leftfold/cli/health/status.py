"""`leftfold status`: shows servers, workers, processes, reactions, streams and views."""

from __future__ import annotations

from typing import Any

import typer

from leftfold.cli.options import (
    AppsOption,
    ArchiveOption,
    JsonOption,
    KafkaOption,
    RedisOption,
    examples,
    note_options,
)
from leftfold.ports.instruments import ago
from leftfold.runtime.console import emit, lasting, note, say, styled, table
from leftfold.runtime.operations.survey import Survey
from leftfold.runtime.project import archive_of, find_project, load_apps

__all__ = ["EXAMPLES", "status"]

EXAMPLES = examples(
    "leftfold status",
    "leftfold status --archive /backup/log     also how many seconds views are behind events that Kafka has deleted",
    "leftfold status --json | jq 'select(.kind == \"view\") | .lag'",
)

_COLUMNS = {
    "server": "server, address, topology, pid, uptime, state",
    "decider": "decider, version, partitions, workers, lag, behind, offsets, state/command, answers dropped, dead",
    "process": "process, version, partitions, workers, routers, inputs, unrouted, untaken, timers, overdue, held, dead",
    "reaction": "reaction, events, running, lag, parked",
    "stream": "stream, events, views, running, lag, behind",
    "view": "view, generation, phase, kept up, projectors, rows, lag, behind, parked, last event, position",
}


def status(
    app: AppsOption = None,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show servers, workers, processes, reactions, streams and views.

    Of each decider: how many commands wait and for how long, how many bytes of state a command has lately written,
    in the partition where that is most, how many answers left a key's memory before their time since the key was
    too busy, and how many dead letters wait. Of each process: the age of the oldest event that its routers have not
    routed and of the oldest input that its workers have not taken, how many timers are set, overdue and held back
    by late events, and how many dead letters there are. Of each view: its generation and phase, how many projectors
    share it, its position, its lag and how many seconds it is behind, and what is parked. Lag counts offsets, of
    which transactions use some too. A view that is far behind is named with the command to type. For a view before
    the start of a trimmed topic, the archive shows how far it is behind. Exit code 69 when a server does not
    answer.
    """
    survey = Survey(kafka, redis, archive_of(archive))
    project = find_project()
    apps = load_apps(app or []) if app or project.app or project.refused else {}
    rows = survey.rows(apps)
    if as_json:
        emit(*rows)
    else:
        _show(rows)
    for problem in survey.problems:
        note(styled("!", fg="yellow"), f" {problem}")
    note_options("\n".join(survey.problems), app or (), kafka, redis, archive)
    if survey.missing:
        raise typer.Exit(69)


def _show(rows: list[dict[str, Any]]) -> None:
    """Prints a table per kind; the column `kept up` appears only when Spark computes one of the views."""
    for number, (kind, columns) in enumerate(_COLUMNS.items()):
        shown = [_shown(row) for row in rows if row["kind"] == kind]
        if number and shown:
            say()
        kept_up = any("kept up" in row for row in shown)
        table(shown, [column for column in columns.split(", ") if column != "kept up" or kept_up])


def _shown(row: dict[str, Any]) -> dict[str, object]:
    """A row for the table: its name under its kind, units added, empty values left out."""
    shown = {row["kind"]: row["name"], **{k: v for k, v in row.items() if v is not None}}
    if "kept" in shown:
        shown["kept up"] = shown.pop("kept")  # a phase is called kept, too
    if row.get("since"):
        ends = f", ends in {lasting(-ago(row['until']))}" if row.get("until") else ""
        shown["phase"] = f"{row['phase']} for {lasting(ago(row['since']))}{ends}"
    if "per_command" in row:
        shown["state/command"], shown["answers dropped"] = f"{row['per_command']:,} B", row["answers_dropped"]
    if "uptime" in shown:
        shown["uptime"] = lasting(row["uptime"])
    if row.get("time"):
        shown["last event"] = f"{lasting(ago(row['time']))} ago"
    for name in ("unrouted", "untaken"):
        if name in row:
            shown[name] = "unknown" if row[name] is None else f"{row[name]:g} s"
    if "behind" in row:
        shown["behind"] = "unknown" if row["behind"] is None else f"{row['behind']:g} s"
    if "position" in shown:
        shown["position"] = " ".join(
            f"{topic}[{','.join(f'{p}:{o}' for p, o in sorted(offsets.items()) if o) or 'start'}]"
            for topic, offsets in row["position"].items()
        )
    if "called" in shown:
        shown["phase"] = f"{row['phase']}: @{row['called']}"
    if row.get("approximate"):
        shown["rows"] = f"{row['rows']:,}, approximate"
    if isinstance(shown.get("parked"), list):
        shown["parked"] = ", ".join(row["parked"]) or "none"
    return shown
