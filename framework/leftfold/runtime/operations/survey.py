"""Survey of servers, workers and views: rows and problems, which `leftfold status` prints.

What cannot be examined is reported as a problem and raises no error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from leftfold.client.lookup import start_command
from leftfold.client.results import describe
from leftfold.engine.streaming.computed_rows import batch_of, no_beginning
from leftfold.engine.views.cleanup import leftovers, projectors_of, undeclared, way_out
from leftfold.engine.views.code_claims import active_projectors, mixture
from leftfold.engine.views.generations import log_mismatch
from leftfold.errors import InfrastructureError, LeftfoldError, ViewNotBuilt
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.keys import NO_ROW
from leftfold.model.position import Position
from leftfold.model.state_codec import time_in
from leftfold.model.view import View
from leftfold.ports.bulk import BulkStore
from leftfold.ports.flush import Generation, Parked, Phase, Registry
from leftfold.ports.protocols import ViewStore
from leftfold.runtime.console import amount, shown_path
from leftfold.runtime.lifecycle import folds_of
from leftfold.runtime.operations.cluster_state import ClusterState, topics_of_members
from leftfold.runtime.operations.components import (
    MOST_STATES,
    survey_processes,
    survey_reactions,
    survey_streams,
    survey_workers,
    unknown_lateness,
    why_late,
)
from leftfold.runtime.operations.dead_letters import dead_waiting
from leftfold.runtime.project import local_settings
from leftfold.runtime.servers import store_of
from leftfold.safety import veiled

__all__ = ["Survey", "generation_problems", "look_for_others"]


def generation_problems(view: View[Any, Any], store: BulkStore, fold: str) -> list[str]:
    """Problems of a view's generations that projectors of several codes fold, or that other code has left over.

    Args:
        fold: the hash of the fold's code.
    """
    mixed = mixture(store, store.registry(view.name), view, fold) if view.folded else ()
    return [*mixed, *map(way_out, leftovers(store, view))]


def look_for_others(store: BulkStore, apps: Mapping[str, App], seconds: float) -> list[str]:
    """Problems of Redis views that no loaded App declares and that no projector works on.

    The search stops after `seconds`; it is left out where no App has views.
    """
    declared = {view.name for app in apps.values() for view in app.views}
    if not declared:
        return []
    called = ", ".join(app.name for app in apps.values())
    return [other.way_out(called) for other in undeclared(store, declared, seconds) if not other.projectors]


Row = dict[str, Any]
_LONGEST_LOOK = 0.5
"""Seconds for the search for views that no App declares."""


class Survey:
    """The rows of `leftfold status`, each with its `kind` and `name`.

    `problems` are printed below the rows; `remarks` are those of them that are no fault, such as generations of other
    code. `missing` is true when an expected server does not answer.

    Args:
        archive: the archive with events that topics have lost; '' = none.
        most_states: timers of a process are counted where its state topic has no more offsets.
    """

    def __init__(self, kafka: str | None, redis: str | None, archive: str = "", most_states: int = MOST_STATES) -> None:
        self._kafka, self._redis, self._archive, self._most = kafka, redis, archive, most_states
        self.problems: list[str] = []
        self.remarks: list[str] = []
        self.missing = False
        self._surveyed: tuple[App, ClusterState] | None = None
        self._ends = Position()
        self._starts = Position()
        self._ids: dict[str, str] = {}

    def rows(self, apps: Mapping[str, App]) -> list[Row]:
        """The rows of servers and of everything in these Apps; afterwards `problems` are complete."""
        found = self.servers()
        for app in apps.values():
            found += [*self.deciders(app), *self.parts(app), *self.views(app)]
        self.others(apps)
        return found

    def servers(self) -> list[Row]:
        """Rows of the project's embedded servers, or of the servers that are configured instead."""
        from leftfold.runtime.discovery import Environment

        environment = Environment()
        configured = {"kafka": self._kafka or environment.kafka, "redis": self._redis or environment.redis}
        rows = [
            {"kind": "server", "name": name, **_place(name, address), "state": "configured"}
            for name, address in configured.items()
            if address
        ]
        if not all(configured.values()):
            rows += self._embedded({name for name, address in configured.items() if not address})
        return rows

    def _embedded(self, wanted: set[str]) -> list[Row]:
        from leftfold.local import status

        data = local_settings().data
        found, rows = status(data), []
        for server in found.servers:
            if server.name in wanted:
                wanted.remove(server.name)
                row = {**_place(server.name, server.address), "pid": server.pid, "uptime": round(server.uptime, 1)}
                rows.append({"kind": "server", "name": server.name, **row, "state": "up" if server.up else "down"})
                self.missing = self.missing or not server.up
                if not server.up:
                    self.problems.append(f"{server.name}: {server.reason}; its log: {server.log}; {found.advice}")
        if wanted:
            self.missing = True
            self.problems.append(f"{' and '.join(sorted(wanted))}: nothing runs in {shown_path(data)}; {found.advice}")
        return rows

    def deciders(self, app: App) -> Iterator[Row]:
        """A row per decider, with its workers and the length of its log in offsets (transaction markers included).

        Bytes of state per command and answers dropped early are as workers recorded them.
        """
        self._surveyed = None
        with self._reporting():
            state = self._state(app)
            logs = state.there(map(names.events, _categories(app)))
            self._ends, self._starts = state.ends(logs), state.starts(logs)
            self._ids = state.identities(logs)
            for row in survey_workers(app, state, self.problems):
                name = row["name"]
                waiting, problems = dead_waiting(state, name)
                self.problems += [f"decider {name}: {problem}" for problem in problems]
                checkpoints = state.checkpoints(names.state(name, row["version"])).values()
                yield {
                    **row,
                    "partitions": state.topics.get(names.events(name)) or app.partitions,
                    "offsets": sum(self._ends.offsets.get(names.events(name), {}).values()),
                    "per_command": max((one.per_command for one in checkpoints), default=0),
                    "answers_dropped": sum(one.answers_dropped for one in checkpoints),
                    "dead": waiting,
                }

    def parts(self, app: App) -> Iterator[Row]:
        """A row per process, reaction and stream, with its backlog."""
        with self._reporting():
            yield from survey_processes(app, self._state(app), self.problems, self._most) if app.processes else ()
        for survey, members in ((survey_reactions, app.reactions), (survey_streams, app.streams)):
            with self._reporting():
                yield from survey(app, self._state(app), self.problems) if members else ()

    def views(self, app: App) -> Iterator[Row]:
        """A row per generation of each view."""
        for _, rows in self._views(app):
            yield from rows

    def members(self, app: App) -> Iterator[Row]:
        """One row per decider, process, reaction, stream and view, each with the `problems` that concern it.

        `remarks` are those that are no fault; they are not among the `problems` of the row.
        Of a view it is the row of the generation that readers see, if there is one; `problems` of this survey has more,
        which concern no member.
        """
        for section in (self.deciders, self.parts):
            before = len(self.problems)
            for row in section(app):
                yield {**row, **self._said(before)}
                before = len(self.problems)
        before = len(self.problems)
        for name, rows in self._views(app):
            seen = next((row for row in rows if row.get("live") and row["is_current"]), rows[-1] if rows else {})
            yield {"kind": "view", "name": name, **seen, **self._said(before)}
            before = len(self.problems)

    def _said(self, before: int) -> Row:
        """The problems since there were so many, and the remarks among them."""
        said = self.problems[before:]
        remarks = [one for one in said if one in self.remarks]
        return {"problems": [one for one in said if one not in remarks], "remarks": remarks}

    def _views(self, app: App) -> Iterator[tuple[str, list[Row]]]:
        """Each view with its rows, one per generation."""
        if not app.views:
            return
        with self._reporting(), store_of(self._redis) as store:
            folds = folds_of(app)
            for view in app.views:
                rows = list[Row]()
                try:
                    rows.extend(self._view(view, store, self._state(app)))
                    self._remark(*generation_problems(view, store, folds.get(view.name, "")))
                except InfrastructureError:
                    raise
                except LeftfoldError as error:  # a problem of one view must not hide the other views
                    self.problems.append(str(error))
                yield view.name, rows

    def _state(self, app: App) -> ClusterState:
        """What the brokers have answered since `deciders` was asked for this App."""
        if self._surveyed is None or self._surveyed[0] is not app:
            self._surveyed = app, ClusterState(self._kafka, self._archive, topics_of_members(app))
        return self._surveyed[1]

    def others(self, apps: Mapping[str, App]) -> None:
        """Adds problems for views that none of these Apps declares and no projector works on."""
        with self._reporting(), store_of(self._redis) as store:
            self.problems += look_for_others(store, apps, _LONGEST_LOOK)

    def _view(self, view: View[Any, Any], store: ViewStore, state: ClusterState) -> Iterator[Row]:
        registry = store.registry(view.name)
        begun = registry.begun_of(view.hash)
        if registry.live_of(view.hash) is None and begun is None:
            self.problems.append(
                f"view {view.name} has no live generation for this code; "
                + (
                    "start its stream"
                    if view.streamed
                    else f"{start_command(view)}, or build it: leftfold rebuild {view.name}"
                )
            )
        for generation in sorted(registry.generations.values(), key=lambda g: g.created):
            row = self._generation(view, generation, registry, store)
            if generation.phase in (Phase.LIVE, Phase.HELD) and (why := log_mismatch(generation, self._ids)):
                self.problems.append(why)
            if row.get("live"):
                at_work = active_projectors(store, view.name, generation.hash, [generation.fold])
                # Views that a query or a stream computes never have any.
                row["projectors"] = len(at_work.of(generation.fold)) if view.folded and not view.streamed else None
                if row["lag"] is not None and generation.hash == view.hash:
                    row["behind"] = self._behind(view, row, state)
            elif generation == begun and "lag" in row and registry.live_of(view.hash) is None:
                self._tell_begun(view, row, store, generation)
            yield row

    def _tell_begun(self, view: View[Any, Any], row: Row, store: ViewStore, begun: Generation) -> None:
        """Adds a problem that says how far a view's first generation has been built."""
        done = Position(row["position"]).ahead_of(Position())
        whole = "" if row["lag"] is None else f" of {done + row['lag']:,} ({done / max(1, done + row['lag']):.0%})"
        projectors = (
            ""
            if projectors_of(store, view.name, begun.hash)
            else f"; no projector is at work: leftfold run {view.name}"
        )
        self.problems.append(
            f"view {view.name} is being built for this code: generation {begun.id} has folded {done:,} offsets{whole}"
            f"{projectors}"
        )

    def _behind(self, view: View[Any, Any], row: Row, state: ClusterState) -> float | None:
        """Seconds that a live generation is behind; None = unknown, which is reported and does not stop the survey."""
        try:
            behind = state.seconds_behind(Position(row["position"])) if row["lag"] else 0.0
        except LeftfoldError as error:
            self.problems.append(unknown_lateness(view, error))
            return None
        if late := why_late(view, behind=behind, lag=row["lag"], projectors=row["projectors"] or 0):
            self.problems.append(late)
        return round(behind, 3)

    def _generation(self, view: View[Any, Any], generation: Generation, registry: Registry, store: ViewStore) -> Row:
        row: Row = {"kind": "view", "name": view.name, "generation": generation.id, "hash": generation.hash}
        if generation.name:
            row["called"] = generation.name
        phase = generation.phase.value if generation.hash == view.hash else f"{generation.phase.value} (other code)"
        try:
            found = describe(view, generation, store)
        except ViewNotBuilt as error:
            self.problems.append(str(error))
            return {**row, "phase": f"{phase}, not whole"}
        live = registry.live.get(generation.hash) == generation.id
        if live and not view.folded:
            row |= self._kept(view, generation, store)
        for key, parked in found.parked.items() if live and generation.hash == view.hash else ():
            text = _parked(view.name, key, parked)
            self._remark(text) if key == NO_ROW else self.problems.append(text)
        return {
            **row,
            "phase": phase,
            "live": live,
            **({"code": generation.fold, "codes": list(generation.folds)} if generation.folds else {}),
            **({"since": generation.since, "until": generation.until} if generation.phase is Phase.KEPT else {}),
            "is_current": generation.hash == view.hash,
            "created": generation.created,
            "rows": found.rows,
            "checksum": found.checksum,
            "approximate": found.approximate,
            "lag": self._lag(found.position),
            "done": found.position.ahead_of(Position()),
            "parked": sorted(found.parked),
            # A record of another writer may have any, and the greatest text stays for ever.
            "time": found.time if time_in(found.time.encode()) else "",
            "position": found.position.offsets,
        }

    def _kept(self, view: View[Any, Any], generation: Generation, store: ViewStore) -> Row:
        """How the rows of a view that Spark computes are refreshed; not incrementally if its log was trimmed."""
        if view.streamed:
            return {"kept": "by its own stream"}
        if batch_of(store.checkpoints(generation)) is not None:
            return {"kept": "incremental"}
        why = no_beginning(generation.topics, self._starts)
        if why and generation.hash == view.hash:
            self._remark(f"view {view.name} is kept by batch and swap: {why}")
        return {"kept": "batch and swap", **({"why": why} if why else {})}

    def _remark(self, *texts: str) -> None:
        self.problems += texts
        self.remarks += texts

    def _lag(self, position: Position) -> int | None:
        ends = self._ends.only(position.offsets)
        return ends.ahead_of(position) if ends.offsets else None

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Adds the error of a server that does not answer to the problems; of several, the first."""
        try:
            yield
        except LeftfoldError as error:
            if not self.missing:
                self.problems.append(str(error))
            self.missing = True


def _categories(app: App) -> list[str]:
    return list(dict.fromkeys([*(d.name for d in app.deciders), *(c for v in app.views for c in v.categories)]))


def _parked(view: str, key: str, parked: Parked) -> str:
    """The problem line of a parked row in `leftfold status`."""
    if key == NO_ROW:
        events = amount(parked.waiting, "event")
        return f"view {view} leaves out {events} without a row; leftfold explain {view} '{NO_ROW}'"
    return f"view {view} parks {key}: {parked.error}; when the fold is correct: leftfold retry {view}"


def _place(name: str, address: str) -> Row:
    """The address of a server, and for Redis its topology: one server, Sentinel or Cluster."""
    topology = {"topology": address.partition("://")[0].partition("+")[2] or "server"} if name == "redis" else {}
    return {"address": veiled(address), **topology}
