"""Several views folded in one pass over the log: each partition is read once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from leftfold.engine.bulk import BulkJob, Tell
from leftfold.engine.bulk_items import Item, ItemWriter, OpenedRecords
from leftfold.engine.bulk_log import Range
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.bulk_streams import StreamFold
from leftfold.engine.cut import before_cuts

__all__ = ["BulkPass", "Passed", "run_pass_here"]


class Passed(NamedTuple):
    """What a partition gives to one of the jobs: items to be sorted, or the result of a bucket that is whole."""

    job: int
    items: Sequence[Item]
    result: BucketResult | None = None


@dataclass(frozen=True)
class BulkPass:
    """Jobs that read the same ranges; it can be pickled if they can."""

    jobs: tuple[BulkJob, ...]

    def read(self, parts: Iterable[Range], tell: Tell) -> Iterator[Passed]:
        """Reads partitions one after another: folds them for stream-keyed views, and makes items for the others.

        Raises:
            ContractError: an event stops a view, or too many keys of one are parked.
            Fenced: the rebuild was ended meanwhile.
        """
        opened = OpenedRecords([job.view for job in self.jobs])
        with closing(self.jobs[0].open_log()) as log:
            writers = {
                number: ItemWriter(job.view, job.generation.buckets)
                for number, job in enumerate(self.jobs)
                if not job.generation.stream_keyed
            }
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
                        job = self.jobs[number]
                        items = writer.items(job.sources.index(part), known)
                        kept = list(items if job.cuts is None else before_cuts(items, job.cuts, job.sources))
                        if kept:
                            yield Passed(number, kept)
                    tell(len(records))
                for number, fold in folds.items():
                    yield Passed(number, (), self.jobs[number].finish_stream(fold, part))

    def fold(self, number: int, items: Iterable[Item]) -> Iterator[BucketResult]:
        """Folds the sorted items of some whole buckets of one job."""
        return self.jobs[number].fold_buckets(items)


def run_pass_here(jobs: Sequence[BulkJob], parts: Iterable[Range], tell: Tell) -> list[list[BucketResult]]:
    """Runs a pass in this process; items are sorted in memory."""
    whole = BulkPass(tuple(jobs))
    results: list[list[BucketResult]] = [[] for _ in jobs]
    items: list[list[Item]] = [[] for _ in jobs]
    for job, found, result in whole.read(parts, tell):
        items[job] += found
        if result is not None:
            results[job].append(result)
    for number, mine in enumerate(items):
        if mine:
            results[number] += whole.fold(number, sorted(mine))
    return results
