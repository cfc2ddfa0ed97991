"""The parts that `leftfold run` keeps running: workers, routers, reactions, streams, one for folds, one for queries."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence

from leftfold.app import App
from leftfold.cli.failures import Usage, unknown
from leftfold.cli.project import names_in
from leftfold.supervisor import Part

__all__ = ["QUERIES", "STREAM", "TAIL", "chosen", "chosen_of", "parts_of"]

TAIL, STREAM, QUERIES = "tail", "stream", "queries"
"""What folds views, either of the two, and what computes those that are queries; parts are called after their kind."""


def chosen(app: App, names: Sequence[str]) -> App:
    """The App with only what has these names, and the streams of views that have; all of it when there are none.

    Raises:
        Usage: a name is none of them.
    """
    return next(iter(chosen_of({"": app}, names).values()))


def chosen_of(apps: Mapping[str, App], names: Sequence[str]) -> dict[str, App]:
    """The same of several Apps; one in which nothing is wanted is left out.

    Raises:
        Usage: a name is in none of them.
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
    views_by: str = TAIL,
    alone: bool = True,
) -> list[Part]:
    """The processes that run everything in an App.

    Args:
        workers: how many per decider, process, router, reaction and stream without views; they share its partitions.
        arguments: handed on to each part. environment: of each part, besides ours. views_by: what folds views.
        alone: whether no other App is run beside it, whose parts for views have names of the same kind.
    """

    def part(name: str, kind: str, names: Sequence[str]) -> Part:
        command = (sys.executable, "-m", "leftfold.cli.part", f"--name={name}", *arguments, kind, *names)
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
