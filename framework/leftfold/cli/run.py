"""`leftfold run`: Apps at work, deciders and views alike."""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import Annotated

import typer

from leftfold.cli.durations import seconds
from leftfold.cli.handover import handover, logs_of, spark_handover
from leftfold.cli.options import (
    EVERY,
    MAX_PARKED,
    AppsOption,
    ArchiveOption,
    KafkaOption,
    LogsOption,
    MasterOption,
    MaxParkedOption,
    PyFilesOption,
    RedisOption,
    examples,
)

__all__ = ["EXAMPLES", "Engine", "run"]


class Engine(StrEnum):
    """What folds views."""

    TAIL = "tail"
    SPARK = "spark"


_BY = {Engine.TAIL: "tail", Engine.SPARK: "stream"}

EXAMPLES = examples(
    "leftfold run                          everything in the App",
    "leftfold run --app shop.orders:app --app shop.stock:app     several Apps, which may react to each other",
    "leftfold run baskets --workers 2      one decider, two processes sharing its partitions",
    "leftfold run basket_summary           one view",
    "leftfold run basket_summary --engine spark --trigger 5     by Spark streaming, every 5 s",
    "leftfold run store_daily --every 30s  one that Spark computes, again every half a minute",
)


def run(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Deciders, processes, reactions, streams and views; else all."),
    ] = None,
    app: AppsOption = None,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, help="How many per decider, process, router and reaction.")
    ] = 1,
    engine: Annotated[Engine, typer.Option("--engine", help="What folds views.")] = Engine.TAIL,
    master: MasterOption = None,
    py_files: PyFilesOption = None,
    trigger: Annotated[
        float, typer.Option("--trigger", metavar="SECONDS", min=0, help="Spark: from batch to batch; 0 = as they come.")
    ] = 0.0,
    every: Annotated[
        float,
        typer.Option("--every", metavar="TIME", parser=seconds, help="How often Spark computes query views: 90s, 5m."),
    ] = EVERY,
    max_parked: MaxParkedOption = MAX_PARKED,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    json_logs: LogsOption = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Run the deciders, processes, reactions, streams and views of an App, or of several, until Ctrl-C.

    Makes missing topics, starts a worker for each decider and for each process, which has a router of events besides,
    one part for each reaction and each stream, one for all folded views and one with Spark for all query views, starts
    again whatever dies, and stops everything in order on Ctrl-C or SIGTERM. Servers that go away are waited for; a
    stream waits as well while another process keeps its views. With --engine spark
    views are folded by Spark streaming, seconds behind the log but on as many machines as its master has; beside a
    tail, too. A reaction that has never run begins now: it acts on what happens from here on.
    """
    from leftfold.cli.ensuring import begin_reactions, ensure_topics
    from leftfold.cli.failures import Usage
    from leftfold.cli.part import end_with_parent
    from leftfold.cli.parts import chosen_of, parts_of
    from leftfold.cli.project import load_apps
    from leftfold.cli.stopping import Stopping
    from leftfold.connection import kafka_settings, redis_settings, ring
    from leftfold.errors import InfrastructureError
    from leftfold.logs import open_report
    from leftfold.supervisor import Supervisor

    if engine is Engine.TAIL and (master or py_files or trigger):
        raise Usage("--master, --py-files and --trigger are Spark's; say --engine spark, too")
    apps = load_apps(app or [])
    wanted = chosen_of(apps, names or [])
    settings = kafka_settings(kafka)
    if any(one.views for one in wanted.values()):
        with suppress(InfrastructureError):
            # One that is not there yet is asked by the parts.
            ring("leftfold.redis").refuse_eviction(redis_settings(redis))
    told = [f"--logs={logs_of(json_logs)}", f"--trigger={trigger}", f"--every={every}"]
    told += [f"--max-parked={max_parked}", *(["--no-archive"] if archive == "" else [])]
    told += ["--takes-back"] if with_parent else []
    environment = handover(kafka=kafka, redis=redis, archive=archive) | spark_handover(master, py_files or ())
    parts = [
        part
        for spec, one in wanted.items()
        for part in parts_of(
            one, workers, [f"--app={spec}", *told], environment, views_by=_BY[engine], alone=len(apps) == 1
        )
    ]
    if not parts:
        raise Usage(
            f"{' '.join(names or [one.name for one in apps.values()])}: nothing here keeps a view of a stream; name "
            f"the stream, App(streams=[Streaming(...)]), or start the program that does"
        )
    report, stopping = open_report("run", as_json=json_logs), Stopping()
    if with_parent:
        end_with_parent(stopping.event)
    ensure_topics(apps.values(), settings, stopping.event, report)
    for one in wanted.values():
        begin_reactions(one, settings)
    called = ", ".join(one.name for one in wanted.values())
    report("starting", {"app": called, "parts": ", ".join(part.name for part in parts)})
    code = Supervisor(parts, stop=stopping.event, report=report).run()
    report("stopped", {})
    raise typer.Exit(code or stopping.code)
