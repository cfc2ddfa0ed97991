from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from leftfold.client import Reader, Views
from leftfold.memory import MemoryViewStore
from leftfold.ports.queries import Counting, GetRow, Matching, Query, Rows
from tests.domains.shop import Spend, household_spend
from tests.engine.fold_bench import FoldBench, out

A = TypeVar("A")


class Counted(MemoryViewStore):
    """A store that remembers what it was asked; each question is one round trip."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[type[Query[Any]]] = []

    def ask(self, question: Query[A], /) -> A:
        """Counts it."""
        self.asked.append(type(question))
        return super().ask(question)


@pytest.fixture
def store() -> Counted:
    """Thirty households in sixteen buckets."""
    bench, store = FoldBench(household_spend), Counted()
    bench.store = store
    for number in range(30):
        bench.write(out(f"b{number}", f"h{number:02d}", p=10 if number % 3 == 0 else 1))
    bench.settle()
    return store


@pytest.mark.parametrize(
    ("read", "trips"),
    [
        (lambda reader: reader.get("h01"), [GetRow]),
        (lambda reader: reader.entry("h01"), [Rows]),
        (lambda reader: reader.many([f"h{n:02d}" for n in range(30)]), [Rows]),
        (lambda reader: reader.count(), [Rows]),
        (lambda reader: reader.count(tier="gold"), [Counting]),
        (lambda reader: reader.count_between("tier", above="b"), [Counting]),
        (lambda reader: reader.find(tier="gold"), [Matching, Rows]),
        (lambda reader: reader.find(tier="silver"), [Matching]),
        (lambda reader: reader.top("tier", 5), [Matching, Rows]),
        (lambda reader: reader.between("tier", at_least="b", limit=5), [Matching, Rows]),
    ],
)
def test_a_read_over_all_buckets_takes_as_many_round_trips_as_one_over_one(
    store: Counted, read: Callable[[Reader[Spend]], object], trips: list[type[Query[Any]]]
) -> None:
    reader = Views(store)[household_spend]
    read(reader)
    store.asked.clear()
    read(reader)
    assert store.asked == trips
