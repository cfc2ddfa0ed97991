"""Verifying a view: its log is folded again to exactly where each bucket stands, and the checksums are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from leftfold.engine.bulk import BulkJob
from leftfold.engine.bulk_local import run_here
from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.comparing import ComparingSink
from leftfold.engine.cut import ranges_to
from leftfold.engine.diff import RowDifference
from leftfold.engine.plan import RebuildPlan, plan_ranges
from leftfold.engine.rebuild import Runner
from leftfold.engine.rebuild_progress import Report, Stopwatch
from leftfold.engine.verify_rows import differences
from leftfold.errors import ConfigurationError, ViewNotBuilt
from leftfold.flush import Generation, Mark, Phase, covered
from leftfold.ports import ViewStore
from leftfold.position import Position
from leftfold.rows import CHECKSUM_MODULUS
from leftfold.view import View

__all__ = ["Sample", "Verification", "Verify"]


@dataclass(frozen=True)
class Verification:
    """What came of verifying a generation.

    Args:
        position: where it stood. events: how many were folded, at most.
        stored, folded: the sums of the buckets' checksums. wrong: the buckets whose checksums differ.
        parked: keys left out of both, since they are parked. newly: keys that this code parks, and why.
        rows: rows that differ, when asked for.
    """

    view: str
    generation: str
    position: Position
    events: int
    stored: int
    folded: int
    wrong: tuple[int, ...]
    parked: tuple[str, ...]
    newly: Mapping[str, str]
    rows: tuple[RowDifference, ...]
    seconds: float

    @property
    def equal(self) -> bool:
        """Whether every bucket holds what the log says."""
        return not self.wrong


@dataclass(frozen=True)
class Sample:
    """What folding a share of the rows with this code would change.

    Args:
        rows: how many were folded. differing: how many seemed to differ, those included that tails changed meanwhile.
        differences: those among the first of them that really do. newly: keys that this code parks, and why.
    """

    view: str
    generation: str
    share: float
    rows: int
    differing: int
    differences: tuple[RowDifference, ...]
    newly: Mapping[str, str]
    seconds: float


class Verify:
    """Verifies generations of one view.

    Args:
        open_log: made in tasks. open_store: made in tasks too, when rows are compared.
        run: where tasks run; in this process unless said otherwise.
    """

    def __init__(
        self,
        view: View[Any, Any],
        store: ViewStore,
        *,
        open_log: OpenBulkLog,
        open_store: Callable[[], ViewStore],
        run: Runner = run_here,
        cores: int = 1,
        report: Report = lambda progress: None,
    ) -> None:
        self.view, self._store, self._open_log, self._open_store = view, store, open_log, open_store
        self._run, self._cores, self._report = run, cores, report

    def run(self, generation: Generation, *, deep: bool = False, most: int = 100) -> Verification:
        """Verifies a generation at the place where it stands now; tails go on meanwhile.

        Args:
            deep: also finds out which rows differ, `most` of them.

        Raises:
            ConfigurationError: it was made by other code, or is not whole yet.
            ViewNotBuilt: it has lost marks.
        """
        if generation.hash != self.view.hash or generation.phase is Phase.BULK:
            raise ConfigurationError(
                f"generation {generation.id} of view {self.view.name} is {generation.phase.value} and of schema "
                f"{generation.hash}; this code ({self.view.hash}) can verify only what it could have folded"
            )
        marks = self._store.marks(generation)
        if len(marks) < generation.buckets:
            raise ViewNotBuilt(f"generation {generation.id} of view {self.view.name} is not whole; rebuild it")
        watch = Stopwatch(self._report)
        results = self._folded(generation, marks, watch, compare=False)
        wrong = tuple(sorted(b for b, mark in marks.items() if results[b].checksum != mark.checksum))
        rows: tuple[RowDifference, ...] = ()
        if wrong and deep:
            rows = self._rows(generation, wrong, watch, most)
        watch.end()
        return self._verification(generation, marks, results, rows, watch)

    def sample(self, generation: Generation, share: float, *, most: int = 100) -> Sample:
        """Folds a share of the rows with this code and compares them with those of a generation where it stands.

        Args:
            share: of the row keys, 0 to 1. most: how many rows that differ are looked at closely and kept.
        """
        marks = self._store.marks(generation)
        watch = Stopwatch(self._report)
        results = self._folded(generation, marks, watch, compare=True, share=share)
        candidates = [key for result in results.values() for key in result.wrong]
        rows = differences(self.view, generation, candidates[:most], self._store, self._open_log)
        watch.end()
        newly = {k: p.error for b, r in results.items() for k, p in r.parked.items() if k not in marks[b].parked}
        folded = sum(result.rows for result in results.values())
        return Sample(
            self.view.name, generation.id, share, folded, len(candidates), rows, newly, sum(watch.seconds.values())
        )

    def plan(self, generation: Generation, marks: Mapping[int, Mark]) -> RebuildPlan:
        """What is read."""
        ranges = ranges_to(generation, {bucket: mark.position for bucket, mark in marks.items()})
        return plan_ranges(self.view, dict(generation.topics), ranges, cores=self._cores, buckets=generation.buckets)

    def _folded(
        self, generation: Generation, marks: Mapping[int, Mark], watch: Stopwatch, *, compare: bool, share: float = 1.0
    ) -> dict[int, BucketResult]:
        plan = self.plan(generation, marks)
        watch.begin("compare rows" if compare else "fold", plan.events)
        job = BulkJob(
            self.view,
            generation,
            plan.ranges,
            self._open_log,
            ComparingSink.opener(self._open_store if compare else None, share),
            max_parked=10**9,
            cuts={bucket: mark.position for bucket, mark in marks.items()},
            aside={bucket: frozenset(mark.parked) for bucket, mark in marks.items()},
            share=share,
        )
        found = {result.bucket: result for result in self._run(job, plan, watch.tell)}
        return {bucket: found.get(bucket, BucketResult(bucket)) for bucket in marks}

    def _rows(
        self, generation: Generation, wrong: tuple[int, ...], watch: Stopwatch, most: int
    ) -> tuple[RowDifference, ...]:
        marks = {bucket: mark for bucket, mark in self._store.marks(generation).items() if bucket in wrong}
        results = self._folded(generation, marks, watch, compare=True)
        candidates = [key for result in results.values() for key in result.wrong][:most]
        return differences(self.view, generation, candidates, self._store, self._open_log)

    def _verification(
        self,
        generation: Generation,
        marks: Mapping[int, Mark],
        results: Mapping[int, BucketResult],
        rows: tuple[RowDifference, ...],
        watch: Stopwatch,
    ) -> Verification:
        newly = {
            key: why.error
            for bucket, result in results.items()
            for key, why in result.parked.items()
            if key not in marks[bucket].parked
        }
        return Verification(
            view=self.view.name,
            generation=generation.id,
            position=covered(generation, marks),
            events=self.plan(generation, marks).events,
            stored=sum(mark.checksum for mark in marks.values()) % CHECKSUM_MODULUS,
            folded=sum(result.checksum for result in results.values()) % CHECKSUM_MODULUS,
            wrong=tuple(sorted(b for b, mark in marks.items() if results[b].checksum != mark.checksum)),
            parked=tuple(sorted(key for mark in marks.values() for key in mark.parked)),
            newly=newly,
            rows=rows,
            seconds=sum(watch.seconds.values()),
        )
