"""A retry with a corrected fold frees parked rows; no event of theirs is lost, and other rows never wait."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from leftfold import FoldView
from leftfold.engine.verify.history import RowRetry
from leftfold.engine.views.cleanup import remove
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.errors import ContractError, ViewNotBuilt
from leftfold.memory import World
from leftfold.ports.flush import BucketFlush
from tests.domains.ledger import LedgerEvent, Moved, Summary, summarise, summary
from tests.domains.ledger_world import folded, live, parked, retry, rows_of, verify
from tests.engine.committed_log import CommittedLog

CENT = Decimal("0.01")


def corrected(row: Summary | None, event: LedgerEvent) -> Summary | None:
    """The summary's fold, which digests every number."""
    if isinstance(event, Moved) and event.amount == Decimal("66.60"):
        after = summarise(row, event.model_copy(update={"amount": event.amount + CENT}))
        return replace(after, balance=after.balance - CENT) if after is not None else None
    return summarise(row, event)


fixed = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=corrected)


@pytest.fixture
def world(poisoned_world: World) -> World:
    return poisoned_world


def test_a_corrected_fold_frees_every_parked_row(world: World) -> None:
    waiting = set(parked(world))
    assert waiting
    result = retry(world, fixed).run(live(world, summary))
    assert (set(result.freed), result.parked) == (waiting, {})
    assert rows_of(world, summary) == folded(world, fixed)
    assert verify(world, fixed).run(live(world, summary), deep=True).equal, "the checksum is whole again"
    assert world.views[summary].describe().rows == len(rows_of(world, summary))


def test_a_watch_returns_the_rows_that_a_retry_has_freed(world: World) -> None:
    waiting, reader = set(parked(world)), world.views[summary]
    start, watch = reader.describe().position, reader.watch(timeout=0.0)
    retry(world, fixed).run(live(world, summary))
    assert {change.key for change in watch} == waiting
    assert waiting <= {change.key for change in reader.watch(after=start, timeout=0.0)}, "it continues before them"


def test_a_sample_shows_rows_that_a_corrected_fold_would_free_and_a_verification_ignores_them(world: World) -> None:
    waiting, generation = set(parked(world)), live(world, summary)
    assert {row.key for row in verify(world, fixed).sample(generation, 1.0).differences} == waiting
    result = verify(world, fixed).run(generation, deep=True)
    assert (result.equal, set(result.parked)) == (True, waiting)


def test_the_same_fold_parks_them_again_and_changes_nothing(world: World) -> None:
    before = world.store.checkpoints(live(world, summary))
    result = retry(world, summary).run(live(world, summary))
    assert (result.freed, set(result.parked)) == ((), set(parked(world)))
    assert all("cannot digest" in why for why in result.parked.values())
    assert world.store.checkpoints(live(world, summary)) == before


def test_one_key_is_freed_and_the_others_wait_on(world: World) -> None:
    one, *others = sorted(parked(world))
    assert retry(world, fixed).run(live(world, summary), [one]).freed == (one,)
    assert set(parked(world)) == set(others)


def test_a_key_that_is_not_parked_is_refused(world: World) -> None:
    with pytest.raises(ContractError, match=r"l-999 is not parked in view ledger_summary; parked are l-"):
        retry(world, fixed).run(live(world, summary), ["l-999"])


def test_a_retry_of_a_generation_that_is_removed_meanwhile_says_so(world: World) -> None:
    generation = live(world, summary)

    def open_log() -> CommittedLog:
        remove(world.store, generation)
        return CommittedLog(world.log.reader())

    with pytest.raises(ViewNotBuilt, match=f"generation {generation.id} of view ledger_summary is not whole"):
        RowRetry(fixed, world.store, open_log).run(generation)


def test_a_retry_that_a_projector_overtakes_folds_again(world: World) -> None:
    """A projector's flush comes between the read of the checkpoint and ours, twice; events have arrived meanwhile."""
    generation, store = live(world, summary), world.store
    world._projector.close()
    flush, left = store.flush, [2]

    def beaten(flushes: Any) -> bool:
        if left[0]:
            left[0] -= 1
            other = ProjectionWriter(fixed, generation, store)
            assert flush(
                [
                    BucketFlush(generation, b, m.token, replace(m, token=f"x{left}{b}"), (), ())
                    for b, m in other.checkpoints.items()
                ]
            )
        return flush(flushes)

    store.flush = beaten  # type: ignore[method-assign]  # another writer, not another store
    result = retry(world, fixed).run(generation)
    assert (left, result.parked) == ([0], {})
    assert parked(world) == {}
    assert verify(world, fixed).run(generation, deep=True).equal


def test_of_two_retries_at_the_same_time_one_frees_the_rows(world: World) -> None:
    """Another operator's retry comes between the read of the first checkpoint and its flush."""
    generation, store, waiting = live(world, summary), world.store, set(parked(world))
    flush, others = store.flush, [retry(world, fixed)]
    freed: list[tuple[str, ...]] = []

    def beaten(flushes: Any) -> bool:
        while others:
            freed.append(others.pop().run(generation).freed)
        return flush(flushes)

    store.flush = beaten  # type: ignore[method-assign]  # another operator, not another store
    freed.append(retry(world, fixed).run(generation).freed)
    assert [set(keys) for keys in freed] == [waiting, set()]
    assert verify(world, fixed).run(generation, deep=True).equal, "no row was counted twice"
