"""Searches by index against looking at every row, on a view with an index of every kind: what each store promises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leftfold import Event, FoldView
from leftfold.client import Reader, Views
from leftfold.engine.views.folded_rows import bucket_of
from leftfold.engine.views.generations import change, open_generation
from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Phase, RowChange
from leftfold.ports.protocols import ViewStore

__all__ = ["FIELDS", "Kind", "Searches", "Thing", "filled", "rows_of", "things", "values"]

TOPIC = "things.events"
BUCKETS = 3


class Kind(Enum):
    SMALL = "small"
    LARGE = "large"
    OTHER = "other"


@dataclass(frozen=True)
class Thing:
    size: int
    price: Decimal
    at: datetime
    day: date
    ok: bool
    kind: Kind
    color: str
    id: UUID
    weight: Decimal | None = None
    nick: str | None = None
    seen: datetime | None = None


class Seen(Event, category="things", key="thing_id"):
    thing_id: str


def never(row: Thing | None, event: Seen) -> Thing | None:
    """No event is folded here: rows are written as they are."""
    return row


FIELDS = ("size", "price", "at", "day", "ok", "kind", "color", "id", "weight", "nick", "seen")
things = FoldView("things", events=Seen, row=Thing, key=lambda e: e.thing_id, evolve=never, indexes=FIELDS)

_few = st.sampled_from
FIRST, LAST = datetime(1, 1, 3), datetime(9999, 12, 29)  # noqa: DTZ001  # hypothesis adds the zones
present: Mapping[str, st.SearchStrategy[object]] = {
    "size": st.integers() | st.integers(-3, 3),
    "price": st.decimals(allow_nan=False, allow_infinity=False) | _few([Decimal(n) / 4 for n in range(-9, 9)]),
    "at": st.datetimes(FIRST, LAST, timezones=_few([UTC, timezone(timedelta(hours=-7))])),
    "day": st.dates(),
    "ok": st.booleans(),
    "kind": _few(Kind),
    "color": st.text(_few("ab\0\x01\x7fé\U0010ffff"), max_size=3) | st.text(st.characters(codec="utf-8"), max_size=5),
    "id": st.uuids(),
    "weight": _few([Decimal(n) for n in range(-3, 3)]),
    "nick": _few(["", "a", "b", "-"]),
    "seen": st.datetimes(FIRST, LAST, timezones=st.just(UTC)),
}
values = {**present, **{field: st.none() | present[field] for field in ("weight", "nick", "seen")}}


def rows_of(count: int = 8) -> st.SearchStrategy[dict[str, Thing]]:
    """Some rows by key."""
    rows = st.builds(lambda fields: Thing(**fields), st.fixed_dictionaries(dict(values)))
    return st.dictionaries(st.text("abcxyz", min_size=1, max_size=3), rows, max_size=count)


@contextmanager
def filled(store: ViewStore, rows: Mapping[str, Thing]) -> Iterator[Generation]:
    """A live generation with these rows, until the block ends."""
    generation = open_generation(store, things, {TOPIC: BUCKETS}, Phase.SEALED, BUCKETS)
    change(store, things.name, lambda registry: registry.pointed(generation))
    try:
        assert write(store, generation, rows.items())
        yield generation
    finally:
        change(store, things.name, lambda registry: registry.without(generation.id))
        store.unlink(generation)


def write(store: ViewStore, generation: Generation, rows: Iterable[tuple[str, Thing]]) -> bool:
    """Flushes new rows into every bucket."""
    codec, checkpoints = things.rows, store.checkpoints(generation)
    changes: dict[int, list[RowChange]] = {number: [] for number in range(BUCKETS)}
    for key, row in rows:
        changes[bucket_of(generation, key, 0)].append(
            RowChange(key, codec.encode(row), None, None, codec.index_entries(row))
        )
    position = Position({TOPIC: dict.fromkeys(range(BUCKETS), 1)})
    return store.flush(
        [
            BucketFlush(
                generation,
                number,
                checkpoints[number].token,
                Checkpoint(position, token="filled", rows=len(some)),
                codec.columns,
                codec.indexes,
                tuple(some),
            )
            for number, some in changes.items()
        ]
    )


# Each example makes a generation of its own, and each subclass has a store of its own.
sharing_the_store = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
    max_examples=6,
)
SMALLER: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": lambda value, end: value >= end,
    "above": lambda value, end: value > end,
    "at_most": lambda value, end: value <= end,
    "below": lambda value, end: value < end,
}


def order_of(value: Any) -> Any:
    """What a value is ordered by."""
    return value.value if isinstance(value, Kind) else value


@st.composite
def ends(draw: st.DrawFn, field: str, rows: dict[str, Thing]) -> dict[str, Any]:
    """Up to two ends of a range, often values that some row has."""
    there = [value for row in rows.values() if (value := getattr(row, field)) is not None]
    some = present[field] | st.sampled_from(there) if there else present[field]
    low = draw(st.sampled_from([None, "at_least", "above"]))
    high = draw(st.sampled_from([None, "at_most", "below"]))
    return {name: draw(some) for name in (low, high) if name is not None}


def some_value(field: str, rows: dict[str, Thing]) -> st.SearchStrategy[object]:
    """A value of a field, often one that some row has."""
    there = [getattr(row, field) for row in rows.values()]
    return values[field] | st.sampled_from(there) if there else values[field]


def keys_within(rows: dict[str, Thing], field: str, bounds: dict[str, Any]) -> list[str]:
    """The keys of the rows between two ends, in order."""
    reported = [(order_of(value), key) for key, row in rows.items() if (value := getattr(row, field)) is not None]
    return [
        key for value, key in sorted(reported) if all(SMALLER[n](value, order_of(end)) for n, end in bounds.items())
    ]


class Searches:
    """Override the fixture `store`."""

    @pytest.fixture
    def store(self) -> ViewStore:
        raise NotImplementedError

    @pytest.mark.parametrize("fields", [FIELDS[:4], FIELDS[4:8], FIELDS[8:]], ids=" ".join)
    @sharing_the_store
    @given(data=st.data(), rows=rows_of(), n=st.integers(1, 6))
    def test_an_index_finds_what_looking_at_every_row_finds(
        self, store: ViewStore, fields: Sequence[str], data: st.DataObject, rows: dict[str, Thing], n: int
    ) -> None:
        with filled(store, rows):
            reader: Reader[Thing] = Views(store)[things]
            assert reader.count() == len(rows)
            for field in fields:
                self._check(reader, field, rows, data.draw(ends(field, rows)), data.draw(some_value(field, rows)), n)

    def _check(
        self, reader: Reader[Thing], field: str, rows: dict[str, Thing], bounds: dict[str, Any], value: object, n: int
    ) -> None:
        within, ordered = keys_within(rows, field, bounds), keys_within(rows, field, {})
        equal = {key: row for key, row in rows.items() if getattr(row, field) == value}
        found = reader.between(field, **bounds)
        assert list(found) == within, "in order"
        assert found == {key: rows[key] for key in within}
        assert list(reader.between(field, **bounds, limit=2)) == within[:2]
        assert reader.count_between(field, **bounds) == len(within)
        assert reader.find(**{field: value}) == equal
        assert reader.count(**{field: value}) == len(equal)
        assert list(reader.top(field, n)) == ordered[::-1][:n]
        assert list(reader.top(field, n, smallest=True)) == ordered[:n]

    @sharing_the_store
    @given(rows=rows_of())
    def test_two_fields_at_once_are_those_that_have_both(self, store: ViewStore, rows: dict[str, Thing]) -> None:
        expected = {key: row for key, row in rows.items() if row.ok and row.kind is Kind.SMALL}
        with filled(store, rows):
            reader = Views(store)[things]
            assert reader.find(ok=True, kind=Kind.SMALL) == expected
            first = dict(sorted(expected.items(), key=lambda one: things.keys.encode(one[0]))[:2])
            assert reader.find(ok=True, kind=Kind.SMALL, limit=2) == first
            assert reader.count(ok=True, kind=Kind.SMALL) == len(expected)

    @sharing_the_store
    @given(rows=rows_of())
    def test_asyncio_searches_alike(self, store: ViewStore, rows: dict[str, Thing]) -> None:
        async def alike(reader: Reader[Thing]) -> None:
            assert await reader.afind(ok=True) == reader.find(ok=True)
            assert await reader.atop("price", 3, smallest=True) == reader.top("price", 3, smallest=True)
            assert await reader.abetween("size", above=0, limit=3) == reader.between("size", above=0, limit=3)
            assert await reader.acount() == reader.count()
            assert await reader.acount(ok=False) == reader.count(ok=False)
            assert await reader.acount_between("size", below=0) == reader.count_between("size", below=0)
            assert await reader.amany(rows) == reader.many(rows)
            assert {key: row async for key, row in reader.aitems()} == dict(reader.items()) == rows
            assert await reader.ascan(limit=2) == reader.scan(limit=2)
            assert await reader.aentry("abc") == reader.entry("abc")
            assert await reader.adescribe() == reader.describe()

        with filled(store, rows):
            asyncio.run(alike(Views(store)[things]))
