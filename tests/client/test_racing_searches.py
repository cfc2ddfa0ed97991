"""Rows that change between the index and the row: only what the row itself confirms is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from leftfold.client import Reader, Views
from leftfold.client.search import Search
from leftfold.memory import MemoryViewStore
from leftfold.ports.queries import Query, Rows
from tests.domains.shop import Spend, household_spend
from tests.engine.fold_bench import FoldBench, out

A = TypeVar("A")


class Racing(MemoryViewStore):
    """A store where somebody else gets in between an answer of the indexes and the reading of rows, once."""

    def __init__(self) -> None:
        super().__init__()
        self.between: Callable[[], None] | None = None

    def ask(self, question: Query[A], /) -> A:
        """Lets the other one go first."""
        if isinstance(question, Rows) and self.between is not None:
            first, self.between = self.between, None
            first()
        return super().ask(question)


@pytest.fixture
def bench() -> FoldBench:
    """Four households of tier base; ten more make one gold."""
    bench = FoldBench(household_spend)
    bench.store = Racing()
    bench.views = Views(bench.store)
    for number in range(4):
        bench.write(out(f"b{number}", f"h{number}", p=1))
    return bench


def racing(bench: FoldBench) -> Reader[Spend]:
    """A reader, with h0 becoming gold when it reads rows next."""
    tail, store = bench.settle(), bench.store
    reader = bench.views[household_spend]
    assert reader.get("h0") == reader.get("h1")
    bench.write(out("more", "h0", p=10))

    def settle() -> None:
        bench.settle(tail)

    assert isinstance(store, Racing)
    store.between = settle
    return reader


def test_a_row_that_moved_away_is_not_found(bench: FoldBench) -> None:
    assert set(racing(bench).find(tier="base")) == {"h1", "h2", "h3"}


def test_twin_without_looking_at_the_row_it_is_found_with_another_value(
    bench: FoldBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believing(self: Search[Any, Any], ranges: Any, hits: Any, rows: Any) -> list[tuple[str, Any]]:
        return [(key, household_spend.rows.decode(fields)) for (_, _, key), fields in zip(hits, rows, strict=True)]

    monkeypatch.setattr(Search, "_confirmed", believing)
    assert racing(bench).find(tier="base")["h0"].tier == "gold"


def test_a_range_that_is_cut_is_asked_again_and_full(bench: FoldBench) -> None:
    assert list(racing(bench).between("tier", at_most="base", limit=2)) == ["h1", "h2"]


def test_the_top_is_in_the_order_of_what_the_rows_say(bench: FoldBench) -> None:
    found = racing(bench).top("tier", 4, smallest=True)
    assert [row.tier for row in found.values()] == ["base", "base", "base", "gold"]
