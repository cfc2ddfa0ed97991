"""The read side of a simulated App: projectors, rebuilds and readers over one simulated Redis."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from leftfold.client.reader import Reader, Views
from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.promotion import Promotion
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback, run_locally
from leftfold.errors import ConfigurationError, InfrastructureError, LeftfoldError, StaleViewError, ViewNotBuilt
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.kafka.log_reader import KafkaLogReader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.app import App
from leftfold.model.position import Position, Receipt
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.runtime.workers.view_workers import follow
from leftfold.testing.simulation.environment import SimulatedWorld
from leftfold.testing.simulation.kafka.brokers import BORN, Cluster
from leftfold.testing.simulation.network import Network
from leftfold.testing.simulation.redis_server import RedisServer
from leftfold.testing.simulation.stand_ins import event_loop, sockets
from leftfold.testing.simulation.stand_ins.threads import SimulatedThread
from leftfold.testing.simulation.view_witness import (
    WitnessedRead,
    fold_violations,
    parked_rows,
    stale_reads,
    store_violations,
)

if TYPE_CHECKING:
    from leftfold.testing.simulation.deployment import Deployment

__all__ = ["LIBRARIES", "NETWORK", "PACKAGES", "Projections"]

PACKAGES = (
    "leftfold.redis",
    "leftfold.client",
    "leftfold.runtime.workers.view_workers",
    "leftfold.runtime.lifecycle",
    "leftfold.runtime.supervisor",
)
LIBRARIES = ("redis",)
NETWORK: list[tuple[Any, Any]] = [
    (socket, sockets.socket),
    (select, sockets.select),
    (asyncio, event_loop.asyncio),
]
"""Further replacements for Apps with views."""
SETTINGS = RedisSettings(url="redis://redis:6379/0", timeout=2.0)
_CODE, _NEWER = "simulated code", "newer code"
_BUCKETS = 3
_DEPLOY_SECONDS = 3.0
_REBUILD_SECONDS = (0.5, 2.0, 4.0)
"""The seconds within which a rebuild begins: while commands arrive, while they end, or after them."""
_LOOK_SECONDS = 0.1
_AUDIT_SECONDS = 100.0


class Projections:
    """The projectors, rebuilds and readers of an App's views.

    Attributes:
        views: at the end, after a deploy. rows: by view, the rows that the auditor read after everything was folded.
    """

    def __init__(
        self,
        deployment: Deployment,
        world: SimulatedWorld,
        kafka: KafkaSettings,
        *,
        newer: App | None = None,
        attempts: int = 1,
    ) -> None:
        self._attempts = attempts
        self._deployment, self._world, self._kafka, self._newer = deployment, world, kafka, newer
        self._older: Sequence[View[Any, Any]] = [view for view in deployment.app.views if view.folded]
        self.views = self._older if newer is None else [view for view in newer.views if view.folded]
        self._begins: dict[str, float] = {}
        self._promoted = set[str]()
        self.network = Network(world)
        self.redis = RedisServer(lambda: BORN + world.scheduler.now)
        self.host = self.network.listen(("redis", 6379), self.redis)
        self.rows: dict[str, Mapping[Any, Any]] = {}
        self._reads: list[WitnessedRead] = []

    def begin(self) -> None:
        """Starts the projectors, a reader, and two rebuilds of each view, which may overlap."""
        for name in ("projector 1", "projector 2"):
            if self._newer is not None:
                self._begins[name] = self._world.random.random() * _DEPLOY_SECONDS
                self._world.scheduler.call_later(self._begins[name], partial(self._terminate, name))
            self._deployment.keep(name, "projector", partial(self._follow, name))
        if self._newer is not None:
            for view in self.views:
                self._deployment.keep(f"deploy of {view.name}", "rebuild", partial(self._deploy, view))
            return
        self._deployment.keep("reader", "reader", self._read)
        for view in self.views:
            for number in range(2):
                name = f"rebuild {number + 1} of {view.name}"
                self._deployment.keep(name, "rebuild", partial(self._rebuild, view))

    def restart(self) -> None:
        """Starts one more projector."""
        self._deployment.keep("projector successor", "successor", partial(self._follow, "projector successor"))

    def audit(self) -> None:
        """Starts an auditor that reads every row after the end of the log; no event may follow."""
        self._deployment.keep("auditor", "successor", self._audit)

    @property
    def is_deployed(self) -> bool:
        """Whether readers see the newer code's fold, where there is a deploy."""
        return self._newer is None or len(self._promoted) == len(self.views)

    @property
    def is_audited(self) -> bool:
        """Whether the auditor has read every view."""
        return len(self.rows) == len(self.views)

    def violations(self, cluster: Cluster) -> list[str]:
        """Rows that are not the fold of the events of their keys, and reads that were staler than guaranteed."""
        found: list[str] = []
        losses = (fault for _, fault in self._deployment.faults.struck if fault.kind in ("restart redis", "wipe redis"))
        is_monotonic = next(losses, None) is None
        for view in self.views:
            stored = self.redis.space(0).values
            found += fold_violations(cluster, view, self.rows.get(view.name, {}), stored)
            found += store_violations(cluster, view, stored)
            found += parked_rows(view, stored)
            if view.stream_keyed:
                reads = [read for read in self._reads if read.view is view]
                found += stale_reads(cluster, view, reads, is_monotonic=is_monotonic)
        return found

    def _follow(self, member: str) -> None:
        is_newer = self._world.scheduler.now >= self._begins.get(member, 0.0)
        views, code = (self.views, _NEWER) if self._newer is not None and is_newer else (self._older, _CODE)
        options = {"member": member, "buckets": _BUCKETS, "folds": {view.name: code for view in views}}
        with self._deployment.stopped() as stop:
            follow(views, self._kafka, SETTINGS, stop, self._deployment.note, options=options)

    def _terminate(self, name: str) -> None:
        for process in self._world.processes:
            if process.name == name and process.code is None and process.terminate is not None:
                process.terminate()

    def _rebuild(self, view: View[Any, Any]) -> None:
        """Rebuilds a view at some time, until it succeeds."""
        chance = self._world.random
        self._world.scheduler.wait(chance.random() * chance.choice(_REBUILD_SECONDS))
        if self._deployment.is_stopping:
            return
        keep, anyway = chance.choice((0.0, 5.0, 600.0)), chance.random() < 0.5
        with closing(RedisViewStore(SETTINGS)) as store:
            options = RebuildOptions(cores=1, buckets=_BUCKETS, keep=keep, swap_anyway=anyway, fold=_CODE)
            more: dict[str, Any] = {**self._logs(), "run": run_locally if self._attempts == 1 else self._run_beside}
            result = Rebuild(view, store, open_sink=partial(RedisBulkSink, SETTINGS), options=options, **more).run()
        self._deployment.note("rebuilt", f"{view.name}: {str(result).splitlines()[0]}")

    def _run_beside(self, job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        """Runs all tasks several times at once, like speculative execution in Spark; the first results count."""
        done: list[list[BucketResult]] = []
        failed: list[LeftfoldError] = []

        def attempt() -> None:
            try:
                done.append(run_locally(job, plan, tell))
            except LeftfoldError as error:
                failed.append(error)
                if not done:
                    # An attempt that fails after another one's results is not reported.
                    self._deployment.note("attempt failed", error)
                    self._deployment.ended.append(("attempt", f"an attempt failed though nothing struck: {error}"))

        threads = [SimulatedThread(target=attempt, daemon=True) for _ in range(self._attempts)]
        for thread in threads:
            thread.start()
        while not done and len(failed) < len(threads):
            self._world.scheduler.wait(_LOOK_SECONDS)
        if not done:
            raise failed[0]
        return done[0]

    def _deploy(self, view: View[Any, Any]) -> None:
        """Rebuilds a view with the newer code, holds it back, and promotes it as soon as that is permitted.

        A generation that Redis lost meanwhile is rebuilt, as by an operator who checks `status`.
        """
        scheduler = self._world.scheduler
        scheduler.wait(self._world.random.random() * _DEPLOY_SECONDS)
        options = RebuildOptions(cores=1, buckets=_BUCKETS, keep=self._world.random.choice((0.0, 600.0)), fold=_NEWER)
        with closing(RedisViewStore(SETTINGS)) as store:
            while scheduler.now <= self._deployment.faults.loses_until or not self._is_newer(view, store):
                if not self._is_newer(view, store):
                    held = replace(options, hold=True)
                    Rebuild(view, store, open_sink=partial(RedisBulkSink, SETTINGS), options=held, **self._logs()).run()
                    self._deployment.note("held", view.name)
                    self._promote(view, store, options)
                scheduler.wait(0.5)
        self._promoted.add(view.name)
        self._deployment.note("promoted", view.name)

    def _promote(self, view: View[Any, Any], store: RedisViewStore, options: RebuildOptions) -> None:
        while True:
            self._world.scheduler.wait(0.5)
            try:
                Promotion(view, store, options=options, **self._logs()).run("held")
            except ViewNotBuilt as error:
                # Redis has lost it, or no generation was live, so that a projector has made it live.
                return self._deployment.note("not held", error)
            except ConfigurationError as error:
                self._deployment.note("not promoted", error)
            else:
                return None

    def _is_newer(self, view: View[Any, Any], store: RedisViewStore) -> bool:
        """Whether readers see a generation that only the newer code has folded."""
        live = store.registry(view.name).live_of(view.hash)
        return live is not None and live.folds == (_NEWER,)

    def _logs(self) -> dict[str, Any]:
        return {"open_log": partial(KafkaBulkLog, self._kafka), "open_reader": partial(KafkaLogReader, self._kafka)}

    def _read(self) -> None:
        """Reads the rows of commands, after their receipts."""
        store = RedisViewStore(SETTINGS)
        views, done = Views(store), set[int]()
        keyed = [view for view in self.views if view.stream_keyed]
        while len(done) < len(self._deployment.sent) and not self._deployment.is_stopping:
            self._world.scheduler.wait(self._world.random.random() * _LOOK_SECONDS)
            for view in keyed:
                self._look(views, view, self._world.random.choice(self._deployment.sent).key)
            for number, one in enumerate(self._deployment.sent):
                if one.answer is None or number in done:
                    continue
                done.add(number)
                for view in keyed:
                    if isinstance(one.answer, Receipt) and one.category in view.categories:
                        self._read_one(views, view, one.key, one.answer)
        store.close()

    def _read_one(self, views: Views, view: View[Any, Any], key: str, receipt: Receipt) -> None:
        try:
            row = views[view].get(key, after=receipt.position, timeout=5.0)
        except (StaleViewError, ViewNotBuilt, InfrastructureError) as error:
            self._deployment.note("not read", error)
        else:
            self._reads.append(WitnessedRead(view, key, receipt.version, row))

    def _look(self, views: Views, view: View[Any, Any], key: str) -> None:
        """Reads the present row, which may be old, though never older than in an earlier read."""
        with suppress(ViewNotBuilt, InfrastructureError):
            self._reads.append(WitnessedRead(view, key, 0, views[view].get(key)))

    def _audit(self) -> None:
        """Waits until everything is folded, then reads every row."""
        try:
            with closing(RedisViewStore(SETTINGS)) as store:
                for view in self.views:
                    reader = Views(store)[view]
                    self._await(reader, self._end(view))
                    self.rows[view.name] = dict(reader.items())
        except InfrastructureError:
            raise
        except LeftfoldError as error:
            self._deployment.broken.append(f"unread: {error}")

    def _end(self, view: View[Any, Any]) -> Position:
        """The position behind every record, committed or not."""
        topics = [self._world.cluster.topics[f"{category}.events"] for category in view.categories]
        return Position({topic.name: {p.number: p.end for p in topic.partitions} for topic in topics})

    def _await(self, reader: Reader[Any, Any], position: Position) -> None:
        end = self._world.scheduler.now + _AUDIT_SECONDS
        while True:
            try:
                return reader.wait_reached(position, timeout=5.0)
            except (StaleViewError, ViewNotBuilt) as error:
                if self._world.scheduler.now > end:
                    raise
                self._deployment.note("waits for rows", error)
                self._world.scheduler.wait(_LOOK_SECONDS)
