"""The live projector: folds new events into every generation of an App's views, shared with other projectors."""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any, TypeAlias

from leftfold.engine.archive.gaps import beginning
from leftfold.engine.views.cleanup import remove_ended
from leftfold.engine.views.code_claims import (
    Attendance,
    attendance,
    claimed,
    is_claimable,
    member_of,
    names_fold,
    next_steps,
)
from leftfold.engine.views.generations import (
    BUCKETS,
    GenerationReporter,
    Identities,
    change,
    followed,
    has_ended,
    open_generation,
    promote_first,
    topics_of,
)
from leftfold.engine.views.projection_writer import MAX_PARKED, ProjectionWriter
from leftfold.engine.views.shared_subscription import SharedSubscription
from leftfold.errors import LeftfoldError, LogGap, ViewNotBuilt
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.flush import Generation, Phase, Registry, covered
from leftfold.ports.protocols import LogReader, Report, ViewStore

__all__ = ["Projector", "shares_of"]


def shares_of(members: Sequence[str], generation: Generation) -> dict[str, frozenset[int]]:
    """Assigns the buckets of a generation to members, evenly and with few moves when a member joins or leaves.

    This is rendezvous hashing (Thaler and Ravishankar, 1998) with the even share as a bound. Buckets of stream-keyed
    views are source partitions, and all such views assign one partition to one member, which then reads it once.
    """
    most = -(-generation.buckets // max(1, len(members)))
    kind = "partition" if generation.stream_keyed else "bucket"
    load: Counter[str] = Counter()
    shares: dict[str, set[int]] = {member: set() for member in members}
    for bucket in range(generation.buckets) if members else ():
        ranked = sorted(members, key=lambda member: _rank(kind, bucket, member))
        owner = next(member for member in ranked if load[member] < most)
        load[owner] += 1
        shares[owner].add(bucket)
    return {member: frozenset(buckets) for member, buckets in shares.items()}


def _rank(kind: str, bucket: int, member: str) -> bytes:
    return blake2b(f"{kind} {bucket} {member}".encode(), digest_size=8).digest()


_Name: TypeAlias = tuple[str, str]


class Projector:
    """The projector: folds new events into every generation of some views; catching up is the same loop.

    Several projectors of a view share its buckets. A projector without buckets stands by and takes over the buckets of
    a dead one within seconds. A projection writer that is new, or that lost its place to another writer or to a store
    that went back in time, reads in a subscription of its own and joins the main one when it has caught up. A view
    whose first events are no longer in the log waits for a rebuild; the other views continue.

    Args:
        open_log: makes a reader; one per subscription.
        batch, growth: how many events are read at a time, and how many batches one flush holds at most.
        buckets: of generations that it creates, unless the view is stream-keyed.
        look: seconds between looks at generations and other projectors.
        lease: seconds without a heartbeat after which the other projectors treat one as dead.
        member: this projector's name in the group.
        max_parked: how many keys of a view may be parked in its buckets before it stops.
        folds: the hash of the fold code by view. A generation is folded by the code that claimed it last: a rebuild, or
            a projector that starts with code unknown so far. Projectors of other code stand by for it.
        takes_back: at its start it also claims what readers see if its code was superseded before: for a developer who
            switches between versions and runs no other projector.
        absence: seconds without any projector of the code that folds a generation until waiting code claims it.
        started: the views that this process has looked at before, shared by the projectors that it makes in turn: only
            its first look counts as a start.
        report: called with (what, details) for the operator.
    """

    def __init__(
        self,
        views: Iterable[View[Any, Any]],
        open_log: Callable[[], LogReader],
        store: ViewStore,
        *,
        batch: int = 2000,
        buckets: int = BUCKETS,
        growth: int = 64,
        look: float = 0.25,
        lease: float = 3.0,
        member: str = "",
        max_parked: int = MAX_PARKED,
        folds: Mapping[str, str] | None = None,
        takes_back: bool = False,
        absence: float = 30.0,
        started: set[str] | None = None,
        report: Report = lambda what, details: None,
    ) -> None:
        self.views = tuple(view for view in views if view.folded)
        self.member = member or secrets.token_hex(8)
        self._open, self._store, self._batch, self._look, self._report = open_log, store, batch, look, report
        self._lease, self._growth, self._max_parked, self._buckets = lease, growth, max_parked, buckets
        self._folds = dict(folds or {}) if all((folds or {}).get(view.name) for view in self.views) else {}
        self._takes_back = takes_back
        self._called = member_of(self.member) if self._folds else self.member
        self._groups: list[SharedSubscription] = []
        self._targets: dict[_Name, Position] = {}
        self._known: dict[_Name, ProjectionWriter] = {}
        self._lost: set[str] = set()
        self._started = set[str]() if started is None else started
        self._absence, self._missed = absence, dict[tuple[str, str], float]()
        self._looked = float("-inf")
        self._waiting: list[tuple[float, ProjectionWriter]] = []
        self._admin = open_log()
        self._ids, self._reporter = Identities(self._admin), GenerationReporter(report)

    def step(self, timeout: float = 0.1) -> int:
        """Looks for new generations when due, and folds new events for each subscription; returns how many events."""
        current_time = time.monotonic()
        if current_time - self._looked >= self._look:
            if current_time - self._looked > self._lease:
                # A projector that was paused has seen no heartbeat of the others, and they have seen none of its own.
                self._missed.clear()
            self._looked = current_time
            self._look_around()
        self._return_waiting(current_time)
        count = 0
        for group in list(self._groups):
            alone = len(self._groups) == 1
            events, left = group.step(self._batch, timeout if alone else 0.0, 1 / len(self._groups))
            count += events
            self._step_aside(left)
        self._settle()
        if not count and len(self._groups) != 1:
            # None of several subscriptions waits for events, since the others would wait with it.
            time.sleep(min(timeout, 0.02))
        return count

    def caught_up(self) -> bool:
        """Whether every view of this code has a live generation and all active writers share one subscription."""
        return (
            len(self._groups) <= 1
            and not self._waiting
            and all(self._store.registry(view.name).live_of(view.hash) for view in self.views)
        )

    def writers(self) -> list[ProjectionWriter]:
        """The projection writers of all followed generations."""
        return list(self._known.values())

    def close(self) -> None:
        """Waits for pending flushes, ends this projector's membership and closes every reader."""
        with suppress(LeftfoldError):
            for group in self._groups:
                group.land()
            self._send_heartbeat(0.0)
        for group in self._groups:
            group.close()
        self._admin.close()

    def _send_heartbeat(self, seconds: float) -> dict[str, Attendance]:
        """Sends a heartbeat with this projector's code; returns the projectors of the same schema by view."""
        groups = {view.name: names.projectors(view.name, view.hash) for view in self.views}
        codes = {v.name: names.coders(v.name, v.hash, self._folds[v.name]) for v in self.views if self._folds}
        found = self._store.heartbeat([*groups.values(), *codes.values()], self._called, seconds) if groups else {}
        return {
            view: Attendance(found[group], {self._folds[view]: found[codes[view]]} if codes else {})
            for view, group in groups.items()
        }

    def _look_around(self) -> None:
        members = self._send_heartbeat(self._lease)
        for view in self.views:
            registry = self._claim(view, self._store.registry(view.name))
            for generation in filter(has_ended, registry.generations.values()):
                remove_ended(self._store, generation)
            mine = followed(registry, view, self._folds.get(view.name, ""))
            if not mine and registry.live_of(view.hash) is None:
                mine = self._create(view)
            mine = {i: g for i, g in mine.items() if self._reporter.is_of_log(g, self._ids.of(g.topics))}
            for name in [known for known in self._known if known[0] == view.name and known[1] not in mine]:
                self._forget(name)
            for id_, generation in mine.items():
                fellows = members[view.name].of(generation.fold if self._folds else "")
                share = shares_of(fellows, generation)[self._called]
                known = self._known.get((view.name, id_))
                if known is None or known.buckets != share:
                    self._adopt(view, generation, share)
            self._reporter.standing_by(view, registry, self._folds.get(view.name, ""))
        for writer in self._known.values():
            self._reporter.parked(writer.generation, writer.checkpoints)

    def _claim(self, view: View[Any, Any], registry: Registry) -> Registry:
        """Claims the generations that this code may fold.

        New code claims at once; other code claims when no projector of the code that folds them is left. The flush that
        follows changes every token. So a projector of the earlier code writes no more, unless it reads the checkpoints
        again, and then it looks at the registry after that.
        """
        fold, name = self._folds.get(view.name, ""), view.name
        is_first = name not in self._started
        is_new, again = is_first and not names_fold(registry, view, fold), is_first and self._takes_back
        self._started.add(name)
        for generation in list(registry.generations.values()):
            if generation.hash != view.hash or not is_claimable(generation, fold, again=again):
                continue
            before = generation.fold
            if is_new or again or not before or self._is_missed(view, before):
                registry = change(self._store, name, lambda r, g=generation: claimed(r, g, fold, again=again))  # type: ignore[misc]
        return registry

    def _is_missed(self, view: View[Any, Any], code: str) -> bool:
        """Whether no projector of this code has sent a heartbeat for as long as a restart or outage may take."""
        if attendance(self._store, view.name, view.hash, [code]).of(code):
            self._missed.pop((view.name, code), None)
            return False
        current_time = time.monotonic()
        return current_time - self._missed.setdefault((view.name, code), current_time) >= self._absence

    def _is_mine(self, writer: ProjectionWriter) -> bool:
        """Whether a generation exists and is still folded by this code; asked after each look at its checkpoints."""
        view = writer.view
        return writer.generation.id in followed(self._store.registry(view.name), view, self._folds.get(view.name, ""))

    def _create(self, view: View[Any, Any]) -> dict[str, Generation]:
        """Creates a generation; none where the log has lost its first events, which is reported once."""
        if view.name in self._lost:
            return {}
        topics = topics_of(view, self._admin.partitions)
        try:
            self._admin.check(beginning(topics))
        except LogGap as error:
            self._lost.add(view.name)
            self._report("view stopped", {"view": view.name, "why": str(error)})
            return {}
        options: dict[str, Any] = {"folds": (self._folds[view.name],)} if self._folds else {}
        options |= {"ids": self._ids.of(topics), "unless_followed": True}
        generation = open_generation(self._store, view, topics, Phase.SEALED, self._buckets, **options)
        self._targets[view.name, generation.id] = self._admin.ends(topics)
        self._report("generation begun", {"view": view.name, "generation": generation.id})
        return {generation.id: generation}

    def _adopt(self, view: View[Any, Any], generation: Generation, share: frozenset[int]) -> None:
        name = view.name, generation.id
        self._forget(name)
        try:
            writer = ProjectionWriter(view, generation, self._store, buckets=share, max_parked=self._max_parked)
        except ViewNotBuilt as error:
            self._discard(generation, error)
            return
        if not self._is_mine(writer):
            return
        if generation.phase is Phase.LIVE and len(generation.folds) > 1:
            # Rows that other code of the same version has folded stay as they are; new ones are folded by this code.
            self._report("fold changed", {"view": view.name, "generation": generation.id, "do": next_steps(view.name)})
        if not generation.ids and (ids := self._ids.of(generation.topics)):
            change(self._store, view.name, lambda r: r.known_by(generation.id, ids))
        if self._store.registry(view.name).live_of(view.hash) is None:
            self._targets.setdefault(name, self._admin.ends(generation.topics))
        if share:
            writer.fold((), writer.position())
            self._groups.append(SharedSubscription(self._open, [writer], self._store, self._growth))
        self._known[name] = writer

    def _discard(self, generation: Generation, error: ViewNotBuilt) -> None:
        if generation.id not in self._store.registry(generation.view).generations:
            return
        self._report("generation lost", {"view": generation.view, "generation": generation.id, "why": str(error)})
        change(self._store, generation.view, lambda r: r.without(generation.id))
        self._store.unlink(generation)

    def _forget(self, name: _Name) -> None:
        """Stops following a generation; a pending flush lands first."""
        dropped = self._known.pop(name, None)
        for group in [group for group in self._groups if dropped in group.writers]:
            self._step_aside(group.land())
            group.writers = [writer for writer in group.writers if writer is not dropped]
        self._waiting = [(at, writer) for at, writer in self._waiting if writer is not dropped]

    def _step_aside(self, left: Iterable[ProjectionWriter]) -> None:
        """Makes writers that met another writer wait a random time up to 0.2 s before they read checkpoints."""
        for writer in left:
            self._report("out of step", {"view": writer.view.name, "generation": writer.generation.id})
            self._waiting.append((time.monotonic() + random.uniform(0.0, 0.2), writer))

    def _return_waiting(self, current_time: float) -> None:
        for waiting in [w for w in self._waiting if w[0] <= current_time]:
            writer = waiting[1]
            try:
                writer.reread()  # may raise that the store is not reachable: then the writer keeps waiting
            except ViewNotBuilt as error:
                self._known.pop((writer.view.name, writer.generation.id), None)
                self._discard(writer.generation, error)
            else:
                if self._is_mine(writer):
                    self._groups.append(SharedSubscription(self._open, [writer], self._store, self._growth))
                else:
                    self._known.pop((writer.view.name, writer.generation.id), None)
            self._waiting.remove(waiting)

    def _settle(self) -> None:
        """Promotes generations at their target, removes stopped writers and joins subscriptions that caught up."""
        for group in self._groups:
            for writer in [f for f in group.writers if f.stopped]:
                group.writers.remove(writer)
                self._report("view stopped", {"view": writer.view.name, "why": writer.stopped})
        for name, target in list(self._targets.items()):
            known = self._known.get(name)
            if known is None:
                del self._targets[name]
            elif self._is_past(known, target):
                del self._targets[name]
                promote_first(self._store, known.generation)
                self._report("generation live", {"view": name[0], "generation": name[1]})
        for group in [g for g in self._groups if not g.writers]:
            group.close()
            self._groups.remove(group)
        self._join()

    def _is_past(self, known: ProjectionWriter, target: Position) -> bool:
        """Whether the whole generation is past a position, including the buckets of other projectors."""
        generation = known.generation
        if known.buckets and not at_least(known.position(), target):
            return False
        checkpoints = (
            known.checkpoints if len(known.buckets) == generation.buckets else self._store.checkpoints(generation)
        )
        return len(checkpoints) == generation.buckets and covered(generation, checkpoints).covers(target)

    def _join(self) -> None:
        """Moves the writers of subscriptions that caught up into the main one."""
        if len(self._groups) < 2:
            return
        main, *others = self._groups
        ready = [group for group in others if at_least(group.position(), main.position())]
        if not ready:
            return
        for group in (main, *ready):
            self._step_aside(group.land())
        writers = [writer for group in (main, *ready) for writer in group.writers]
        for group in ready:
            group.close()
            self._groups.remove(group)
        main.seek(writers)


def at_least(position: Position, other: Position) -> bool:
    """Whether a position is at least as far as another on every partition that both name."""
    theirs = other.by_partition()
    return all(offset >= theirs.get(place, offset) for place, offset in position.by_partition().items())
