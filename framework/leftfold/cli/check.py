"""`leftfold check`: is what the code says what stored data was written and folded by?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from leftfold.cli.options import AppsOption, ArchiveOption, JsonOption, KafkaOption, RedisOption, examples

if TYPE_CHECKING:
    from leftfold.app import App
    from leftfold.cli.console import Styled
    from leftfold.cli.project import Project
    from leftfold.lockfile import Finding

__all__ = ["EXAMPLES", "check"]

EXAMPLES = examples(
    "leftfold check             definitions, leftfold.lock, and topics if a broker answers",
    "leftfold check --write     accept the code as it is into leftfold.lock, to be committed",
    "leftfold check --app services.payments.app:app     another App, as in leftfold.payments.lock",
)


def check(
    write: Annotated[bool, typer.Option("--write", help="Write leftfold.lock.")] = False,
    app: AppsOption = None,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare code, leftfold.lock and topics.

    The lock holds a hash of every fold and the JSON schema of every event version, so a change that needs a new
    version is noticed here and not in production. Each App that is not the project's own has a lock of its own. The
    SQL of query views is checked on Spark; how each of them is kept depends on its topics, too, which are asked if they
    answer. Exit code 1 when something differs.
    """
    from leftfold.cli.project import find_project, load_apps

    project, asked = find_project(), _Asked(archive, kafka, redis, write, as_json)
    well = [_is_well(one, spec, project, asked) for spec, one in load_apps(app or []).items()]
    if not all(well):
        raise typer.Exit(1)


class _Asked(NamedTuple):
    """What was typed besides the App."""

    archive: str | None
    kafka: str | None
    redis: str | None
    write: bool
    as_json: bool


def _is_well(app: App, spec: str, project: Project, asked: _Asked) -> bool:
    """Tells how an App compares with its lock and its topics, and whether nothing differs."""
    from leftfold.cli.checking import compared, query_findings, topic_findings, unbounded
    from leftfold.cli.console import emit, note, say, styled

    lock = project.lock_of(app, spec)
    findings, accepted = compared(app, lock, write=asked.write)
    if lock != project.lock:
        findings, accepted = ([_meant(finding, lock.name, spec) for finding in found] for found in (findings, accepted))
    topics, remark = topic_findings(app, asked.kafka, asked.archive)
    queries, kept = query_findings(app, asked.kafka, asked.redis)
    for finding in [*accepted, *findings, *queries, *topics]:
        if asked.as_json:
            wrong = finding.wrong and finding not in accepted
            emit({"about": finding.about, "message": finding.message, "wrong": wrong})
        else:
            say(*_line(finding, accepted=finding in accepted))
    for line in [*kept, *filter(None, [remark, unbounded(app)])]:
        note(line)
    if asked.write:
        note(f"wrote {_near(lock)}; commit it")
    differs = bool(topics or queries or findings)
    if not (asked.write or asked.as_json or differs):
        say(styled("ok", fg="green"), f": {_counted(app)}, as in {_near(lock)}")
    return not differs


def _meant(finding: Finding, lock: str, app: str) -> Finding:
    """The finding with the file and the command of an App that is not the project's own."""
    told = finding.message.replace("leftfold check --write", f"leftfold check --write --app {app}")
    return replace(
        finding,
        about=finding.about.replace("leftfold.lock", lock),
        message=told.replace("leftfold.lock", lock),
    )


def _line(finding: Finding, *, accepted: bool) -> tuple[str | Styled, ...]:
    from leftfold.cli.console import styled

    if accepted:
        return styled("accepted", fg="green"), f" {finding.difference}"
    return styled("error", fg="red") if finding.wrong else styled("note", fg="yellow"), f" {finding}"


def _counted(app: App) -> str:
    from leftfold.cli.console import amount

    read: list[tuple[type[Any], ...]] = [d.events for d in app.deciders]
    read += [p.events for p in app.processes] + [v.events for v in app.views]
    events = set().union(*read)
    counts = [(len(app.deciders), "decider"), (len(events), "event"), (len(app.views), "view")]
    if app.processes:
        counts.insert(1, (len(app.processes), "process"))
    return ", ".join(amount(number, what) for number, what in counts)


def _near(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
