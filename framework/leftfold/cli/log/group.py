"""`leftfold log`: the commands that trace, skip, archive, trim and query the log."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.log import skip, trace
from leftfold.cli.log.sql import Asking
from leftfold.cli.options import (
    AppsOption,
    ArchiveOption,
    JsonOption,
    KafkaOption,
    YesOption,
    agreed,
    examples,
    read_time,
)
from leftfold.engine.archive.retention import Trim, Trimming, compare
from leftfold.engine.log_gaps import check_archived
from leftfold.engine.progress import ProgressReport, Stopwatch
from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.groups import Groups
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.reactions.start_offsets import is_started
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.ports.bulk import OffsetRange, check_owner
from leftfold.runtime.as_of import read_position
from leftfold.runtime.connect import open_archive
from leftfold.runtime.console import amount, emit, note, say, shown
from leftfold.runtime.operations.sql_queries import LogQuery
from leftfold.runtime.project import Usage, archive_needed, archive_of, find_project, load_apps, together
from leftfold.runtime.servers import topic_of

if TYPE_CHECKING:
    from leftfold.parquet.archive_check import Verified
    from leftfold.parquet.archiver import Archived

__all__ = ["archive", "log", "sql", "trim", "verify_archive"]

log = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Trace causes and effects; archive, trim and query the log."
)
log.command("trace", epilog=trace.EXAMPLES)(trace.trace)
log.command("skip", epilog=skip.EXAMPLES)(skip.skip)

_Categories = Annotated[list[str], typer.Argument(metavar="CATEGORY...", help="As in baskets.")]


@log.command(
    epilog=examples(
        "leftfold log archive baskets --to /backup/log     events since the last run; run it daily",
        "leftfold log archive baskets --to s3://bucket/log --json",
    )
)
def archive(
    categories: _Categories,
    to: Annotated[str | None, typer.Option("--to", metavar="DIR", help="Else as --archive of other commands.")] = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy committed events into Parquet files.

    Copies byte by byte, from the end of the archive on.

    Interrupted or killed, it continues behind the last whole file next time. Of two runs at once the second is refused.
    """
    for category in categories:
        done = _archived(category, to, kafka)
        counts = {"files": done.files, "bytes": done.bytes, "position": done.position.offsets}
        if as_json:
            emit({"category": category, "topic": done.topic, "records": done.records, **counts})
        else:
            files = f"{amount(done.files, 'file')} ({done.bytes:,} bytes)"
            say(f"{category}: {amount(done.records, 'event')} archived in {files}, up to {done.position}")


@log.command(
    "verify-archive",
    epilog=examples(
        "leftfold log verify-archive baskets               ranges, sizes, checksums, every record",
        "leftfold log verify-archive baskets --deep        and against what the topic still holds",
    ),
)
def verify_archive(
    categories: _Categories,
    deep: Annotated[bool, typer.Option("--deep", help="Compare with the topic, record by record.")] = False,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read the archive of a category and check it.

    Exit code 3 when anything is wrong.
    """
    wrong = 0
    for category in categories:
        found, differences = _verified(category, archive, kafka if deep else None, deep=deep)
        wrong += len(found.damages) + len(differences)
        damages = [(damage.partition, damage.path, damage.what) for damage in found.damages]
        if as_json:
            counts = {"files": found.files, "records": found.records, "bytes": found.bytes}
            broken = [dict(zip(("partition", "path", "what"), one, strict=True)) for one in damages]
            rest = {
                "damages": broken,
                "differences": differences,
                "strays": list(found.strays),
                "archiver": found.archiver,
            }
            emit({"category": category, **counts, "position": found.position.offsets, **rest})
            continue
        for partition, path, what in damages:
            say(f"{category}[{partition}] {path} {what}")
        for difference in differences:
            say(difference)
        verdict = "all is as it was written" if not damages and not differences else "NOT as it was written"
        say(f"{category}: {amount(found.records, 'event')} in {amount(found.files, 'file')}: {verdict}")
        if found.strays:
            note(f"{amount(len(found.strays), 'file')} that no manifest names, as killed runs leave them; no reader "
                 f"uses them and they may be removed: {', '.join(found.strays[:3])}")  # fmt: skip
        if found.archiver:
            note(f"files that no manifest names were not looked for: {found.archiver} works on this archive")
    raise typer.Exit(3 if wrong else 0)


def _position_or_time(text: str) -> Position | datetime:
    return read_position(text) if "[" in text or "{" in text else read_time(text)


@log.command(
    epilog=examples(
        "leftfold log trim baskets --older-than 90d        events that are archived, verified and so old",
        "leftfold log trim baskets --before 2026-01-01T00:00:00Z --yes",
        "leftfold log trim baskets --before 'baskets.events[0:1200,1:1100]'",
        "leftfold log trim baskets --older-than 90d --leave-behind newsletter     though it has not read all of it",
    )
)
def trim(
    category: Annotated[str, typer.Argument(metavar="CATEGORY", help="As in baskets.")],
    before: Annotated[
        Any, typer.Option("--before", metavar="POSITION|TIME", parser=_position_or_time, help="Up to here.")
    ] = None,
    older_than: Annotated[
        datetime | None, typer.Option("--older-than", metavar="AGE|TIME", parser=read_time, help="As in 30d or 12h.")
    ] = None,
    behind: Annotated[
        list[str] | None,
        typer.Option(
            "--leave-behind", metavar="NAME", help="A process, reaction or stream that need not read; may be repeated."
        ),
    ] = None,
    yes: YesOption = False,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete what the archive holds from a topic.

    Events to be deleted are first compared with the archive, record by record. Never deleted is what is not archived,
    nor half of a decision, nor what a process, reaction or stream has not read yet. From then on folds from the first
    event need the archive.
    """
    if (before is None) == (older_than is None):
        raise Usage("up to where? say --before POSITION|TIME or --older-than AGE, one of them")
    with closing(TrimWork(category, archive, kafka, behind or ())) as work:
        plan = work.plan(before if older_than is None else older_than)
        deleted = {f"{part.partition}": [part.start, part.end] for part in plan.parts}
        for part in plan.parts:
            note(f"{part.topic}[{part.partition}]: offsets {part.start} to {part.end - 1}")
        if plan.parts:
            agreed(f"delete {amount(plan.records, 'event')} of {plan.topic}?", yes=yes)
        work.run(plan)
    if as_json:
        emit({"category": category, "topic": plan.topic, "deleted": deleted, "records": plan.records})
    else:
        note(f"{plan.topic}: {amount(plan.records, 'event')} deleted; the archive {work.archive} holds them")
    if plan.parts and not archive_of(None):
        note(
            f"whatever reads the past needs --archive {shlex.quote(work.archive)} from now on, and so may "
            f"`leftfold run`; name it once: archive = '{work.archive}' under [tool.leftfold] in pyproject.toml, or "
            f"LEFTFOLD_ARCHIVE_DIR"
        )


@log.command(
    epilog=examples(
        'leftfold log sql "SELECT _type, count(*) FROM baskets GROUP BY 1"',
        'leftfold log sql "SELECT product_id, sum(sales_value) FROM ItemAdded GROUP BY 1 ORDER BY 2 DESC" --csv',
        "leftfold log sql                                  one statement after another; .tables lists the tables",
    )
)
def sql(
    statement: Annotated[str, typer.Argument(metavar="[SQL]", help="A query; else queries are read one by one.")] = "",
    csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            min=1,
            help="Rows of an answer; else 1,000 in a table, 100,000 with --json or --csv.",
        ),
    ] = None,
    max_mb: Annotated[int, typer.Option("--max-mb", metavar="N", min=1, max=1024, help="Megabytes of an answer.")] = 32,
    master: Annotated[str | None, typer.Option("--master", metavar="URL", help="Spark's; else local[*].")] = None,
    app: AppsOption = None,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Query archive and topic in SQL.

    Every event type of the Apps is a table with its typed fields and _key, _time, _sequence, _partition, _offset, _id;
    every category is a table with the fields of all its types. Nothing can be written, no program called. An answer
    above --limit or --max-mb is cut, with a note; with --json and --csv the exit code is then 3.
    """
    if csv and as_json:
        raise Usage("say --csv or --json, not both")
    if not statement and not sys.stdin.isatty():
        raise Usage('which statement? say it: leftfold log sql "SELECT ..."')
    form = "csv" if csv else "json" if as_json else "table"
    rows = limit or (1000 if form == "table" else 100_000)
    apps = together(load_apps(app or []).values())
    with LogQuery(apps, kafka, archive, master, rows=rows, megabytes=max_mb) as queries:
        work = Asking(queries, form=form, rows=rows, megabytes=max_mb)
        if statement:
            work.answer(statement)
        else:
            work.converse()


def _archived(category: str, to: str | None, kafka: str | None) -> Archived:
    """Archives the events of a category that were appended since the last run.

    Raises:
        InfrastructureError: another run is at work, or events were deleted before they were archived.
    """
    from leftfold.parquet.archiver import Archiver
    from leftfold.parquet.filesystem import ArchiveFileSystem

    uri = archive_needed(to, "--to")
    settings, topic = topic_of(category, kafka)
    place = ArchiveFileSystem(uri)
    with ClusterAdmin(settings) as cluster:
        identity = cluster.identity(topic)
    log = KafkaBulkLog(settings)
    try:
        with closing(log), shown(f"{category} archive") as report:
            watch = Stopwatch(report)
            archiver = Archiver(place, topic, identity, log, tell=watch.tell)
            watch.begin("copy", sum(part.end - part.start for part in archiver.parts()))
            done = archiver.run()
            watch.end()
            return done
    except KeyboardInterrupt:
        note("interrupted; what was reported is archived, and the next run continues behind it")
        raise


def _verified(category: str, given: str | None, kafka: str | None, *, deep: bool) -> tuple[Verified, list[str]]:
    """Checks the archive of a category; with `deep` also lists where it differs from the topic."""
    from leftfold.parquet.archive_check import verify_archive
    from leftfold.parquet.filesystem import ArchiveFileSystem

    uri, topic = archive_needed(given, "--archive"), names.events(category)
    with shown(f"{category} archive") as report:
        watch = Stopwatch(report)
        watch.begin("verify")
        found = verify_archive(ArchiveFileSystem(uri), topic, watch.tell)
        watch.end()
        if not found.position.offsets[topic]:
            raise InfrastructureError(
                f"the archive {uri} holds nothing of {topic}; fill it: "
                f"leftfold log archive {category} --to {shlex.quote(uri)}"
            )
        differences = _differences(category, uri, kafka, report) if deep and not found.damages else []
    return found, differences


def _differences(category: str, uri: str, kafka: str | None, report: ProgressReport) -> list[str]:
    from leftfold.parquet.archive_reader import ParquetArchive

    settings, topic = topic_of(category, kafka)
    past = ParquetArchive(uri)
    watch = Stopwatch(report)
    with closing(KafkaBulkLog(settings)) as log:
        check_owner(past, topic, log)
        starts, ends = log.starts([topic]), past.ends(topic)
        check_archived(topic, ends, log.stable_ends([topic]), archive=past.place)
        parts = [OffsetRange(topic, p, start, ends.get(p, 0)) for p, start in starts.offsets[topic].items()]
        watch.begin("compare", sum(max(0, part.end - part.start) for part in parts))
        found = [compare(past, log, part, watch.tell).difference for part in parts if part.start < part.end]
        watch.end()
    nowhere = [
        f"{topic}[{part.partition}] offsets {part.end} to {part.start - 1} are neither in the archive nor in the topic"
        for part in parts
        if part.end < part.start
    ]
    return [*nowhere, *(difference for difference in found if difference)]


class TrimWork:
    """The plan and the run of a trim of one category; the caller closes it.

    Args:
        behind: processes, reactions and streams that need not have read the trimmed events.
    """

    def __init__(self, category: str, archive: str | None, kafka: str | None, behind: Sequence[str] = ()) -> None:
        self._behind = behind
        self.archive = archive_needed(archive, "--archive")
        self._category = category
        self._settings, self._topic = topic_of(category, kafka)
        self._cluster, self._log = Groups(self._settings), KafkaBulkLog(self._settings)

    def close(self) -> None:
        """Closes the clients."""
        self._log.close()
        self._cluster.close()

    def plan(self, before: Position | datetime) -> Trim:
        """Compares the events to be deleted, which are before a position or a time, with the archive.

        Raises:
            Usage: the position is not in the topic of the category.
            InfrastructureError: the archive lacks some of the events.
        """
        wanted = self._wanted(before)
        with shown(f"{self._category} trim") as report:
            watch = Stopwatch(report)
            trimming = self._trimming(watch)
            watch.begin("compare", sum(part.end - part.start for part in trimming.parts(wanted)))
            plan = trimming.plan(wanted)
            watch.end()
        return plan

    def run(self, plan: Trim) -> Position:
        """Deletes the planned events from the topic."""
        return self._trimming(Stopwatch(lambda progress: None)).run(plan)

    def _trimming(self, watch: Stopwatch) -> Trimming:
        past: Any = open_archive(self.archive)  # never None: `archive_needed` gave it
        delete, listeners = self._cluster.delete_records, self._listeners()
        return Trimming(self._topic, past, self._log, delete, listeners=listeners, tell=watch.tell)

    def _listeners(self) -> Mapping[str, Mapping[int, int]]:
        """Offsets of all readers: groups of any App, and this App's members without offsets (reactions that began)."""
        found: dict[str, Mapping[int, int]] = dict(self._cluster.listeners(self._topic))
        for app in load_apps([]).values() if find_project().apps else ():
            for kind, members in (("process", app.processes), ("stream", app.streams)):
                for member in members:
                    if self._category in member.categories:
                        found.setdefault(f"{kind} {member.name}", {})
            for reaction in app.reactions:
                if self._category in reaction.categories and is_started(self._settings, reaction.name, self._topic):
                    found.setdefault(f"reaction {reaction.name}", {})
        return {who: offsets for who, offsets in found.items() if who.rpartition(" ")[2] not in self._behind}

    def _wanted(self, before: Position | datetime) -> Mapping[int, int]:
        if isinstance(before, datetime):
            return self._cluster.starts_at(self._topic, int(before.timestamp() * 1000)).offsets[self._topic]
        if set(before.offsets) != {self._topic}:
            raise Usage(f"--before '{before}' must be a position in {self._topic}, and in no other topic")
        return before.offsets[self._topic]
