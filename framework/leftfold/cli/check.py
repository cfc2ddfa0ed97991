"""`leftfold check`: is what the code says what stored data was written and folded by?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.options import AppOption, ArchiveOption, JsonOption, KafkaOption, RedisOption, examples

if TYPE_CHECKING:
    from leftfold.app import App
    from leftfold.lockfile import Finding

__all__ = ["EXAMPLES", "check"]

EXAMPLES = examples(
    "leftfold check             definitions, leftfold.lock, and topics if a broker answers",
    "leftfold check --write     accept the code as it is into leftfold.lock, to be committed",
    "leftfold check --app services.payments.app:app     another App, as in leftfold.payments.lock",
)


def check(
    write: Annotated[bool, typer.Option("--write", help="Write leftfold.lock.")] = False,
    app: AppOption = "",
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
    from leftfold.cli.checking import compared, query_findings, topic_findings
    from leftfold.cli.console import emit, note, say
    from leftfold.cli.project import find_project, load_app

    project = find_project()
    whole = load_app(app, project)
    lock = project.lock_of(whole, app)
    findings, accepted = compared(whole, lock, write=write)
    if lock != project.lock:
        findings, accepted = ([_meant(finding, lock.name, app) for finding in found] for found in (findings, accepted))
    topics, remark = topic_findings(whole, kafka, archive)
    queries, kept = query_findings(whole, kafka, redis)
    for finding in [*accepted, *findings, *queries, *topics]:
        if as_json:
            emit(
                {"about": finding.about, "message": finding.message, "wrong": finding.wrong and finding not in accepted}
            )
        else:
            say(_line(finding, accepted=finding in accepted))
    for line in [*kept, *filter(None, [remark])]:
        note(line)
    if write:
        note(f"wrote {_near(lock)}; commit it")
    if topics or queries or findings:
        raise typer.Exit(1)
    if not write and not as_json:
        say(f"{typer.style('ok', fg='green')}: {_counted(whole)}, as in {_near(lock)}")


def _meant(finding: Finding, lock: str, app: str) -> Finding:
    """The finding with the file and the command of an App that is not the project's own."""
    told = finding.message.replace("leftfold check --write", f"leftfold check --write --app {app}")
    return replace(
        finding,
        about=finding.about.replace("leftfold.lock", lock),
        message=told.replace("leftfold.lock", lock),
    )


def _line(finding: Finding, *, accepted: bool) -> str:
    if accepted:
        return f"{typer.style('accepted', fg='green')} {finding.difference}"
    return f"{typer.style('error', fg='red') if finding.wrong else typer.style('note', fg='yellow')} {finding}"


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
