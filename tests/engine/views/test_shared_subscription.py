"""Subscriptions of one projector become one when they are equally far, and none waits for another that lags behind."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from leftfold.engine.views.generations import open_generation
from leftfold.engine.views.projector import Projector
from leftfold.errors import InfrastructureError
from leftfold.ports.flush import Phase
from tests.domains.ledger import Moved, by_owner
from tests.domains.shop import household_spend, open_baskets, product_sales
from tests.engine.fold_bench import PARTITIONS, TOPIC, FoldBench, out
from tests.planted import as_written
from tests.waiting import step_until

BACKLOG = 60
LEDGERS = "ledgers.events"


def at_once(projector: Projector, group: Any, main: Any) -> bool:
    return True


def moved(number: int) -> Moved:
    return Moved(ledger=f"l{number % 7}", owner="o", amount=Decimal("1.00"))


def write_moves(bench: FoldBench, count: int) -> None:
    for number in range(count):
        headers = {"ce_id": b"e", "ce_sequence": b"1", "ce_decision": b"1/1"}
        bench.log.append(LEDGERS, *as_written(moved(number), PARTITIONS, **headers))


def total_of(bench: FoldBench, household: str) -> Decimal:
    row = bench.rows(household_spend).get(household)
    return Decimal(0) if row is None else row.total


def behind_a_new_generation(bench: FoldBench) -> Projector:
    """A projector whose live generation was written by another, so that it reads it again beside a new one."""
    projector = bench.settle(bench.projector(batch=1))
    for number in range(BACKLOG):
        bench.write(out(f"b{number}", "h", p=1))
    bench.settle(projector)
    open_generation(bench.store, household_spend, {TOPIC: PARTITIONS}, Phase.SEALED)
    projector.step(0.0)
    bench.change_marks(household_spend, lambda checkpoint: checkpoint)
    bench.write(out("next", "h", p=1))
    live = bench.live(household_spend).id
    bench.until(projector, lambda: live in [writer.generation.id for writer in projector._groups[-1].writers])
    return projector


def behind_another_log(bench: FoldBench) -> Projector:
    """A projector of a live view, to which a view of other topics is added that has yet to read them."""
    projector = bench.settle(bench.projector(batch=1))
    projector.close()
    write_moves(bench, BACKLOG)
    bench.wanted = (household_spend, by_owner)
    return bench.projector(batch=1)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FoldBench:
    monkeypatch.setattr("leftfold.engine.views.projector.FLUSH_ROWS", 5)
    monkeypatch.setattr("leftfold.engine.views.projector.random.uniform", lambda low, high: 0.0)
    bench = FoldBench(household_spend)
    bench.log.create(LEDGERS, PARTITIONS)
    return bench


TWIN = pytest.mark.parametrize("is_twin", [False, pytest.param(True, id="twin")])


@TWIN
def test_a_live_generation_never_waits_for_one_that_lags_behind(
    bench: FoldBench, monkeypatch: pytest.MonkeyPatch, *, is_twin: bool
) -> None:
    """The twin joins subscriptions that are not equally far."""
    if is_twin:
        monkeypatch.setattr(Projector, "_is_level", at_once)
    projector = behind_a_new_generation(bench)
    assert len(projector._groups) == (1 if is_twin else 2)
    bench.write(out("more", "new", p=1))
    for _ in range(6):
        projector.step(0.0)
    assert total_of(bench, "new") == (0 if is_twin else 1)
    bench.settle(projector)
    assert len(projector._groups) == 1
    assert total_of(bench, "new") == 1


@TWIN
def test_a_view_of_another_log_is_read_apart_until_it_is_near_its_end(
    bench: FoldBench, monkeypatch: pytest.MonkeyPatch, *, is_twin: bool
) -> None:
    """The twin joins subscriptions that are not equally far; a consumer then fetches the old events first."""
    if is_twin:
        monkeypatch.setattr(Projector, "_is_level", at_once)
    projector = behind_another_log(bench)
    for _ in range(6):
        projector.step(0.0)
    assert len(projector._groups) == (1 if is_twin else 2)
    bench.settle(projector)
    assert len(projector._groups) == 1
    assert bench.rows(by_owner)["o"].total == BACKLOG


def test_views_of_one_log_are_read_together_from_the_first_event(bench: FoldBench) -> None:
    bench.wanted = (household_spend, product_sales)
    for number in range(BACKLOG):
        bench.write(out(f"b{number}", "h", p=1))
    projector = bench.projector(batch=1)
    for _ in range(3):
        projector.step(0.0)
    assert len(projector._groups) == 1
    assert not projector.caught_up()


def test_projectors_that_share_partitions_read_all_their_views_together_in_the_end(bench: FoldBench) -> None:
    bench.wanted = (open_baskets, household_spend)
    for number in range(BACKLOG):
        bench.write(out(f"b{number}", "h", p=1))
    both = [bench.projector(member=name) for name in ("one", "two")]
    step_until(lambda: [projector.step(0.0) for projector in both], lambda: all(one.caught_up() for one in both), str)


def test_a_log_that_names_no_ends_stops_no_projector(bench: FoldBench, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(topics: Any) -> Any:
        raise InfrastructureError("a partition has no leader")

    projector = behind_another_log(bench)
    projector.step(0.0)
    monkeypatch.setattr(projector._admin, "stable_ends", unreachable)
    bench.until(projector, lambda: bench.store.registry(by_owner.name).live_of(by_owner.hash) is not None)
    assert len(projector._groups) == 2, "they stay apart"
