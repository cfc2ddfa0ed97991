"""`leftfold run`: starts the processes of Apps and keeps them running."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from leftfold.cli.options import (
    EVERY,
    MAX_PARKED,
    AppsOption,
    ArchiveOption,
    KafkaOption,
    LogsOption,
    MasterOption,
    MaxParkedOption,
    MetricsOption,
    PyFilesOption,
    RedisOption,
    examples,
    seconds,
)
from leftfold.cli.run.child_process import end_with_parent, handover, logs_of, spark_handover
from leftfold.errors import InfrastructureError
from leftfold.model.app import App
from leftfold.redis import refuse_eviction
from leftfold.runtime.connect import kafka_settings, redis_settings
from leftfold.runtime.lifecycle import Outage, Stopping, begin_reactions, ensure_topics, refuse_foreign_workers
from leftfold.runtime.logging import open_report
from leftfold.runtime.project import Usage, archive_of, load_apps, names_in, unknown
from leftfold.runtime.supervisor import Part, Supervisor
from leftfold.runtime.telemetry_export import ObservedApps, check_address, measured_run

__all__ = ["chosen", "chosen_of", "parts_of"]


PROJECTOR, STREAM, QUERIES = "projector", "stream", "queries"
"""Kinds of parts for views: `projector` or `stream` folds views, `queries` computes query views. Parts are named so."""


def chosen(app: App, names: Sequence[str]) -> App:
    """The App with only the members of these names, and the streams of such views; all of it without names."""
    return next(iter(chosen_of({"": app}, names).values()))


def chosen_of(apps: Mapping[str, App], names: Sequence[str]) -> dict[str, App]:
    """The same as `chosen` for several Apps; an App without a wanted member is left out.

    Raises:
        Usage: no App has a member of a name.
    """
    members, called = {spec: names_in(app) for spec, app in apps.items()}, ", ".join(a.name for a in apps.values())
    known = set().union(*members.values())
    for name in names:
        if name not in known:
            raise unknown(f"decider, process, reaction, stream or view in app {called} called", name, known)
    if not known:
        raise Usage(f"app {called} has no deciders, processes, reactions, streams or views; there is nothing to run")
    wanted = set(names) or known
    return {spec: _only(app, wanted) for spec, app in apps.items() if wanted & members[spec]}


def _only(app: App, wanted: Collection[str]) -> App:
    streams = [s for s in app.streams if s.name in wanted or any(view.name in wanted for view in s.views)]
    kept = {view.name for stream in streams for view in stream.views}
    return App(
        app.name,
        partitions=app.partitions,
        deciders=[d for d in app.deciders if d.name in wanted],
        processes=[p for p in app.processes if p.name in wanted],
        reactions=[r for r in app.reactions if r.name in wanted],
        views=[v for v in app.views if v.name in wanted or v.name in kept],
        streams=streams,
    )


def parts_of(
    app: App,
    workers: int,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    views_by: str = PROJECTOR,
    alone: bool = True,
) -> list[Part]:
    """The processes that run everything in an App.

    Args:
        workers: how many per decider, process, router, reaction and stream without views; they share its partitions.
        arguments: handed on to each part. environment: of each part, added to this process's. views_by: what folds
            views. alone: no other App is run beside it; else its parts for views get the App's name as prefix.
    """

    def part(name: str, kind: str, names: Sequence[str]) -> Part:
        command = (sys.executable, "-m", "leftfold.cli.run.child_process", f"--name={name}", *arguments, kind, *names)
        return Part(name, command, environment)

    parts = [part(stream.name, "agents", [stream.name]) for stream in app.streams if stream.views]
    working = [("decider", d.name, d.name) for d in app.deciders]
    for process in app.processes:
        working += [("decider", process.name, process.name), ("router", f"{process.name}.router", process.name)]
    working += [("reaction", reaction.name, reaction.name) for reaction in app.reactions]
    working += [("agents", stream.name, stream.name) for stream in app.streams if not stream.views]
    for kind, called, of in working:
        named = [called] if workers == 1 else [f"{called}.{number}" for number in range(1, workers + 1)]
        parts += [part(name, kind, [of]) for name in named]
    for name, folded in ((views_by, True), (QUERIES, False)):
        if views := [view.name for view in app.views if view.folded is folded and not view.streamed]:
            parts.append(part(name if alone else f"{app.name}.{name}", name, views))
    return parts


class ViewEngine(StrEnum):
    """What folds views: a projector or Spark."""

    PROJECTOR = "projector"
    SPARK = "spark"


_BY = {ViewEngine.PROJECTOR: "projector", ViewEngine.SPARK: "stream"}

EXAMPLES = examples(
    "leftfold run                          everything in the App",
    "leftfold run --app shop.orders:app --app shop.stock:app     several Apps, which may react to each other",
    "leftfold run baskets --workers 2      one decider, two processes sharing its partitions",
    "leftfold run basket_summary           one view",
    "leftfold run basket_summary --engine spark --trigger 5     by Spark streaming, every 5 s",
    "leftfold run --metrics 127.0.0.1:9464 /metrics of all parts for Prometheus",
    "leftfold run store_daily --every 30s  a query view, which Spark computes every half a minute",
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
    engine: Annotated[ViewEngine, typer.Option("--engine", help="What folds views.")] = ViewEngine.PROJECTOR,
    master: MasterOption = None,
    py_files: PyFilesOption = None,
    trigger: Annotated[
        float,
        typer.Option("--trigger", metavar="TIME", parser=seconds, help="Spark: from batch to batch; 0 = as they come."),
    ] = 0.0,
    every: Annotated[
        float,
        typer.Option("--every", metavar="TIME", parser=seconds, help="How often Spark computes query views: 90s, 5m."),
    ] = EVERY,
    max_parked: MaxParkedOption = MAX_PARKED,
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    metrics: MetricsOption = "",
    json_logs: LogsOption = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Run the deciders, processes, reactions, streams and views of an App, or of several, until Ctrl-C.

    Creates missing topics and starts a worker for each decider and each process, a router for each process, one part
    for each reaction and each stream, one for all folded views and one with Spark for all query views. Restarts what
    dies, and stops everything in order on Ctrl-C or SIGTERM. Waits for servers that do not answer; a stream waits as
    well while another process keeps its views. With --engine spark views are folded by Spark streaming, seconds behind
    the log but on as many machines as its master has; also beside a projector. A reaction that has never run begins
    now: it acts on events from here on. With --metrics one address has the metrics of all parts.
    """
    if engine is ViewEngine.PROJECTOR and (master or py_files or trigger):
        raise Usage("--master, --py-files and --trigger are Spark's; say --engine spark, too")
    if metrics:
        check_address(metrics)
    apps = load_apps(app or [])
    wanted = chosen_of(apps, names or [])
    settings = kafka_settings(kafka)
    if any(one.views for one in wanted.values()):
        with suppress(InfrastructureError):
            # A Redis that does not answer yet is checked by the parts.
            refuse_eviction(redis_settings(redis))
    handed = [f"--logs={logs_of(json_logs)}", f"--trigger={trigger}", f"--every={every}"]
    handed += [f"--max-parked={max_parked}", *(["--no-archive"] if archive == "" else [])]
    handed += ["--takes-back"] if with_parent else []
    environment = handover(kafka=kafka, redis=redis, archive=archive) | spark_handover(master, py_files or ())
    parts = [
        part
        for spec, one in wanted.items()
        for part in parts_of(
            one, workers, [f"--app={spec}", *handed], environment, views_by=_BY[engine], alone=len(apps) == 1
        )
    ]
    if not parts:
        raise Usage(
            f"{' '.join(names or [one.name for one in apps.values()])}: nothing here keeps a view of a stream; name "
            f"the stream, App(streams=[Streaming(...)]), or start the program that does"
        )
    observed = ObservedApps(list(wanted.values()), kafka, redis, archive_of(archive))
    report, stopping = open_report("run", as_json=json_logs), Stopping()
    if with_parent:
        end_with_parent(stopping.event.set)
    ensure_topics(apps.values(), settings, Outage(report, stopping.event))
    for one in wanted.values():
        refuse_foreign_workers(one, settings)
        begin_reactions(one, settings, Outage(report, stopping.event))
    called = ", ".join(one.name for one in wanted.values())
    report("starting", {"app": called, "parts": ", ".join(part.name for part in parts)})
    with measured_run(metrics, [part.name for part in parts], observed) as shared:
        parts = [replace(part, environment={**part.environment, **shared}) for part in parts]
        code = Supervisor(parts, stop=stopping.event, report=report).run()
    report("stopped", {})
    raise typer.Exit(code or stopping.code)
