"""The batches of an incremental query view, and its checkpoints: the first loads a generation, later ones flush."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from leftfold.engine.rebuild.rebuilder import sealed_marks
from leftfold.engine.rebuild.refresh import computed_all
from leftfold.engine.rebuild.tasks import BulkJob
from leftfold.engine.streaming.computed_rows import QueryWriter, token
from leftfold.engine.views.cleanup import remove
from leftfold.engine.views.generations import change, current_time
from leftfold.engine.views.leases import check_attempt
from leftfold.errors import Fenced, LeftfoldError
from leftfold.model.computed_views import QueryView
from leftfold.model.position import Position
from leftfold.ports.bulk import BucketResult, BulkStore, OpenBulkLog, OpenBulkSink
from leftfold.ports.flush import Generation, Phase, Registry, covered
from leftfold.ports.protocols import Report
from leftfold.spark.core.task_io import SkippedValues
from leftfold.spark.queries.compute import RowReader
from leftfold.spark.queries.query_refresh import write_frame

__all__ = ["CheckpointDirectory", "StreamBatches", "StreamPlaces", "StreamWork", "sweep"]


_FILES = "references.json"


class CheckpointDirectory:
    """The Spark checkpoint directory of one generation.

    Args:
        root: the directory of all checkpoints, which every driver can read and write. generation: its id.
    """

    def __init__(self, root: Path, view: str, generation: str) -> None:
        self._home = root / view / generation

    def begin(self, run: str, files: Mapping[str, str]) -> Path:
        """Makes the directory of the first run; `files` are the fingerprints of the reference files it begins with."""
        (self._home / run).mkdir(parents=True)
        (self._home / _FILES).write_text(json.dumps(dict(files)), "utf-8")
        return self._home / run

    def resumable(self, run: str, batch: int | None, files: Mapping[str, str]) -> Path | None:
        """The checkpoint from which a stream can continue; None when it does not fit the buckets' run and batch.

        It fits when the buckets are at the last batch that the checkpoint has committed, or at the next one if that is
        planned: that batch is computed again, and what was written already stays.
        """
        found = self._of(run)
        if found is None or batch is None or self._files() != dict(files):
            return None
        committed, planned = _newest(found / "commits"), _newest(found / "offsets")
        fits = batch == committed or (batch == planned == committed + 1)
        return found if fits and planned <= committed + 1 else None

    def take(self, found: Path, run: str) -> Path:
        """Moves the directory to a new run."""
        return found.rename(self._home / run)

    def remove(self) -> None:
        """Removes all checkpoints of the generation."""
        shutil.rmtree(self._home, ignore_errors=True)

    @classmethod
    def committed(cls, path: Path) -> Position:
        """The position from which a stream continues with a run's directory."""
        try:
            return cls.reached(path, _newest(path / "commits"))
        except (OSError, ValueError):
            return Position()  # nothing is committed yet, or files are lost, which Spark will report

    @staticmethod
    def reached(path: Path, batch: int) -> Position:
        """The end position of a batch, as the checkpoint planned it."""
        *_, source = (path / "offsets" / str(batch)).read_text("utf-8").splitlines()
        return Position({topic: {int(p): o for p, o in ends.items()} for topic, ends in json.loads(source).items()})

    def _of(self, run: str) -> Path | None:
        """The run's own directory, or the only one: its new owner may have died before it could move it."""
        there = [path for path in self._home.glob("*") if path.is_dir()]
        named = [path for path in there if path.name == run]
        return next(iter(named or there)) if named or len(there) == 1 else None

    def _files(self) -> Mapping[str, str]:
        try:
            found: dict[str, str] = json.loads((self._home / _FILES).read_text("utf-8"))
        except (OSError, ValueError):
            return {"": "unreadable"}
        return found


def sweep(root: Path, view: str, generations: Collection[str]) -> None:
    """Removes checkpoints of generations that no longer exist."""
    for home in (root / view).glob("*"):
        if home.name not in generations:
            shutil.rmtree(home, ignore_errors=True)


def _newest(folder: Path) -> int:
    """The highest batch that has a file, -1 when none has."""
    return max((int(path.name) for path in folder.glob("*") if path.name.isdecimal()), default=-1)


@dataclass(frozen=True)
class StreamPlaces:
    """The log, store and checkpoint directory of a stream.

    Args:
        kafka: the properties of a Java client. checkpoints: a directory that every driver of the view can use.
    """

    store: BulkStore
    open_log: OpenBulkLog
    open_sink: OpenBulkSink
    kafka: Mapping[str, str]
    checkpoints: Path


@dataclass(frozen=True)
class StreamWork:
    """What a stream computes; `groups` are the fields of a group's key, `shuffles` the partitions of its aggregates."""

    view: QueryView[Any, Any]
    places: StreamPlaces
    groups: Sequence[str]
    shuffles: int
    report: Report


class StreamBatches:
    """Writes the batches of one run into one generation.

    Args:
        ends: the log's end when the run began; a new generation goes live once it has reached it.
        path: the run's checkpoint. misfits: collects the events and rows that are skipped.
    """

    def __init__(
        self, work: StreamWork, generation: Generation, run: str, ends: Position, path: Path, misfits: SkippedValues
    ) -> None:
        self._work, self.generation, self.path, self._run, self._ends = work, generation, path, run, ends
        self._store, self._reader = work.places.store, RowReader(work.view)
        self.writer: QueryWriter | None = None
        self.failure: LeftfoldError | None = None
        self.release: Callable[[], object] = lambda: None
        """Called once the generation is live, so that what keeps others from beginning another may end."""
        self.misfits, self._reported = misfits, 0

    def take(self, frame: DataFrame, batch: int) -> None:
        """Writes one batch; Spark commits it to the checkpoint when this returns."""
        try:
            self._take(frame, batch)
            self._report_misfits()
        except LeftfoldError as error:
            self.failure = error
            raise

    def seal(self, results: Sequence[BucketResult], batch: int, reached: Position) -> None:
        """Ends the bulk load of a generation with its first batch."""
        work, checkpoints = self._work, sealed_marks(self.generation, reached, results)
        marked = {b: replace(m, token=token(self._run, batch)) for b, m in checkpoints.items()}
        self._store.seal(self.generation, marked)
        sealed = self.generation.in_phase(Phase.SEALED)

        def as_sealed(registry: Registry) -> Registry:
            check_attempt(registry, self.generation)
            return registry.with_generation(sealed)

        change(self._store, work.view.name, as_sealed)
        self.generation = sealed
        self.writer = QueryWriter(work.view, sealed, self._store, work.groups, self._run)
        self._show(self.writer)

    def _take(self, frame: DataFrame, batch: int) -> None:
        work, reached = self._work, CheckpointDirectory.reached(self.path, batch)
        if self.writer is None:
            job = BulkJob(work.view, self.generation, (), work.places.open_log, work.places.open_sink)
            self.seal(write_frame(frame, job, work.shuffles, self.misfits), batch, reached)
            return
        # Collected even when the bucket checkpoints cover it already: only that moves Spark's own aggregates forward.
        rows = (row for part in frame.toArrow().to_batches() for row in self._reader.rows(part))
        stored = computed_all(work.view, rows, self.generation.buckets, self.misfits.unnamed)
        self._check_live()
        if not self.writer.write(batch, stored, reached):
            raise Fenced(
                f"view {work.view.name}: generation {self.generation.id} is not as this run left it: it is being "
                f"rebuilt, another run writes it, or Redis lost or went back behind batch {batch}"
            )
        self._show(self.writer)

    def _report_misfits(self) -> None:
        if (count := len(self.misfits.found)) > self._reported:
            self._reported = count
            self._work.report("events passed over", {"view": self._work.view.name, "why": str(self.misfits)})

    def _check_live(self) -> None:
        view = self._work.view
        if self.generation.phase is Phase.LIVE:
            live = self._store.registry(view.name).live.get(view.hash)
            if live != self.generation.id:
                raise Fenced(f"view {view.name}: generation {live or 'none'} is live instead of {self.generation.id}")

    def _show(self, writer: QueryWriter) -> None:
        """Makes the generation live as soon as no reader could see an older state than before."""
        at = covered(self.generation, writer.checkpoints)
        if self.generation.phase is Phase.LIVE or not at.covers(self._ends):
            return
        view = self._work.view
        found = change(self._store, view.name, lambda registry: self._pointed(registry, at))
        if found.live.get(view.hash) != self.generation.id:
            return
        self.generation = self.generation.in_phase(Phase.LIVE)
        self.release()
        self._work.report("generation live", {"view": view.name, "generation": self.generation.id})
        for other in found.generations.values():
            # Another run may have ended between its first batch and going live.
            if other.hash == view.hash and other.phase is Phase.SEALED:
                remove(self._store, other)

    def _pointed(self, registry: Registry, at: Position) -> Registry:
        live = registry.live_of(self.generation.hash)
        if self.generation.id not in registry.generations:
            raise Fenced(f"generation {self.generation.id} of view {self._work.view.name} was removed meanwhile")
        if live is not None and live.id != self.generation.id:
            checkpoints = self._store.checkpoints(live)
            if len(checkpoints) == live.buckets and not at.covers(covered(live, checkpoints)):
                return registry
        return registry.pointed(self.generation, current_time())
