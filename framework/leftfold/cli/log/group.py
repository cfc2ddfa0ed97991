"""`leftfold log`: the commands that trace, skip, archive, trim and query the log."""

from __future__ import annotations

import sys
from contextlib import closing
from datetime import datetime
from typing import Annotated, Any

import typer

from leftfold.cli.log import skip, trace
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
from leftfold.model.position import Position
from leftfold.runtime.as_of import read_position
from leftfold.runtime.console import amount, emit, note, say
from leftfold.runtime.project import Usage, archive_of, load_apps, together

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
    from leftfold.cli.log.archive import archived

    for category in categories:
        done = archived(category, to, kafka)
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
    from leftfold.cli.log.archive import verified

    wrong = 0
    for category in categories:
        found, differences = verified(category, archive, kafka if deep else None, deep=deep)
        wrong += len(found.damages) + len(differences)
        damages = [(damage.partition, damage.path, damage.what) for damage in found.damages]
        if as_json:
            counts = {"files": found.files, "records": found.records, "bytes": found.bytes}
            broken = [dict(zip(("partition", "path", "what"), one, strict=True)) for one in damages]
            rest = {"damages": broken, "differences": differences, "strays": list(found.strays)}
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
    from leftfold.cli.log.archive import TrimWork

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
            f"whatever reads the past needs --archive {work.archive} from now on, and so may `leftfold run`; name it "
            f"once: archive = '{work.archive}' under [tool.leftfold] in pyproject.toml, or LEFTFOLD_ARCHIVE_DIR"
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
    from leftfold.cli.log.sql import Asking
    from leftfold.runtime.operations.queries import LogQuery

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
