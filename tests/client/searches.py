"""Searches by index against looking at every row; run on each store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leftfold.client import Reader, Views
from leftfold.ports.protocols import ViewStore
from tests.client.things import FIELDS, Kind, Thing, filled, rows_of, things, values

__all__ = ["Searches"]

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


def ranked(value: Any) -> Any:
    """What a value is ordered by."""
    return value.value if isinstance(value, Kind) else value


@st.composite
def ends(draw: st.DrawFn, field: str, rows: dict[str, Thing]) -> dict[str, Any]:
    """Up to two ends of a range, often values that some row has."""
    there = [value for row in rows.values() if (value := getattr(row, field)) is not None]
    value = values[field].filter(lambda found: found is not None)
    some = value | st.sampled_from(there) if there else value
    low = draw(st.sampled_from([None, "at_least", "above"]))
    high = draw(st.sampled_from([None, "at_most", "below"]))
    return {name: draw(some) for name in (low, high) if name is not None}


def within(rows: dict[str, Thing], field: str, bounds: dict[str, Any]) -> list[str]:
    """The keys of the rows between two ends, in order."""
    told = [(ranked(value), key) for key, row in rows.items() if (value := getattr(row, field)) is not None]
    return [key for value, key in sorted(told) if all(SMALLER[n](value, ranked(end)) for n, end in bounds.items())]


class Searches:
    """Override the fixture `store`."""

    @pytest.fixture
    def store(self) -> ViewStore:
        raise NotImplementedError

    @pytest.mark.parametrize("field", FIELDS)
    @sharing_the_store
    @given(data=st.data(), rows=rows_of())
    def test_a_range_holds_the_rows_between_its_ends_in_order(
        self, store: ViewStore, field: str, data: st.DataObject, rows: dict[str, Thing]
    ) -> None:
        bounds = data.draw(ends(field, rows))
        expected = within(rows, field, bounds)
        with filled(store, rows):
            reader: Reader[Thing] = Views(store)[things]
            found = reader.between(field, **bounds)
            assert list(found) == expected
            assert found == {key: rows[key] for key in expected}
            assert list(reader.between(field, **bounds, limit=2)) == expected[:2]
            assert reader.count_between(field, **bounds) == len(expected)

    @pytest.mark.parametrize("field", FIELDS)
    @sharing_the_store
    @given(data=st.data(), rows=rows_of())
    def test_equal_values_are_found_and_counted(
        self, store: ViewStore, field: str, data: st.DataObject, rows: dict[str, Thing]
    ) -> None:
        there = [getattr(row, field) for row in rows.values()]
        value = data.draw(values[field] | st.sampled_from(there) if there else values[field])
        expected = {key: row for key, row in rows.items() if getattr(row, field) == value}
        with filled(store, rows):
            reader = Views(store)[things]
            assert reader.find(**{field: value}) == expected
            assert reader.count(**{field: value}) == len(expected)
            assert reader.count() == len(rows)

    @pytest.mark.parametrize("field", FIELDS)
    @sharing_the_store
    @given(rows=rows_of(), n=st.integers(1, 6))
    def test_the_top_rows_are_those_with_the_largest_or_smallest_values(
        self, store: ViewStore, field: str, rows: dict[str, Thing], n: int
    ) -> None:
        ordered = within(rows, field, {})
        with filled(store, rows):
            reader = Views(store)[things]
            assert list(reader.top(field, n)) == ordered[::-1][:n]
            assert list(reader.top(field, n, smallest=True)) == ordered[:n]

    @sharing_the_store
    @given(rows=rows_of())
    def test_two_fields_at_once_are_those_that_have_both(self, store: ViewStore, rows: dict[str, Thing]) -> None:
        expected = {key: row for key, row in rows.items() if row.ok and row.kind is Kind.SMALL}
        with filled(store, rows):
            reader = Views(store)[things]
            assert reader.find(ok=True, kind=Kind.SMALL) == expected
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
