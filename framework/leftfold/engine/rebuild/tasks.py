"""The tasks of a rebuild: fold ranges of the log, write whole buckets, report what they hold."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from leftfold.engine.rebuild.planner import RebuildPlan
from leftfold.engine.rebuild.sorted_fold import BucketFold, KeyedUpdate, OpenedRecords, UpdateSorter, sampled
from leftfold.engine.rebuild.stream_fold import StreamFold
from leftfold.engine.views.decoding import Decoded
from leftfold.engine.views.parking import RowEncodingError
from leftfold.engine.views.projection_writer import MAX_PARKED
from leftfold.errors import ContractError
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import (
    BucketResult,
    BulkLog,
    BulkRecord,
    BulkRow,
    BulkSink,
    OffsetRange,
    OpenBulkLog,
    OpenBulkSink,
)
from leftfold.ports.flush import Generation, Parked
from leftfold.ports.protocols import RawRecord

__all__ = ["BulkJob", "BulkPass", "PassResult", "ProgressCallback", "run_locally", "run_pass_locally", "tuned_gc"]


ProgressCallback = Callable[[int], None]
"""Called with the number of events read since the last call."""


@dataclass(frozen=True)
class BulkJob:
    """The job of filling one generation; every field can be pickled if the factories can.

    Args:
        sources: the ranges to read; `KeyedUpdate.source` numbers them.
        max_parked: how many keys may be parked before the rebuild stops.
        cuts: the only buckets to be folded, each up to its own end offsets; None = all of them, whole ranges.
        aside: keys that the checksum of a bucket leaves out besides those that this fold parks.
        share: folds this share of the row keys only, chosen by their hash.
    """

    view: View[Any, Any]
    generation: Generation
    sources: tuple[OffsetRange, ...]
    open_log: OpenBulkLog
    open_sink: OpenBulkSink
    max_parked: int = MAX_PARKED
    cuts: Mapping[int, Position] | None = None
    aside: Mapping[int, frozenset[str]] = field(default_factory=dict)
    share: float = 1.0

    def fold_streams(self, parts: Iterable[OffsetRange], tell: ProgressCallback) -> Iterator[BucketResult]:
        """Folds partitions of a stream-keyed view, one after another, and writes each one's bucket.

        Raises:
            ContractError: too many keys are parked.
            Fenced: the rebuild was ended meanwhile.
        """
        with closing(self.open_log()) as log, closing(self.open_sink()) as sink:
            for part in parts:
                yield self._finish(sink, part, self._fold(log, part, tell))

    def finish_stream(self, fold: StreamFold, part: OffsetRange) -> BucketResult:
        """Writes the bucket of a partition that a pass has folded up to its end."""
        self.check_parked(fold.parked.values())
        with closing(self.open_sink()) as sink:
            return self._finish(sink, part, fold)

    def updates(
        self, sorter: UpdateSorter, part: OffsetRange, opened: Iterable[tuple[RawRecord, Decoded]]
    ) -> Iterator[KeyedUpdate]:
        """The updates that records of a partition make, each before the end offsets of its bucket."""
        items, cuts = sorter.items(self.sources.index(part), opened), self.cuts
        if cuts is None:
            return items
        topic, partition = part.topic, part.partition
        return (i for i in items if i.bucket in cuts and i.offset < cuts[i.bucket].next_offset(topic, partition))

    def fold_buckets(self, items: Iterable[KeyedUpdate]) -> Iterator[BucketResult]:
        """Folds the sorted updates of some whole buckets and writes their rows.

        Raises:
            ContractError: too many keys are parked.
            Fenced: the rebuild was ended meanwhile.
        """
        with closing(self.open_sink()) as sink:
            for bucket, group in groupby(items, attrgetter("bucket")):
                fold = BucketFold(self.view, bucket, self.sources, self._aside(bucket))
                self._write(sink, bucket, self._checked(fold, group))
                yield sink.finish(self.generation, fold.result())

    def _aside(self, bucket: int) -> frozenset[str]:
        return self.aside.get(bucket, frozenset())

    def check_parked(self, parked: Collection[Parked]) -> None:
        """Raises ContractError when more keys are parked than allowed."""
        if len(parked) > self.max_parked:
            first = next(iter(parked))
            raise ContractError(
                f"view {self.view.name}: more than {self.max_parked} keys are parked, the first at {first.address}: "
                f"{first.error}; fix the fold and rebuild"
            )

    def _finish(self, sink: BulkSink, part: OffsetRange, fold: StreamFold) -> BucketResult:
        """Writes the bucket of a folded partition; if some rows cannot be stored, another fold finds out since when."""
        try:
            rows = fold.rows()
        except RowEncodingError as error:
            with closing(self.open_log()) as log:
                fold = self._fold(log, part, lambda count: None, error.rows)
            rows = fold.rows()
            self.check_parked(fold.parked.values())
        self._write(sink, part.partition, rows)
        return sink.finish(self.generation, fold.result(rows, self._aside(part.partition)))

    def _fold(
        self, log: BulkLog, part: OffsetRange, tell: ProgressCallback, tracked: Collection[str] = ()
    ) -> StreamFold:
        fold = StreamFold(self.view, part, tracked=tracked)
        wanted = dict[bytes, bool]()
        for records in log.read(part):
            fold.add(records if self.share >= 1 else self._sampled(records, wanted))
            tell(len(records))
            if fold.parked:
                self.check_parked(fold.parked.values())
        return fold

    def _sampled(self, records: Sequence[BulkRecord], wanted: dict[bytes, bool]) -> list[BulkRecord]:
        """The records of a share of the streams; of other streams only the key is read.

        Args:
            wanted: the keys seen so far, and whether each belongs to the share.
        """
        encode, found = self.view.keys.encode, []
        for record in records:
            key = record.key() or b""
            is_wanted = wanted.get(key)
            if is_wanted is None:
                is_wanted = bool(key) and sampled(encode(key.decode(errors="replace")), self.share)
                wanted[key] = is_wanted
            if is_wanted:
                found.append(record)
        return found

    def _checked(self, fold: BucketFold, items: Iterable[KeyedUpdate]) -> Iterator[BulkRow]:
        for row in fold.rows(items):
            yield row
            if fold.parked:
                self.check_parked(fold.parked.values())

    def _write(self, sink: BulkSink, bucket: int, rows: Iterable[BulkRow]) -> None:
        sink.write(self.generation, bucket, self.view.rows.columns, self.view.rows.indexes, rows)


def run_locally(job: BulkJob, plan: RebuildPlan, tell: ProgressCallback) -> list[BucketResult]:
    """Runs all tasks one after another in this process; a view that is not stream-keyed is sorted in memory."""
    if not job.generation.stream_keyed:
        return run_pass_locally([job], plan, tell)[0]
    return list(job.fold_streams((part for task in plan.tasks for part in task), tell))


class PassResult(NamedTuple):
    """The output of a partition for one job: updates to be sorted, or the result of a complete bucket."""

    job: int
    items: Sequence[KeyedUpdate]
    result: BucketResult | None = None


@dataclass(frozen=True)
class BulkPass:
    """Jobs that read the same ranges in one pass; it can be pickled if they can."""

    jobs: tuple[BulkJob, ...]

    def read(self, parts: Iterable[OffsetRange], tell: ProgressCallback) -> Iterator[PassResult]:
        """Reads partitions one after another: folds them for stream-keyed views, and makes updates for the others.

        Raises:
            ContractError: an event stops a view, or too many keys of one are parked.
            Fenced: the rebuild was ended meanwhile.
        """
        opened = OpenedRecords([job.view for job in self.jobs])
        with closing(self.jobs[0].open_log()) as log:
            sorted_ = {n: job for n, job in enumerate(self.jobs) if not job.generation.stream_keyed}
            writers = {n: UpdateSorter(job.view, job.generation.buckets, job.share) for n, job in sorted_.items()}
            for part in parts:
                folds = {
                    number: StreamFold(job.view, part)
                    for number, job in enumerate(self.jobs)
                    if number not in writers and (job.cuts is None or part.partition in job.cuts)
                }
                for records in log.read(part):
                    known = opened.of(part, records)
                    for fold in folds.values():
                        fold.add_decoded(known)
                    for number, writer in writers.items():
                        if items := list(self.jobs[number].updates(writer, part, known)):
                            yield PassResult(number, items)
                    tell(len(records))
                for number, fold in folds.items():
                    yield PassResult(number, (), self.jobs[number].finish_stream(fold, part))

    def fold(self, number: int, items: Iterable[KeyedUpdate]) -> Iterator[BucketResult]:
        """Folds the sorted updates of some whole buckets of one job."""
        return self.jobs[number].fold_buckets(items)


def run_pass_locally(jobs: Sequence[BulkJob], plan: RebuildPlan, tell: ProgressCallback) -> list[list[BucketResult]]:
    """Runs a pass in this process; updates are sorted in memory."""
    results: list[list[BucketResult]] = [[] for _ in jobs]
    items: list[list[KeyedUpdate]] = [[] for _ in jobs]
    parts = (part for task in plan.tasks for part in task)
    for job, found, result in BulkPass(tuple(jobs)).read(parts, tell):
        items[job] += found
        if result is not None:
            results[job].append(result)
    for number, mine in enumerate(items):
        if mine:
            results[number] += jobs[number].fold_buckets(sorted(mine))
    return results


def tuned_gc() -> None:
    """Freezes the loaded objects in the garbage collector and makes collections rare.

    Processors and folds make millions of small values that are freed by reference count; the default thresholds spend a
    third of the time looking for cycles among them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
