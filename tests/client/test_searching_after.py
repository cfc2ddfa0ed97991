"""Searches that wait for a position: they find what a receipt speaks of, or say that the view is not there yet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from leftfold import ConfigurationError, FoldView, Position, Receipt, StaleViewError
from leftfold.client import Reader, Views
from tests.domains.shop import CheckedOut, Spend, household_spend
from tests.engine.fold_bench import TOPIC, FoldBench, out


def searches(reader: Reader[Spend, str], **wait: Any) -> list[Callable[[], Any]]:
    """Every search, for rows of the tier `gold`; the last two give numbers."""
    return [
        partial(reader.find, tier="gold", **wait),
        partial(reader.between, "tier", at_least="gold", at_most="gold", **wait),
        partial(reader.top, "tier", 1, **wait),
        lambda: asyncio.run(reader.afind(tier="gold", **wait)),
        lambda: asyncio.run(reader.abetween("tier", at_least="gold", at_most="gold", **wait)),
        lambda: asyncio.run(reader.atop("tier", 1, **wait)),
        partial(reader.count, tier="gold", **wait),
        partial(reader.count_between, "tier", at_least="gold", **wait),
        lambda: asyncio.run(reader.acount(tier="gold", **wait)),
        lambda: asyncio.run(reader.acount_between("tier", at_least="gold", **wait)),
    ]


def written(bench: FoldBench) -> Position:
    """Just behind an event that makes a household gold, and that no projector has folded."""
    (record,) = bench.write(out("b1", "h", p=10))
    return Position.at(TOPIC, record.partition, record.offset + 1)


@pytest.mark.parametrize("number", range(10))
def test_a_search_finds_what_was_folded_while_it_waited(number: int) -> None:
    bench = FoldBench()
    tail = bench.settle()
    position = written(bench)
    steps: list[float] = []

    def wait(seconds: float) -> None:
        steps.append(seconds)
        tail.step(0.0)

    reader = Views(bench.store, wait)[household_spend]
    if number in (3, 4, 5, 8, 9):  # a loop of its own waits there
        tail.step(0.0)
    found = searches(reader, after=position)[number]()
    assert found == 1 or list(found) == ["h"]
    assert bool(steps) is (number not in (3, 4, 5, 8, 9))


@pytest.mark.parametrize("number", range(10))
def test_a_view_that_is_not_there_in_time_is_stale(number: int) -> None:
    bench = FoldBench()
    bench.settle()
    position = written(bench)
    reader = bench.views[household_spend]
    with pytest.raises(StaleViewError, match="view household_spend is at .* not yet at"):
        searches(reader, after=position, timeout=0.01)[number]()
    assert not searches(reader)[number](), "without after= it answers at once"


@pytest.mark.parametrize("number", range(10))
def test_a_receipt_is_no_position(number: int) -> None:
    bench = FoldBench()
    bench.settle()
    with pytest.raises(ConfigurationError, match="is Receipt and no Position; say receipt.position"):
        searches(bench.views[household_spend], after=Receipt(Position(), 1))[number]()


@dataclass(frozen=True)
class Handover:
    """A row with fields that are called like what `find` takes."""

    after: str
    timeout: int


handovers = FoldView(
    "handovers",
    events=CheckedOut,
    row=Handover,
    key=lambda event: event.household,
    evolve=lambda row, event: Handover(event.basket_id, 30),
    indexes=("after", "timeout"),
)


def test_fields_of_these_names_are_meant_where_they_have_an_index() -> None:
    bench = FoldBench(handovers)
    (record,) = bench.write(out("b1", "h", p=10))
    bench.settle()
    reader = bench.views[handovers]
    assert list(reader.find(after="b1", timeout=30)) == ["h"]
    assert reader.find(timeout=31) == {}
    assert reader.count(after="b2") == 0
    position = Position.at(TOPIC, record.partition, record.offset + 1)
    assert reader.count(after=position, timeout=0.01) == 1
