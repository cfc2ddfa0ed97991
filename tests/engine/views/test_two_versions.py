"""Two versions of one view are folded at once, each by projectors of its own code, as during an upgrade."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from leftfold import FoldView
from leftfold.engine.views.projector import Projector
from leftfold.model import keys as names
from leftfold.testing import fold
from tests.domains.shop import Added, BasketEvent, Summary, open_baskets
from tests.engine.folding import FoldBench


def negated(row: Summary | None, event: BasketEvent) -> Summary | None:
    """The fold of the next version: what was folded before is taken for the other way round, and so is the event."""
    found = open_baskets.evolve(row and replace(row, total=-row.total), event)
    return found and replace(found, total=-found.total)


after = FoldView("open_baskets", events=BasketEvent, row=Summary, evolve=negated, version=2)
EVENTS = [Added(basket_id=f"b{number}", product="p", price=Decimal(1)) for number in range(8)]


def test_each_version_folds_every_bucket_of_its_own_generation_beside_the_other() -> None:
    assert rolled_out() == []


def test_twin_tails_of_both_versions_in_one_group_leave_half_of_the_buckets_to_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(names, "tails", lambda view, hash_: f"tails:{view}")
    assert rolled_out() == ["version 1", "version 2"]


def rolled_out() -> list[str]:
    """The versions whose rows are not the log's after both have worked side by side."""
    old, new = FoldBench(open_baskets), FoldBench(after)
    new.log, new.store, new.views = old.log, old.store, old.views
    first, second = old.tail(member="first", lease=60.0), new.tail(member="second", lease=60.0)
    old.settle(first)
    for event in EVENTS:
        old.write(event)
        steps([first, second], 3)
    steps([first, second], 20)
    views = {"version 1": open_baskets, "version 2": after}
    registry = old.store.registry("open_baskets")
    return [
        name
        for name, view in views.items()
        if registry.live_of(view.hash) is None or old.rows(view) != fold(view, *EVENTS)
    ]


def steps(tails: list[Projector], count: int) -> None:
    """Lets each work so often, by turns."""
    for _ in range(count):
        for tail in tails:
            tail.step(0.0)
