"""A rebuild gives what the projector gives, for random histories, in memory."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold import FoldView, memory
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions
from leftfold.engine.rebuild.result import Agreement
from leftfold.errors import ContractError
from leftfold.memory import World
from leftfold.ports.bulk import CommittedLog
from leftfold.ports.flush import Phase
from leftfold.testing import fold
from tests.ledger import LedgerEvent, Summary, app, by_owner, by_tag, histories, stranger, summarise, summary

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def rebuild(world: World, view: Any, **options: Any) -> Rebuild:
    return Rebuild(
        view,
        world.store,
        open_log=lambda: CommittedLog(world.log.reader()),
        open_reader=world.log.reader,
        open_sink=lambda: world.store,
        options=RebuildOptions(keep=0, patience=0.0, **options),
    )


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 120), poison=st.sampled_from([0.0, 0.05]))
def test_a_rebuild_equals_the_tail_and_the_fold(seed: int, count: int, poison: float) -> None:
    with memory(app, now=NOW) as world:
        world.client.send_many(list(histories(stranger(seed), count, poison=poison)))
        events = [recorded.event for recorded in world.events("ledgers")]
        views: list[Any] = [summary, by_owner, by_tag]
        for view in views:
            before = world.views[view].describe()
            result = rebuild(world, view).run()
            after = world.views[view].describe()
            assert result.agreement is Agreement.EQUAL, result
            assert (after.checksum, after.rows, after.position) == (before.checksum, before.rows, before.position)
            assert after.generation != before.generation
            assert after.parked == before.parked
            if not before.parked:
                assert dict(world.views[view].items()) == fold(view, *events)
        assert all(world.views[by_owner].find(positive=True).values())


def test_a_fold_whose_meaning_changed_unseen_is_not_swapped_in() -> None:
    def generous(row: Summary | None, event: LedgerEvent) -> Summary | None:
        made = summarise(row, event)
        return made and Summary(made.owner, made.moves, made.balance + 1, made.last)

    changed = FoldView("ledger_summary", events=LedgerEvent, row=Summary, evolve=generous)
    with memory(app, now=NOW) as world:
        world.client.send_many(list(histories(stranger(1), 40)))
        before = world.views[summary].describe()
        result = rebuild(world, changed).run()
        assert (result.agreement, result.exit_code) == (Agreement.DIFFERENT, 3)
        assert world.views[summary].describe().generation == before.generation
        assert rebuild(world, changed, swap_anyway=True).run().swapped
        assert world.views[summary].describe().generation != before.generation


def test_a_rebuild_that_fails_leaves_no_trace() -> None:
    with memory(app, now=NOW) as world:
        world.client.send_many(list(histories(stranger(2), 200, poison=0.9)))
        before = world.store.registry(summary.name)
        with pytest.raises(ContractError, match="more than 3 keys are parked"):
            rebuild(world, summary, max_parked=3).run()
        assert world.store.registry(summary.name) == before
        assert all(g.phase is not Phase.BULK for g in before.generations.values())


def test_parked_rows_stay_at_their_last_good_state() -> None:
    with memory(app, now=NOW) as world:
        commands = list(histories(stranger(3), 150, poison=0.03))
        world.client.send_many(commands)
        parked = world.views[summary].describe().parked
        assert parked
        rebuild(world, summary).run()
        entry = world.views[summary].entry(next(iter(parked)))
        assert entry.parked is not None
        assert "cannot digest" in entry.parked.error
        assert entry.row is None or entry.row.balance != Decimal("66.60")
