"""What a stream does with its batches: the first fills a generation in bulk, the others change it flush by flush."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from leftfold.engine.bulk import BulkJob
from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.bulk_rows import computed_all
from leftfold.engine.bulk_store import BulkStore, OpenBulkSink
from leftfold.engine.generations import change, now
from leftfold.engine.query_writer import QueryWriter, token
from leftfold.engine.rebuild import sealed_marks
from leftfold.engine.rebuild_removal import remove
from leftfold.errors import Fenced, LeftfoldError
from leftfold.flush import Generation, Phase, Registry, covered
from leftfold.position import Position
from leftfold.query import QueryView
from leftfold.spark.checkpoint import Checkpoint
from leftfold.spark.misfits import Misfits
from leftfold.spark.query_runner import write_frame
from leftfold.spark.results import RowReader

__all__ = ["Report", "StreamBatches", "StreamPlaces", "StreamWork"]

Report = Callable[[str, Mapping[str, Any]], None]


@dataclass(frozen=True)
class StreamPlaces:
    """Where a stream reads, writes and remembers.

    Args:
        kafka: the properties of a Java client. checkpoints: a directory that every driver of the view sees.
    """

    store: BulkStore
    open_log: OpenBulkLog
    open_sink: OpenBulkSink
    kafka: Mapping[str, str]
    checkpoints: Path


@dataclass(frozen=True)
class StreamWork:
    """What a stream works at; `groups` are the fields that name a group, `shuffles` how many parts sums are in."""

    view: QueryView[Any, Any]
    places: StreamPlaces
    groups: Sequence[str]
    shuffles: int
    report: Report


class StreamBatches:
    """Writes the batches of one run into one generation.

    Args:
        ends: where the log was when the run began; a new generation is shown to readers from there on.
        path: the run's checkpoint. misfits: what its tables and its rows pass over.
    """

    def __init__(
        self, work: StreamWork, generation: Generation, run: str, ends: Position, path: Path, misfits: Misfits
    ) -> None:
        self._work, self.generation, self.path, self._run, self._ends = work, generation, path, run, ends
        self._store, self._reader = work.places.store, RowReader(work.view)
        self.writer: QueryWriter | None = None
        self.failure: LeftfoldError | None = None
        self.misfits, self._told = misfits, 0

    def take(self, frame: DataFrame, batch: int) -> None:
        """Writes one batch; Spark commits it to the checkpoint when this returns."""
        try:
            self._take(frame, batch)
            self._tell_misfits()
        except LeftfoldError as error:
            self.failure = error
            raise

    def seal(self, results: Sequence[BucketResult], batch: int, reached: Position) -> None:
        """Ends the bulk load of a generation with its first batch."""
        work, marks = self._work, sealed_marks(self.generation, reached, results)
        self._store.seal(self.generation, {b: replace(m, token=token(self._run, batch)) for b, m in marks.items()})
        sealed = self.generation = self.generation.in_phase(Phase.SEALED)
        change(self._store, work.view.name, lambda r: r.with_generation(sealed))
        self.writer = QueryWriter(work.view, sealed, self._store, work.groups, self._run)
        self._show(self.writer)

    def _take(self, frame: DataFrame, batch: int) -> None:
        work, reached = self._work, Checkpoint.reached(self.path, batch)
        if self.writer is None:
            job = BulkJob(work.view, self.generation, (), work.places.open_log, work.places.open_sink)
            self.seal(write_frame(frame, job, work.shuffles, self.misfits), batch, reached)
            return
        # Collected even when it is in the marks already: only that moves Spark's own sums on.
        rows = (row for part in frame.toArrow().to_batches() for row in self._reader.rows(part))
        stored = computed_all(work.view, rows, self.generation.buckets, self.misfits.unnamed)
        self._check_live()
        if not self.writer.write(batch, stored, reached):
            raise Fenced(
                f"view {work.view.name}: generation {self.generation.id} is not as this run left it: another run "
                f"writes it, or Redis lost or went back behind batch {batch}"
            )
        self._show(self.writer)

    def _tell_misfits(self) -> None:
        if (count := len(self.misfits.found)) > self._told:
            self._told = count
            self._work.report("events passed over", {"view": self._work.view.name, "why": str(self.misfits)})

    def _check_live(self) -> None:
        view = self._work.view
        if self.generation.phase is Phase.LIVE:
            live = self._store.registry(view.name).live.get(view.hash)
            if live != self.generation.id:
                raise Fenced(f"view {view.name}: generation {live or 'none'} is live instead of {self.generation.id}")

    def _show(self, writer: QueryWriter) -> None:
        """Makes the generation live as soon as no reader could go back in time."""
        at = covered(self.generation, writer.marks)
        if self.generation.phase is Phase.LIVE or not at.covers(self._ends):
            return
        view = self._work.view
        found = change(self._store, view.name, lambda registry: self._pointed(registry, at))
        if found.live.get(view.hash) != self.generation.id:
            return
        self.generation = self.generation.in_phase(Phase.LIVE)
        self._work.report("generation live", {"view": view.name, "generation": self.generation.id})
        for other in found.generations.values():
            # Another run may have ended between its first batch and going live.
            if other.hash == view.hash and other.phase is Phase.SEALED:
                remove(self._store, other)

    def _pointed(self, registry: Registry, at: Position) -> Registry:
        live = registry.live_of(self.generation.hash)
        if self.generation.id not in registry.generations:
            raise Fenced(f"generation {self.generation.id} of view {self._work.view.name} was removed by somebody else")
        if live is not None and live.id != self.generation.id:
            marks = self._store.marks(live)
            if len(marks) == live.buckets and not at.covers(covered(live, marks)):
                return registry
        return registry.pointed(self.generation, now())
