from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from leftfold import ConfigurationError
from leftfold.client import Views
from leftfold.memory import MemoryViewStore
from leftfold.ports.protocols import ViewStore
from tests.client.searches import Searches
from tests.client.things import Kind, filled, things


class TestSearchesInMemory(Searches):
    @pytest.fixture
    def store(self) -> ViewStore:
        return MemoryViewStore()


reader = Views(MemoryViewStore())[things]


def test_a_field_without_an_index_is_refused_by_every_search() -> None:
    for search in (
        lambda: reader.find(length=1),
        lambda: reader.top("length", 3),
        lambda: reader.between("length", above=1),
        lambda: reader.count(length=1),
        lambda: reader.count_between("length"),
    ):
        with pytest.raises(ConfigurationError, match=r"view things has no index on 'length'; it has \['size', 'price'"):
            search()


@pytest.mark.parametrize(
    ("field", "value", "what"),
    [
        ("size", "1", r"Thing.size is int, and '1' is str"),
        ("size", True, r"Thing.size is int, and True is bool"),
        ("size", Decimal(1), r"Thing.size is int"),
        ("size", None, r"Thing.size is int, and None is NoneType"),
        ("price", 1.5, r"Thing.price is Decimal, and 1.5 is float"),
        ("price", Decimal("NaN"), r"Thing.price: Decimal\('NaN'\) cannot be indexed"),
        ("at", datetime(2026, 1, 1), r"Thing.at holds aware times, and .* has no time zone"),  # noqa: DTZ001  # that is what is wrong with it
        ("at", date(2026, 1, 1), r"Thing.at is datetime, and .* is date"),
        ("day", datetime(2026, 1, 1, tzinfo=UTC), r"Thing.day is date, and .* is datetime"),
        ("ok", 1, r"Thing.ok is bool, and 1 is int"),
        ("kind", "small", r"Thing.kind is Kind, and 'small' is str"),
        ("color", Kind.SMALL, r"Thing.color is str, and .* is Kind"),
        ("weight", "heavy", r"Thing.weight is Decimal \| None, and 'heavy' is str"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_fields_own(field: str, value: Any, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        reader.find(**{field: value})
    if value is not None:
        with pytest.raises(ConfigurationError, match=what):
            reader.between(field, at_least=value)


def test_a_range_has_one_end_on_each_side() -> None:
    with pytest.raises(ConfigurationError, match="size: at_least= and above= are two ends on one side"):
        reader.between("size", at_least=1, above=2)
    with pytest.raises(ConfigurationError, match="size: at_most= and below= are two ends on one side"):
        reader.count_between("size", at_most=1, below=2)


@pytest.mark.parametrize("number", [0, -1, 2.5])
def test_a_number_of_rows_is_a_whole_one(number: Any) -> None:
    with pytest.raises(ConfigurationError, match="n=.* must be a whole number"):
        reader.top("size", number)
    with pytest.raises(ConfigurationError, match="limit=.* must be a whole number"):
        reader.between("size", limit=number)


def test_nothing_asked_finds_nothing_and_an_empty_view_has_nothing() -> None:
    store = MemoryViewStore()
    with filled(store, {}):
        empty = Views(store)[things]
        assert empty.find() == {}
        assert empty.count() == 0
        assert empty.top("size", 3) == {}
