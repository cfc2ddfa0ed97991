"""Reads by index: equal values, ordered ranges, the first or last rows, and counts."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from operator import itemgetter
from types import NoneType, UnionType
from typing import Any, Generic, Union, get_args, get_origin

from typing_extensions import TypeVar

from leftfold.client.lookup import Live, Lookup, check_number
from leftfold.client.steps import Steps, ask
from leftfold.errors import ConfigurationError, ContractError
from leftfold.model.row_codec import ordered
from leftfold.model.view import View
from leftfold.ports.flush import Generation
from leftfold.ports.queries import Counting, Counts, IndexRange, Matches, Matching, Query, Rows

__all__ = ["Bounds", "Search"]


@dataclass(frozen=True)
class Bounds:
    """The ends of a range as a caller gives them; None = open."""

    at_least: Any = None
    above: Any = None
    at_most: Any = None
    below: Any = None


def indexed(view: View[Any, Any], field: str) -> str:
    """The name of an indexed field, checked.

    Raises:
        ConfigurationError: it has none.
    """
    if field not in view.rows.indexes:
        raise ConfigurationError(
            f"view {view.name} has no index on {field!r}; it has {list(view.rows.indexes)}; "
            f"add it to indexes= and rebuild"
        )
    return field


def equal(view: View[Any, Any], field: str, value: Any) -> IndexRange:
    """The range of one value, None included.

    Raises:
        ConfigurationError: no index on the field, or the value is not of its type.
    """
    text = _text(view, field, value)
    return IndexRange(field, text, text)


def ranged(view: View[Any, Any], field: str, bounds: Bounds) -> IndexRange:
    """The range between two ends, without rows whose field is None.

    Raises:
        ConfigurationError: no index on the field, an end is not of its type, or one side has two.
    """
    for one, other in (("at_least", "above"), ("at_most", "below")):
        if getattr(bounds, one) is not None and getattr(bounds, other) is not None:
            raise ConfigurationError(f"{field}: {one}= and {other}= are two ends on one side; give one of them")
    low = bounds.at_least if bounds.above is None else bounds.above
    high = bounds.at_most if bounds.below is None else bounds.below
    return IndexRange(
        indexed(view, field),
        None if low is None else _text(view, field, low),
        None if high is None else _text(view, field, high),
        above_low=bounds.above is not None,
        below_high=bounds.below is not None,
    )


def _text(view: View[Any, Any], field: str, value: Any) -> str:
    kinds = _kinds(view.rows.index_types[indexed(view, field)])
    row = view.rows.row.__name__
    if not any(_fits(value, kind) for kind in kinds):
        raise ConfigurationError(
            f"view {view.name}: {row}.{field} is {' | '.join(map(_named, kinds))}, and {value!r} is "
            f"{type(value).__name__}"
        )
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ConfigurationError(f"view {view.name}: {row}.{field} holds aware times, and {value!r} has no time zone")
    try:
        return ordered(value)
    except ContractError as error:
        raise ConfigurationError(f"view {view.name}: {row}.{field}: {error}") from error


def _kinds(type_: Any) -> tuple[Any, ...]:
    if get_origin(type_) in (Union, UnionType):
        return tuple(kind for arg in get_args(type_) for kind in _kinds(arg))
    return (type_,)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a field's type accepts a value; a bool is no int, a datetime no date, an int a Decimal."""
    if kind is int:
        return isinstance(value, int) and not isinstance(value, (bool, Enum))
    if kind is Decimal:
        return isinstance(value, (int, Decimal)) and not isinstance(value, (bool, Enum))
    if kind is date:
        return isinstance(value, date) and not isinstance(value, datetime)
    return isinstance(value, kind)


def _named(kind: Any) -> str:
    return "None" if kind is NoneType else str(kind.__name__)


Row = TypeVar("Row")
K = TypeVar("K", default=str)
L = TypeVar("L", Counts, Matches)
_Hit = tuple[str, int, str]
_PATIENCE_SECONDS = 2.0
_ATTEMPTS = 5


class Search(Generic[Row, K]):
    """Reads by index: queries the indexes of all buckets, then reads the rows; methods return steps.

    A row may change between the two: rows that do not match themselves are left out, and a read with a limit is
    repeated then.
    """

    def __init__(self, live: Live[Row, K]) -> None:
        self._live, self._view, self._lookup = live, live.view, Lookup(live)

    def find(self, equals: Mapping[str, Any], limit: int | None = None) -> Steps[dict[K, Row]]:
        """The rows whose fields have these values."""
        check_number(limit, "limit")
        if not equals:
            return {}
        ranges = tuple([equal(self._view, field, value) for field, value in equals.items()])
        rows = yield from self._read(ranges, limit, backwards=False)
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
        """The number of rows, or of rows with these values."""
        ranges = tuple([equal(self._view, field, value) for field, value in equals.items()])
        if not ranges:
            snapshot = yield from self._lookup.whole(_PATIENCE_SECONDS)
            total = sum(checkpoint.rows for checkpoint in snapshot.checkpoints.values())
        elif len(ranges) == 1:
            total = yield from self._counted(ranges[0])
        else:
            _, matches = yield from self._matches(ranges, None, backwards=False)
            total = len(_hits(matches))
        return total

    def count_between(self, field: str, bounds: Bounds) -> Steps[int]:
        """The number of rows in a range."""
        total = yield from self._counted(ranged(self._view, field, bounds))
        return total

    def _counted(self, range_: IndexRange) -> Steps[int]:
        _, counts = yield from self._answer(lambda generation: Counting(generation, (range_,)))
        return counts.totals[0]

    def _matches(
        self, ranges: tuple[IndexRange, ...], limit: int | None, *, backwards: bool
    ) -> Steps[tuple[Generation, Matches]]:
        return self._answer(lambda generation: Matching(generation, ranges, limit, backwards))

    def _answer(self, question: Callable[[Generation], Query[L]]) -> Steps[tuple[Generation, L]]:
        """The answer to a query of the live generation; it is asked again when that is not live any more."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            generation = yield from self._live.generation()
            answer = yield from ask(question(generation))
            if answer.live == generation.id:
                return generation, answer
            yield from self._live.moved(generation, deadline)

    def _read(self, ranges: tuple[IndexRange, ...], limit: int | None, *, backwards: bool) -> Steps[dict[K, Row]]:
        deadline, attempts = time.monotonic() + _PATIENCE_SECONDS, _ATTEMPTS
        while True:
            # The first entries of one range need not be among those of another.
            most = limit if len(ranges) == 1 else None
            generation, matches = yield from self._matches(ranges, most, backwards=backwards)
            hits = _first(_hits(matches), limit, backwards)
            if not hits:
                return {}
            places = tuple([(bucket, key) for _, bucket, key in hits])
            snapshot = yield from ask(Rows(generation, places))
            if snapshot.live != generation.id or not {bucket for bucket, _ in places} <= snapshot.checkpoints.keys():
                yield from self._live.moved(generation, deadline)
                continue
            rows = self._confirmed(ranges, hits, snapshot.rows)
            attempts -= 1
            if limit is None or len(rows) == len(hits) or not attempts:
                return self._sorted(ranges[0].index, rows, backwards)

    def _confirmed(
        self, ranges: Sequence[IndexRange], hits: Iterable[_Hit], rows: Iterable[Mapping[bytes, bytes] | None]
    ) -> list[tuple[str, Row]]:
        """The rows whose own fields lie in every range."""
        decoded = (
            (key, self._view.rows.decode(fields)) for (_, _, key), fields in zip(hits, rows, strict=True) if fields
        )
        return [
            (key, row)
            for key, row in decoded
            if all(range_.includes(ordered(getattr(row, range_.index))) for range_ in ranges)
        ]

    def _sorted(self, field: str, rows: list[tuple[str, Row]], backwards: bool) -> dict[K, Row]:
        rows.sort(key=lambda pair: (ordered(getattr(pair[1], field)), pair[0]), reverse=backwards)
        return {self._view.keys.decode(key): row for key, row in rows}


def _hits(matches: Matches) -> list[_Hit]:
    """(value in the first range, bucket, key) of the entries that are in every range."""
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
