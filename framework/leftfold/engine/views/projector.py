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

from leftfold.engine.log_gaps import beginning
from leftfold.engine.views.code_claims import ActiveProjectors, member_of, next_steps
from leftfold.engine.views.generation_lifecycle import GenerationLifecycle
from leftfold.engine.views.generations import BUCKETS, Identities
from leftfold.engine.views.projection_writer import MAX_PARKED, ProjectionWriter
from leftfold.engine.views.shared_subscription import FLUSH_ROWS, SharedSubscription
from leftfold.errors import ContractError, InfrastructureError, LeftfoldError, LogGap, ViewNotBuilt
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.flush import Generation, Phase
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
_AGAIN_SECONDS = 10.0


class Projector:
    """The projector: folds new events into every generation of some views; catching up is the same loop.

    Several projectors of a view share its buckets. A projector without buckets stands by and takes over the buckets of
    a dead one within seconds. A projection writer that is new, or that lost its place to another writer or to a store
    that went back in time, reads in a subscription of its own and joins another one when it is equally far. A view
    whose next events are no longer in the log waits for a rebuild; the other views continue.

    Args:
        open_log: makes a reader; one per subscription.
        batch, growth: how many events are read at a time, and how many batches one flush holds at most.
        buckets: of generations that it creates, unless the view is stream-keyed.
        look: seconds between looks at generations and other projectors.
        lease: seconds without a heartbeat after which the other projectors treat one as dead.
        member: this projector's name in the group.
        max_parked: how many keys of a view may be parked in its buckets before it stops.
        folds: the hash of the fold code by view.
        takes_back: as of `GenerationLifecycle`: for a developer who switches between versions and runs no other
            projector.
        absence, started: as of `GenerationLifecycle`; the projectors that a process makes in turn share `started`.
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
        self._lease, self._growth, self._max_parked = lease, growth, max_parked
        self._folds = dict(folds or {}) if all((folds or {}).get(view.name) for view in self.views) else {}
        self._called = member_of(self.member) if self._folds else self.member
        self._groups: list[SharedSubscription] = []
        self._known: dict[_Name, ProjectionWriter] = {}
        self._lost: set[str] = set()
        self._looked = float("-inf")
        self._waiting: list[tuple[float, ProjectionWriter]] = []
        self._admin = open_log()
        self._ends, self._ends_due = Position(), float("-inf")
        options: dict[str, Any] = {"ids": Identities(self._admin), "takes_back": takes_back, "absence": absence}
        options |= {"started": set[str]() if started is None else started, "buckets": buckets, "check": self._check}
        self._lifecycles = {
            view.name: GenerationLifecycle(
                view, store, self._admin, report, fold=self._folds.get(view.name, ""), **options
            )
            for view in self.views
        }

    def step(self, timeout: float = 0.1) -> int:
        """Looks for new generations when due, and folds new events for each subscription; returns how many events."""
        current_time = time.monotonic()
        if current_time - self._looked >= self._look:
            if current_time - self._looked > self._lease:
                # A projector that was paused has seen no heartbeat of the others, and they have seen none of its own.
                for lifecycle in self._lifecycles.values():
                    lifecycle.forget_absence()
            self._looked = current_time
            self._look_around()
        self._return_waiting(current_time)
        count = 0
        for group in list(self._groups):
            alone = len(self._groups) == 1
            try:
                events, left = group.step(self._batch, timeout if alone else 0.0, 1 / len(self._groups))
            except LogGap:
                events, left = 0, self._separate(group)
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

    def _send_heartbeat(self, seconds: float) -> dict[str, ActiveProjectors]:
        """Sends a heartbeat with this projector's code; returns the projectors of the same schema by view."""
        groups = {view.name: names.projectors(view.name, view.hash) for view in self.views}
        codes = {v.name: names.coders(v.name, v.hash, self._folds[v.name]) for v in self.views if self._folds}
        found = self._store.heartbeat([*groups.values(), *codes.values()], self._called, seconds) if groups else {}
        return {
            view: ActiveProjectors(found[group], {self._folds[view]: found[codes[view]]} if codes else {})
            for view, group in groups.items()
        }

    def _look_around(self) -> None:
        members = self._send_heartbeat(self._lease)
        for view in self.views:
            mine = self._followed(view.name)
            for name in [known for known in self._known if known[0] == view.name and known[1] not in mine]:
                self._forget(name)
            for id_, generation in mine.items():
                fellows = members[view.name].of(generation.fold if self._folds else "")
                share = shares_of(fellows, generation)[self._called]
                known = self._known.get((view.name, id_))
                if known is None or known.buckets != share:
                    self._adopt(view, generation, share)
        self.report_parked()
        self._look_at_ends()

    def report_parked(self) -> None:
        """Reports the rows that have been parked since the last report."""
        for writer in self._known.values():
            self._lifecycles[writer.view.name].reporter.parked(writer.generation, writer.checkpoints)

    def _look_at_ends(self) -> None:
        """Asks for the ends of the log where subscriptions of different partitions could become one."""
        found, current_time = [group.position().by_partition() for group in self._groups], time.monotonic()
        if current_time < self._ends_due or all(one.keys() == found[0].keys() for one in found):
            return
        try:
            self._ends = self._admin.stable_ends({topic for one in found for topic, _ in one})
        except InfrastructureError:
            self._ends, self._ends_due = Position(), current_time + _AGAIN_SECONDS

    def _check(self, topics: Mapping[str, int]) -> None:
        self._admin.check(beginning(topics))

    def _followed(self, view: str) -> dict[str, Generation]:
        """The generations of a view to fold; none where the log has lost its first events, which is reported once."""
        try:
            found = self._lifecycles[view].look()
        except LogGap as error:
            if view not in self._lost:
                self._lost.add(view)
                self._report("view stopped", {"view": view, "why": str(error)})
            return {}
        self._lost.discard(view)
        return found

    def _adopt(self, view: View[Any, Any], generation: Generation, share: frozenset[int]) -> None:
        name, lifecycle = (view.name, generation.id), self._lifecycles[view.name]
        self._forget(name)
        try:
            writer = ProjectionWriter(view, generation, self._store, buckets=share, max_parked=self._max_parked)
        except ViewNotBuilt as error:
            lifecycle.drop(generation, error)
            return
        except ContractError as error:
            lifecycle.reporter.stopped(generation, str(error))
            return
        if not lifecycle.is_followed(generation, writer.checkpoints):
            return
        if generation.phase is Phase.LIVE and len(generation.folds) > 1:
            # Rows that other code of the same version has folded stay as they are; new ones are folded by this code.
            self._report("fold changed", {"view": view.name, "generation": generation.id, "do": next_steps(view.name)})
        lifecycle.note_topics(generation)
        if share:
            writer.fold((), writer.position())
            self._groups.append(SharedSubscription(self._open, [writer], self._store, self._growth))
        self._known[name] = writer

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

    def _separate(self, group: SharedSubscription) -> list[ProjectionWriter]:
        """Ends a subscription at a gap in the log: its writers return one by one, since the gap may be that of one.

        Returns those that left out of step before.
        """
        left = group.land()
        self._waiting += [(time.monotonic(), writer) for writer in group.writers if not writer.stopped]
        group.writers = [writer for writer in group.writers if writer.stopped]
        return left

    def _return_waiting(self, current_time: float) -> None:
        for waiting in [w for w in self._waiting if w[0] <= current_time]:
            writer, lifecycle = waiting[1], self._lifecycles[waiting[1].view.name]
            is_followed = False
            try:
                writer.reread()  # may raise that the store is not reachable: then the writer keeps waiting
                if is_followed := lifecycle.is_followed(writer.generation, writer.checkpoints):
                    self._admin.check(writer.position())
            except LogGap as error:
                lifecycle.reporter.stopped(writer.generation, str(error))
                self._waiting[self._waiting.index(waiting)] = (current_time + _AGAIN_SECONDS, writer)
                continue
            except ViewNotBuilt as error:
                lifecycle.drop(writer.generation, error)
            except ContractError as error:
                lifecycle.reporter.stopped(writer.generation, str(error))
            if is_followed:
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
        for writer in self._known.values():
            self._promote_at_target(writer)
        for group in [g for g in self._groups if not g.writers]:
            group.close()
            self._groups.remove(group)
        self._join()

    def _promote_at_target(self, writer: ProjectionWriter) -> None:
        """Makes a generation live when all of it is past its target, including the buckets of other projectors."""
        lifecycle, generation = self._lifecycles[writer.view.name], writer.generation
        target = lifecycle.target(generation)
        if target is None or (writer.buckets and not at_least(writer.position(), target)):
            return
        is_alone = len(writer.buckets) == generation.buckets
        with suppress(ContractError):  # reported by the projector of the bucket whose checkpoint is unreadable
            lifecycle.reached(generation, writer.checkpoints if is_alone else self._store.checkpoints(generation))

    def _join(self) -> None:
        """Moves the writers of subscriptions that are equally far into one."""
        for main in self._groups if len(self._groups) > 1 else ():
            ready = [group for group in self._groups if group is not main and self._is_level(group, main)]
            if ready:
                break
        else:
            return
        for group in (main, *ready):
            self._step_aside(group.land())
        writers = [writer for group in (main, *ready) for writer in group.writers]
        for group in ready:
            group.close()
            self._groups.remove(group)
        with suppress(LogGap):  # its next step raises it
            main.seek(writers)

    def _is_level(self, group: SharedSubscription, main: SharedSubscription) -> bool:
        """Whether a subscription has just passed another, and neither then waits for old events of the other's topics.

        Both would continue at the lesser position, so the one that is ahead must not be ahead by more than a flush.
        """
        one, other = group.position(), main.position()
        if not (at_least(one, other) and at_least(other, group.before)):
            return False
        if one.by_partition().keys() == other.by_partition().keys():
            return True
        both, ends = one | other, self._ends.by_partition()
        read = both.by_partition()
        return read.keys() <= ends.keys() and Position.of({p: ends[p] for p in read}).ahead_of(both) <= FLUSH_ROWS


def at_least(position: Position, other: Position) -> bool:
    """Whether a position is at least as far as another on every partition that both name."""
    theirs = other.by_partition()
    return all(offset >= theirs.get(place, offset) for place, offset in position.by_partition().items())
