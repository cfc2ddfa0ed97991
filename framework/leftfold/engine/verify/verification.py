"""Verifies a view: folds its log again up to each bucket's checkpoint and compares the rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from leftfold.engine.progress import ProgressReport, Stopwatch
from leftfold.engine.rebuild.planner import RebuildPlan, plan_ranges, ranges_to
from leftfold.engine.rebuild.rebuilder import Runner
from leftfold.engine.rebuild.sorted_fold import partitions_for
from leftfold.engine.rebuild.tasks import BulkJob, ProgressCallback, run_locally
from leftfold.engine.verify.row_comparison import MOST_SUSPECTS, ComparingSink, RowCheck
from leftfold.engine.verify.row_differences import RowDifference
from leftfold.engine.views.folded_rows import RowAddress, place_of
from leftfold.engine.views.generations import check_log, resolve, topic_ids, whole_checkpoints
from leftfold.errors import ConfigurationError, ViewNotBuilt
from leftfold.model.position import Position
from leftfold.model.row_codec import CHECKSUM_MODULUS
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, OpenBulkLog
from leftfold.ports.flush import Checkpoint, Generation, Phase, checksum_of, covered
from leftfold.ports.protocols import ViewStore
from leftfold.ports.queries import Entry

__all__ = ["Sample", "Throttle", "Verification", "Verify", "throttled"]


_LONGEST = 1.0


class Throttle:
    """Pauses this thread so that the process's CPU time stays at a share of the elapsed time.

    All of the process counts, not this thread alone: the Kafka client fetches and unpacks in threads of its own.

    Args:
        share: of one core, above 0 and at most 1.
    """

    def __init__(
        self,
        share: float,
        *,
        worked: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share, self._worked, self._clock, self._sleep = share, worked, clock, sleep
        self._spent, self._since = worked(), clock()

    def pause(self) -> None:
        """Sleeps until the CPU time is within its share again, at most one second."""
        due = self._due()
        if due > 0:
            self._sleep(min(due, _LONGEST))

    def rest(self) -> None:
        """Sleeps until the CPU time is within its share again."""
        while self._due() > 0:
            self.pause()

    def _due(self) -> float:
        return (self._worked() - self._spent) / self._share - (self._clock() - self._since)


def throttled(run: Runner, throttle: Throttle) -> Runner:
    """A runner in this thread that pauses after every batch of events."""

    def slowly(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
        def tell_and_pause(count: int) -> None:
            tell(count)
            throttle.pause()

        return run(job, plan, tell_and_pause)

    return slowly


@dataclass(frozen=True)
class Verification:
    """The result of verifying a generation.

    Args:
        position: its position. events: how many were folded, at most.
        stored, folded: the sums of the buckets' checksums.
        wrong: the buckets whose checksums differ.
        parked: keys left out of both, since they are parked.
        newly: keys that this code parks, and why.
        deep: whether the rows themselves were compared.
        seeming: how many rows seemed to differ at first, including those that projectors changed meanwhile.
        rows: the first of those that really differ.
        unsettled: buckets with more suspects than were compared closely, all of them written meanwhile.
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
    seconds: float
    deep: bool = False
    seeming: int = 0
    rows: tuple[RowDifference, ...] = ()
    unsettled: tuple[int, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether every bucket holds what the log says, as far as it was compared."""
        return not (self.wrong or self.rows or self.unsettled)

    @property
    def exit_code(self) -> int:
        """3 when a row or checksum differs, 4 when projectors wrote more meanwhile than could be compared."""
        return 3 if self.wrong or self.rows else 4 if self.unsettled else 0


@dataclass(frozen=True)
class Sample:
    """What folding a share of the rows with this code would change.

    Args:
        rows: how many were folded.
        differing: how many seemed to differ, including those that projectors changed meanwhile.
        differences: those among the first of them that really differ.
        newly: keys that this code parks, and why.
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
        open_log: called in tasks.
        open_store: called in tasks too, when rows are compared.
        run: runs the tasks; in this process by default.
        suspects: how many suspects of one bucket are compared; the rest is not.
    """

    def __init__(
        self,
        view: View[Any, Any],
        store: ViewStore,
        *,
        open_log: OpenBulkLog,
        open_store: Callable[[], ViewStore],
        run: Runner = run_locally,
        cores: int = 1,
        report: ProgressReport = lambda progress: None,
        suspects: int = MOST_SUSPECTS,
    ) -> None:
        self.view, self._store, self._open_log, self._open_store = view, store, open_log, open_store
        self._run, self._cores, self._report, self._suspects = run, cores, report, suspects

    def run_named(self, named: str, *, deep: bool = False) -> Verification:
        """Verifies the generation of this name; when it is replaced and removed meanwhile, the one that has it then.

        Raises:
            ViewNotBuilt: there is none, or it has lost checkpoints.
        """
        while True:
            generation = resolve(self._store.registry(self.view.name), self.view, named)
            try:
                return self.run(generation, deep=deep)
            except ViewNotBuilt:
                if generation.id in self._store.registry(self.view.name).generations:
                    raise

    def run(self, generation: Generation, *, deep: bool = False, most: int = 100) -> Verification:
        """Verifies a generation at its current position, while projectors continue to write it.

        Each bucket's checkpoint says which checksum its rows have; that is compared with the fold of the log.

        Args:
            deep: compares the rows themselves, the key lists and the indexes, too, and returns the first `most` rows
                that differ. A checkpoint does not show what another program did to its rows.

        Raises:
            ConfigurationError: it was made by other code or from other topics, or is not complete yet.
            ViewNotBuilt: it has lost checkpoints.
        """
        checkpoints = self._checked(generation)
        watch = Stopwatch(self._report)
        results = self._folded(generation, checkpoints, watch, compare=deep)
        suspects = self._suspects_in(checkpoints, results)
        watch.begin("look closely", len(suspects))
        look = RowCheck(self.view, generation, self._store, self._open_log, sets=True)
        rows = look.differences(suspects, most, watch.tell)
        watch.end()
        beyond = (b for b, r in results.items() if len(r.wrong) >= self._suspects) if len(rows) < most else ()
        result = self._verification(generation, checkpoints, results, sum(watch.seconds.values()))
        return replace(result, deep=deep, seeming=len(suspects), rows=rows, unsettled=tuple(sorted(beyond)))

    def _checked(self, generation: Generation) -> dict[int, Checkpoint]:
        """The checkpoints of a generation, if it can be verified."""
        if generation.hash != self.view.hash or generation.phase is Phase.BULK:
            raise ConfigurationError(
                f"generation {generation.id} of view {self.view.name} is {generation.phase.value} and of schema "
                f"{generation.hash}; this code ({self.view.hash}) can verify only what it could have folded"
            )
        checkpoints = whole_checkpoints(self._store, generation)
        with closing(self._open_log()) as log:
            check_log(generation, topic_ids(log, generation.topics))
        return checkpoints

    def sample(self, generation: Generation, share: float, *, most: int = 100) -> Sample:
        """Folds a share of the rows with this code and compares them with a generation at its position.

        Of a stream-keyed view only as many partitions are read as hold so many rows, and only events of the chosen
        streams are decoded. For any other view the row is named in the event, so each event must be read and decoded.

        Args:
            share: of the row keys, 0 to 1.
            most: how many rows that differ are compared closely and returned.
        """
        checkpoints: Mapping[int, Checkpoint] = self._store.checkpoints(generation)
        within = share
        if generation.stream_keyed and share < 1:
            checkpoints, within = partitions_for(share, checkpoints)
        watch = Stopwatch(self._report)
        results = self._folded(generation, checkpoints, watch, compare=True, share=within)
        candidates = [one.key for result in results.values() for one in result.wrong]
        suspects: dict[RowAddress, tuple[Entry, ...]] = {place_of(generation, key): () for key in candidates[:most]}
        rows = RowCheck(self.view, generation, self._store, self._open_log).differences(suspects, most)
        watch.end()
        newly = _newly_parked(checkpoints, results)
        folded = sum(result.rows for result in results.values())
        return Sample(
            self.view.name, generation.id, share, folded, len(candidates), rows, newly, sum(watch.seconds.values())
        )

    def plan(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> RebuildPlan:
        """The plan of what is read."""
        ranges = ranges_to(generation, {bucket: checkpoint.position for bucket, checkpoint in checkpoints.items()})
        return plan_ranges(self.view, dict(generation.topics), ranges, cores=self._cores, buckets=generation.buckets)

    def _folded(
        self,
        generation: Generation,
        checkpoints: Mapping[int, Checkpoint],
        watch: Stopwatch,
        *,
        compare: bool,
        share: float | None = None,
    ) -> dict[int, BucketResult]:
        plan = self.plan(generation, checkpoints)
        watch.begin("compare rows" if compare else "fold", plan.events)
        within, open_store = 1.0 if share is None else share, self._open_store if compare else None
        opener = partial(ComparingSink, open_store, within, sets=share is None, most=self._suspects)
        job = BulkJob(
            self.view,
            generation,
            plan.ranges,
            self._open_log,
            opener,
            max_parked=10**9,
            cuts={bucket: checkpoint.position for bucket, checkpoint in checkpoints.items()},
            aside={bucket: frozenset(checkpoint.parked) for bucket, checkpoint in checkpoints.items()},
            share=within,
        )
        found = {result.bucket: result for result in self._run(job, plan, watch.tell)}
        with closing(opener()) as sink:
            return {bucket: found.get(bucket) or self._unfolded(sink, generation, bucket) for bucket in checkpoints}

    def _unfolded(self, sink: ComparingSink, generation: Generation, bucket: int) -> BucketResult:
        """The result of a bucket that no event is folded into: it should have no row."""
        sink.write(generation, bucket, self.view.rows.columns, self.view.rows.indexes, ())
        return sink.finish(generation, BucketResult(bucket))

    def _suspects_in(
        self, checkpoints: Mapping[int, Checkpoint], results: Mapping[int, BucketResult]
    ) -> Mapping[RowAddress, Collection[Entry]]:
        """The suspects by row, except parked ones."""
        found: dict[RowAddress, set[Entry]] = {}
        for bucket, result in results.items():
            for key, index, value in result.wrong:
                if key not in checkpoints[bucket].parked:
                    found.setdefault((bucket, key), set()).update([(index, value)] if index else [])
        return found

    def _verification(
        self,
        generation: Generation,
        checkpoints: Mapping[int, Checkpoint],
        results: Mapping[int, BucketResult],
        seconds: float,
    ) -> Verification:
        """The result by the checksums."""
        return Verification(
            view=self.view.name,
            generation=generation.id,
            position=covered(generation, checkpoints),
            events=self.plan(generation, checkpoints).events,
            stored=checksum_of(checkpoints.values()),
            folded=sum(result.checksum for result in results.values()) % CHECKSUM_MODULUS,
            wrong=tuple(
                sorted(b for b, checkpoint in checkpoints.items() if results[b].checksum != checkpoint.checksum)
            ),
            parked=tuple(sorted(key for checkpoint in checkpoints.values() for key in checkpoint.parked)),
            newly=_newly_parked(checkpoints, results),
            seconds=seconds,
        )


def _newly_parked(checkpoints: Mapping[int, Checkpoint], results: Mapping[int, BucketResult]) -> dict[str, str]:
    """The keys that this code parks and the generation does not, with the reasons."""
    return {k: p.error for b, r in results.items() for k, p in r.parked.items() if k not in checkpoints[b].parked}
