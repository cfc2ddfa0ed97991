"""Slips that no type checker sees, or that a notebook makes: each is an error that says what was meant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from leftfold import ConfigurationError, Position, Receipt
from leftfold.client import Reader
from tests.domains.shop import Spend, household_spend
from tests.engine.fold_bench import FoldBench, out


@pytest.fixture
def bench() -> FoldBench:
    bench = FoldBench()
    bench.write(out("b1", "a", p=1))
    bench.write(out("b2", "b", p=2))
    bench.settle()
    return bench


@pytest.fixture
def reader(bench: FoldBench) -> Reader[Spend, str]:
    return bench.views[household_spend]


def test_one_key_in_place_of_many_is_refused(reader: Reader[Spend, str]) -> None:
    """Taken letter by letter, "ab" would have found the rows of a and of b."""
    reads: tuple[Callable[[], object], ...] = (
        lambda: reader.many("ab"),
        lambda: asyncio.run(reader.amany("ab")),
        lambda: next(reader.watch(keys="ab", timeout=0.0)),
        lambda: asyncio.run(anext(reader.awatch(keys="ab", timeout=0.0))),
    )
    for read in reads:
        with pytest.raises(ConfigurationError, match=r"household_spend: 'ab' is one key; say a list of keys: \['ab'\]"):
            read()
    assert set(reader.many(["a", "b", "ab"])) == {"a", "b"}


def test_what_is_no_position_is_refused_with_where_one_comes_from(reader: Reader[Spend, str]) -> None:
    receipt: Any = Receipt(Position(), 1)
    text: Any = "baskets.events[0:1]"
    for wrong, hint in ((receipt, "say receipt.position"), (text, "take it from a receipt")):
        reads: tuple[Callable[[], object], ...] = (
            partial(reader.get, "a", after=wrong),
            partial(reader.many, ["a"], after=wrong),
            partial(reader.wait_reached, wrong),
            partial(reader.watch, after=wrong),
            partial(_aget, reader, wrong),
        )
        for read in reads:
            with pytest.raises(ConfigurationError, match=f"no Position; {hint}"):
                read()


def test_a_reader_is_found_by_the_view_and_not_by_its_name(bench: FoldBench) -> None:
    name: Any = "household_spend"
    with pytest.raises(ConfigurationError, match="found by the view itself, not by str; import it"):
        bench.views[name]
    with pytest.raises(ConfigurationError, match="found by the view itself"):
        bench.views.as_of(name, "march")


@pytest.mark.parametrize("limit", [0, -1, 2.5])
def test_a_page_has_at_least_one_row(reader: Reader[Spend, str], limit: Any) -> None:
    """A page of none would have a cursor to itself: whoever pages to the end would never get there."""
    with pytest.raises(ConfigurationError, match=f"limit={limit} must be a whole number from 1 on"):
        reader.scan(limit=limit)


def _aget(reader: Reader[Spend, str], after: Any) -> Spend | None:
    return asyncio.run(reader.aget("a", after=after))
