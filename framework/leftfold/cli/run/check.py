"""`leftfold check`: compares the code with its lock, its topics and Spark's analysis of its SQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from leftfold.cli.options import AppsOption, ArchiveOption, JsonOption, KafkaOption, RedisOption, examples
from leftfold.compatibility import CheckFinding, Lock, compare, lock_of
from leftfold.engine.log_gaps import log_gap
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.topics import ensure, topics_of
from leftfold.model.app import App
from leftfold.model.computed_views import TableView
from leftfold.model.position import Position
from leftfold.runtime.connect import kafka_settings, open_archive
from leftfold.runtime.console import Styled, amount, emit, note, say, shown_path, styled
from leftfold.runtime.project import archive_of, find_project, load_apps, text_about_lock
from leftfold.runtime.rebuilding import kept, spark_settings
from leftfold.runtime.servers import Servers

__all__ = ["compared", "unbounded"]


EXAMPLES = examples(
    "leftfold check             definitions, leftfold.lock, and topics if a broker answers",
    "leftfold check --write     accept the code as it is into leftfold.lock, to be committed",
    "leftfold check --app services.payments.app:app     another App, as in locks/payments.lock",
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

    The lock holds a hash of every fold and the JSON schema of every event version, so a change that needs a new version
    is noticed here and not in production. Each App that is not the project's own has a lock of its own. The SQL of
    query views is checked on Spark; how each of them is kept up to date depends also on its topics, which are read if a
    broker answers. Exit code 1 when something differs.
    """
    servers = kafka, redis, archive
    apps, project = load_apps(app or []), find_project()
    locks = {spec: project.lock_of(one, spec, is_alone=len(apps) == 1) for spec, one in apps.items()}
    how = {"write": write, "as_json": as_json}
    well = [_is_well(one, spec, locks[spec], servers, **how) for spec, one in apps.items()]
    if not all(well):
        raise typer.Exit(1)


def _is_well(app: App, spec: str, lock: Path, servers: Servers, *, write: bool, as_json: bool) -> bool:
    """Prints how an App compares with its lock and its topics; true when nothing differs."""
    kafka, redis, archive = servers
    command = f"leftfold check --write --app {spec}" if lock != find_project().lock else "leftfold check --write"
    try:
        findings, accepted = compared(app, lock, write=write)
    except ConfigurationError as error:
        raise ConfigurationError(text_about_lock(str(error), lock, command)) from error
    findings, accepted = ([_meant(finding, lock, command) for finding in found] for found in (findings, accepted))
    topics, remark = topic_findings(app, kafka, archive)
    queries, kept = query_findings(app, kafka, redis)
    for finding in [*accepted, *findings, *queries, *topics]:
        if as_json:
            wrong = finding.wrong and finding not in accepted
            emit({"about": finding.about, "message": finding.message, "wrong": wrong})
        else:
            say(*_line(finding, accepted=finding in accepted))
    for line in [*kept, *filter(None, [remark, unbounded(app)])]:
        note(line)
    if write:
        note(f"wrote {shown_path(lock)}; commit it")
    differs = bool(topics or queries or findings)
    if not (write or as_json or differs):
        say(styled("ok", fg="green"), f": {_counted(app)}, as in {shown_path(lock)}")
    return not differs


def _meant(finding: CheckFinding, lock: Path, command: str) -> CheckFinding:
    """The finding with the App's own lock file, and the command that writes it."""
    about, message = (text_about_lock(text, lock, command) for text in (finding.about, finding.message))
    return replace(finding, about=about, message=message)


def _line(finding: CheckFinding, *, accepted: bool) -> tuple[str | Styled, ...]:
    if accepted:
        return styled("accepted", fg="green"), f" {finding.difference}"
    return styled("error", fg="red") if finding.wrong else styled("note", fg="yellow"), f" {finding}"


def _counted(app: App) -> str:
    members: list[Any] = [*app.deciders, *app.processes, *app.views]
    events = {event for member in members for event in member.events}
    counts = [(len(app.deciders), "decider"), (len(events), "event"), (len(app.views), "view")]
    if app.processes:
        counts.insert(1, (len(app.processes), "process"))
    return ", ".join(amount(number, what) for number, what in counts)


_NAMED = 3


def compared(app: App, file: Path, *, write: bool) -> tuple[list[CheckFinding], list[CheckFinding]]:
    """Differences from the lock, and accepted ones: with `write` the lock is rewritten from the code.

    A released event that no code reads any more stays a difference.

    Raises:
        ConfigurationError: the lock cannot be read or written.
    """
    now = lock_of(app)
    if not file.exists() and not write:
        missing = "is not there yet; write and commit it: leftfold check --write"
        return [CheckFinding("leftfold.lock", missing, wrong=False)], []
    released = Lock.from_json(file.read_text("utf-8")) if file.exists() else Lock()
    found = compare(released, now) if file.exists() else []
    if not write:
        return found, []
    written = now.with_history(released)
    try:
        file.parent.mkdir(exist_ok=True)
        file.write_text(written.to_json(), "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error
    still = compare(written, now)
    return still, [finding for finding in found if finding not in still]


def query_findings(app: App, kafka: str | None, redis: str | None) -> tuple[list[CheckFinding], list[str]]:
    """Errors in the SQL of query views, and how each of these views is kept up to date."""
    views = [view for view in app.views if isinstance(view, TableView)]
    if not views:
        return [], []
    from leftfold.spark.core.session import spark_session
    from leftfold.spark.queries.compute import dry_run, refreshed

    found, remarks = [], []
    note("starting Spark, to check the SQL of views")
    with spark_session(spark_settings("local[1]")) as session:
        for view in views:
            try:
                dry_run(session, view)
                how = kept(view, refreshed(session, view), kafka, redis)
                about = "; approximate, since late events are left out" if view.approximate else ""
                remarks.append(f"view {view.name} is kept by {how}{about}")
            except ConfigurationError as error:
                about = f"view {view.name}"
                found.append(CheckFinding(about, str(error).removeprefix(f"{about}: ")))
    return found, remarks


def unbounded(app: App) -> str:
    """A warning that names the unbounded Decimal fields of events; '' when there are none."""
    events = [cls for decider in app.deciders for cls in decider.events]
    found = [
        f"{cls.__leftfold__.category}.{cls.__leftfold__.name}.{name}"
        for cls in dict.fromkeys([*events, *(cls for view in app.views for cls in view.events)])
        for name, field in cls.model_fields.items()
        if _is_amount(field.annotation) and not any(getattr(meta, "max_digits", None) for meta in field.metadata)
    ]
    if not found:
        return ""
    more = f" and {amount(len(found) - _NAMED, 'other')}" if len(found) > _NAMED else ""
    return (
        f"a Decimal may have any number of digits in {', '.join(found[:_NAMED])}{more}; SQL passes over events whose "
        f"amounts do not fit. Bound it in commands, and in events that are new or get a new version=: "
        f"Annotated[Decimal, Field(max_digits=18, decimal_places=2)]"
    )


def _is_amount(type_: Any) -> bool:
    return type_ is Decimal or (get_origin(type_) in (Union, UnionType) and Decimal in get_args(type_))


def topic_findings(app: App, kafka: str | None, archive: str | None = None) -> tuple[list[CheckFinding], str]:
    """Wrong or trimmed topics of the App, and a remark on missing topics or an unreachable Kafka."""
    try:
        settings = kafka_settings(kafka)
    except ConfigurationError:
        return [], "topics were not looked at: no Kafka is configured or running here"
    wanted = topics_of(app)
    try:
        with ClusterAdmin(settings) as cluster:
            there: dict[str, int] = cluster.partition_counts([topic.name for topic in wanted])
            missing = [topic for topic in wanted if topic.name not in there]
            if not missing:
                ensure(app, settings)
            trimmed = list(_trimmed(cluster, [n for n in there if n.endswith(".events")], archive_of(archive)))
    except InfrastructureError as error:
        return [], f"topics were not looked at: {error}"
    except ConfigurationError as error:
        return [CheckFinding("topics", str(error))], ""
    found = [
        CheckFinding(f"topic {t.name}", f"has {there[t.name]} partitions, but app {app.name} says {t.partitions}")
        for t in wanted
        if t.fixed and there.get(t.name, t.partitions) != t.partitions
    ]
    to_make = ", ".join(f"{t.name} ({t.partitions} partitions)" for t in missing)
    return found + trimmed, f"leftfold run would make: {to_make}" if to_make else ""


def _trimmed(cluster: Any, topics: list[str], archive: str) -> Iterator[CheckFinding]:
    """Topics whose first events were deleted and are not in the archive: no fold from the first event is possible."""
    starts: Position = cluster.starts(topics)
    open_past = open_archive(archive)
    for topic, partitions in starts.offsets.items():
        past = open_past() if open_past is not None and any(partitions.values()) else None
        ends, place = ({}, "") if past is None else (past.ends(topic), past.place)
        for partition, start in partitions.items():
            if start > (end := ends.get(partition, 0)):
                yield CheckFinding(f"topic {topic}", str(log_gap(topic, partition, end, start, archive=place)))
                break
