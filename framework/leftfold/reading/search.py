"""Reads by index: equal values, ranges in order, the first or last few, and counts."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Generic

from typing_extensions import TypeVar

from leftfold.flush import Generation
from leftfold.ordered import ordered
from leftfold.questions import Counting, Counts, Matches, Matching, Range, Rows
from leftfold.reading.arguments import check_number
from leftfold.reading.bounds import Bounds, equal, ranged
from leftfold.reading.live import Live
from leftfold.reading.steps import Steps, ask

__all__ = ["Search"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)
_Hit = tuple[str, int, str]
_PATIENCE_SECONDS = 2.0
_ATTEMPTS = 5


class Search(Generic[Row, K]):
    """Asks the indexes of all buckets at once, then reads the rows; each method is the steps of one read.

    A row may change between the two: whatever the row itself does not confirm is left out, and a read that is cut at
    so many rows is asked again then.
    """

    def __init__(self, live: Live[Row, K]) -> None:
        self._live, self._view = live, live.view

    def find(self, equals: Mapping[str, Any]) -> Steps[dict[K, Row]]:
        """The rows whose fields have these values."""
        if not equals:
            return {}
        ranges = tuple([equal(self._view, field, value) for field, value in equals.items()])
        rows = yield from self._read(ranges, None, backwards=False)
        return rows

    def between(self, field: str, bounds: Bounds, limit: int | None) -> Steps[dict[K, Row]]:
        """The rows of a range in its order."""
        check_number(limit, "limit")
        rows = yield from self._read((ranged(self._view, field, bounds),), limit, backwards=False)
        return rows

    def top(self, field: str, n: int, *, smallest: bool) -> Steps[dict[K, Row]]:
        """The rows with the largest or smallest values, best first."""
        check_number(n, "n")
        rows = yield from self._read((ranged(self._view, field, Bounds()),), n, backwards=not smallest)
        return rows

    def count(self, equals: Mapping[str, Any]) -> Steps[int]:
        """How many rows there are, or how many have these values."""
        ranges = tuple([equal(self._view, field, value) for field, value in equals.items()])
        if not ranges:
            total = yield from self._total()
        elif len(ranges) == 1:
            total = yield from self._counted(ranges[0])
        else:
            _, matches = yield from self._matches(ranges, None, backwards=False)
            total = len(_hits(matches))
        return total

    def count_between(self, field: str, bounds: Bounds) -> Steps[int]:
        """How many rows a range holds."""
        total = yield from self._counted(ranged(self._view, field, bounds))
        return total

    def _total(self) -> Steps[int]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            generation = yield from self._live.generation()
            snapshot = yield from ask(Rows(generation, (), tuple(range(generation.buckets))))
            if snapshot.live == generation.id and len(snapshot.marks) == generation.buckets:
                return sum(mark.rows for mark in snapshot.marks.values())
            yield from self._live.moved(generation, deadline)

    def _counted(self, range_: Range) -> Steps[int]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            generation = yield from self._live.generation()
            counts: Counts = yield from ask(Counting(generation, (range_,)))
            if counts.live == generation.id:
                return counts.totals[0]
            yield from self._live.moved(generation, deadline)

    def _matches(
        self, ranges: tuple[Range, ...], limit: int | None, *, backwards: bool
    ) -> Steps[tuple[Generation, Matches]]:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            generation = yield from self._live.generation()
            matches = yield from ask(Matching(generation, ranges, limit, backwards))
            if matches.live == generation.id:
                return generation, matches
            yield from self._live.moved(generation, deadline)

    def _read(self, ranges: tuple[Range, ...], limit: int | None, *, backwards: bool) -> Steps[dict[K, Row]]:
        deadline, attempts = time.monotonic() + _PATIENCE_SECONDS, _ATTEMPTS
        while True:
            generation, matches = yield from self._matches(ranges, limit, backwards=backwards)
            hits = _first(_hits(matches), limit, backwards)
            if not hits:
                return {}
            places = tuple([(bucket, key) for _, bucket, key in hits])
            snapshot = yield from ask(Rows(generation, places))
            if snapshot.live != generation.id or not {bucket for bucket, _ in places} <= snapshot.marks.keys():
                yield from self._live.moved(generation, deadline)
                continue
            rows = self._confirmed(ranges, hits, snapshot.rows)
            attempts -= 1
            if limit is None or len(rows) == len(hits) or not attempts:
                return self._sorted(ranges[0].index, rows, backwards)

    def _confirmed(
        self, ranges: Sequence[Range], hits: Iterable[_Hit], rows: Iterable[Mapping[bytes, bytes] | None]
    ) -> list[tuple[str, Row]]:
        """The rows that are in every range themselves."""
        decoded = (
            (key, self._view.rows.decode(fields)) for (_, _, key), fields in zip(hits, rows, strict=True) if fields
        )
        return [(key, row) for key, row in decoded if all(_within(range_, row) for range_ in ranges)]

    def _sorted(self, field: str, rows: list[tuple[str, Row]], backwards: bool) -> dict[K, Row]:
        rows.sort(key=lambda pair: (ordered(getattr(pair[1], field)), pair[0]), reverse=backwards)
        return {self._view.keys.decode(key): row for key, row in rows}


def _hits(matches: Matches) -> list[_Hit]:
    """(value in the first range, bucket, key) of what is in every range."""
    first, *others = matches.found
    found = []
    for bucket, entries in first.items():
        sets = [{key for _, key in other.get(bucket, ())} for other in others]
        found += [(value, bucket, key) for value, key in entries if all(key in some for some in sets)]
    return found


def _first(hits: list[_Hit], limit: int | None, backwards: bool) -> list[_Hit]:
    if limit is None:
        return hits
    choose = heapq.nlargest if backwards else heapq.nsmallest
    return choose(limit, hits, key=itemgetter(0, 2))


def _within(range_: Range, row: object) -> bool:
    value = ordered(getattr(row, range_.index))
    low, high = range_.low, range_.high
    if low is None and value == ordered(None):
        return False
    above = low is None or value > low or (value == low and not range_.above_low)
    below = high is None or value < high or (value == high and not range_.below_high)
    return above and below
