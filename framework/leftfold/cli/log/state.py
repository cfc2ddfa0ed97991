"""`leftfold state`: verifies the state topics of deciders, or has workers fold all states again."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer

from leftfold.cli.options import AppOption, ArchiveOption, JsonOption, KafkaOption, YesOption, agreed, examples
from leftfold.cli.views.rebuild import EngineOption
from leftfold.engine.processing.state_check import PartitionCheck, StateCheck, check_locally
from leftfold.engine.processing.worker_tasks import task_for
from leftfold.engine.progress import ProgressReport, Stopwatch
from leftfold.kafka.administration.states import forget_states
from leftfold.model.decider import Decider
from leftfold.model.keys import events
from leftfold.runtime.connect import kafka_settings, open_bulk, open_reader
from leftfold.runtime.console import amount, emit, say, shown
from leftfold.runtime.project import Usage, archive_of, load_app, unknown
from leftfold.runtime.rebuilding import spark_settings

__all__ = ["EXAMPLES", "REBUILD_EXAMPLES", "checked", "rebuild", "state", "verify"]


EXAMPLES = examples(
    "leftfold state verify                   every decider of the App",
    "leftfold state verify baskets --json    one of them; differing streams as NDJSON",
)

REBUILD_EXAMPLES = examples(
    "leftfold state rebuild baskets                      asks first; workers fold the events when they start",
    "leftfold state rebuild baskets --commands end       and leave what waits in baskets.commands undecided",
)

state = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Verify or rebuild the states of streams.")


@state.command(epilog=EXAMPLES)
def verify(
    names: Annotated[list[str] | None, typer.Argument(metavar="[CATEGORY]...", help="Deciders; else all.")] = None,
    engine: Annotated[EngineOption, typer.Option("--engine", help="Where partitions are folded.")] = EngineOption.LOCAL,
    master: Annotated[str | None, typer.Option("--master", metavar="URL", help="Spark's; else local[*].")] = None,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare states with the fold of their events.

    Exit code 3 when they differ; to have workers fold all of them again from the events: leftfold state rebuild.
    """
    whole = load_app(app, having=names or ())
    wrong = 0
    known = {decider.name: decider for decider in whole.deciders}
    if wrong_name := next((name for name in names or () if name not in known), ""):
        raise unknown(f"decider in app {whole.name} called", wrong_name, known)
    if not known:
        raise Usage(f"app {whole.name} has no deciders, whose states could be verified")
    for decider in [known[name] for name in dict.fromkeys(names or known)]:
        with shown(f"{decider.name} states") as report:
            checks = checked(
                decider, kafka, archive, on_spark=engine is EngineOption.SPARK, master=master, report=report
            )
        differences = [difference for check in checks for difference in check.differences]
        wrong += len(differences)
        streams, events = sum(check.streams for check in checks), sum(check.events for check in checks)
        if as_json:
            emit({"category": decider.name, "streams": streams, "events": events, "differences": len(differences)})
            for difference in differences:
                emit({"category": decider.name, **difference.__dict__})
            continue
        verdict = "all agree" if not differences else f"{amount(len(differences), 'stream')} differ"
        say(f"{decider.name}: {amount(streams, 'stream')} against {amount(events, 'event')}: {verdict}")
        for difference in differences[:10]:
            say(f"  {difference.key} (partition {difference.partition})")
            say(f"    state topic  {difference.found}")
            say(f"    events       {difference.expected}")
    raise typer.Exit(3 if wrong else 0)


class Commands(StrEnum):
    """Where workers continue in the topic of commands."""

    KEPT = "kept"
    START = "start"
    END = "end"


@state.command(epilog=REBUILD_EXAMPLES)
def rebuild(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The decider's or process's name.")],
    commands: Annotated[
        Commands,
        typer.Option("--commands", help="Continue where workers were, at the first command, or behind the last."),
    ] = Commands.KEPT,
    yes: YesOption = False,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold every state again from the log.

    The workers of a decider or a process then restore their state from its log alone.

    Deletes the state topics and creates them again, empty; workers, which must be stopped, fill them from the events
    when they start. For a log that was restored, cut or copied, and for states that are wrong. Answers that no event
    records are forgotten: a refused command that is sent again is decided again.
    """
    whole, settings = load_app(app, having=[name]), kafka_settings(kafka)
    task_for(whole, name)
    agreed(f"delete what {name} remembers of its streams, and have workers fold it again?", yes=yes)
    open_log = open_reader(settings, archive_of(archive))
    offsets = forget_states(whole, name, settings, open_log, commands.value)
    if as_json:
        emit({"name": name, "commands": offsets.offsets})
        return
    for topic, partitions in offsets.offsets.items():
        for partition, offset in sorted(partitions.items()):
            say(f"{topic}[{partition}] is taken from {offset} on")
    say(f"{name} has no states; workers fold them when they start: leftfold run {name}")


def checked(
    decider: Decider[Any, Any, Any],
    kafka: str | None,
    archive: str | None,
    *,
    on_spark: bool,
    master: str | None,
    report: ProgressReport,
) -> list[PartitionCheck]:
    """The check of every partition, in this process or on Spark."""
    from leftfold.spark.core.session import spark_session
    from leftfold.spark.core.task_io import spark_checks

    check = StateCheck.plan(decider, open_bulk(kafka_settings(kafka), archive_of(archive)))
    watch = Stopwatch(report)
    watch.begin("check", sum(check.ends.offsets[events(decider.name)].values()))
    results: Iterable[PartitionCheck]
    if on_spark:
        with spark_session(spark_settings(master)) as session:
            results = spark_checks(session)(check, watch.tell)
    else:
        results = check_locally(check, watch.tell)
    watch.end()
    return list(results)
