"""An event whose value names no row is parked by itself: no client can stop a view for others with an empty text."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from leftfold import FoldView, memory
from leftfold.engine.verify.history import explain
from leftfold.engine.verify.parked_retry import RowRetry
from leftfold.errors import ContractError
from leftfold.memory import World
from leftfold.model.keys import NO_ROW, NoRowKey
from leftfold.ports.bulk import CommittedLog
from leftfold.testing import fold
from tests.domains.shop import product_sales
from tests.engine.batching import Batches
from tests.engine.folding import FoldBench, out
from tests.engine.rebuild.test_rebuild import rebuild
from tests.engine.rebuild.test_rebuild_swap import live
from tests.engine.verify.test_verifying import verify
from tests.ledger import Move, Moved, Total, add, app, by_owner, by_tag

ONE = Decimal(1)
WHY = "NoRowKey: a row key may not be empty"
VIEWS = pytest.mark.parametrize("view", [by_owner, by_tag], ids=lambda view: view.name)
COMMANDS = [
    Move(ledger="l-1", owner="ann", amount=ONE, tags=("red",)),
    Move(ledger="l-2", owner="", amount=ONE, tags=("red", "", "blue")),
    Move(ledger="l-3", owner="", amount=ONE, tags=("",)),
    Move(ledger="l-1", owner="bob", amount=ONE, tags=("blue",)),
]


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send_many(COMMANDS)
        yield world


def parked(world: World, view: Any) -> dict[str, str]:
    checkpoints = world.store.checkpoints(live(world, view)).values()
    return {key: why.error for checkpoint in checkpoints for key, why in checkpoint.parked.items()}


def named(world: World, view: Any) -> dict[Any, Any]:
    """The rows of a fold that leaves out what names none."""
    rows: dict[str, Any] = {}
    for recorded in world.events("ledgers"):
        for key, item in view.touches(recorded.event, recorded.key):
            if not isinstance(item, NoRowKey):
                rows[key] = view.evolve_row(rows.get(key), item)
    return {view.keys.decode(key): row for key, row in rows.items() if row is not None}


@VIEWS
def test_it_is_parked_and_every_other_row_goes_on(world: World, view: Any) -> None:
    assert parked(world, view) == {NO_ROW: WHY}
    assert dict(world.views[view].items()) == named(world, view)
    assert {"ann", "red"} & set(dict(world.views[view].items()))


@VIEWS
def test_a_rebuild_and_a_verification_park_the_same(world: World, view: Any) -> None:
    before = world.views[view].describe()
    assert verify(world, view).run(live(world, view), deep=True).equal
    rebuild(world, view).run()
    after = world.views[view].describe()
    assert (after.checksum, after.rows, after.parked) == (before.checksum, before.rows, before.parked)


def test_of_one_event_only_the_pairs_without_a_row_are_left_out(world: World) -> None:
    found = dict(world.views[by_tag].items())
    assert set(found) == {"red", "blue"}


@VIEWS
def test_however_many_there_are_the_view_goes_on(world: World, view: Any) -> None:
    world.client.send_many([Move(ledger=f"m-{n}", owner="", amount=ONE, tags=("",)) for n in range(150)])
    world.client.send(Move(ledger="l-9", owner="zoe", amount=ONE, tags=("green",)))
    assert dict(world.views[view].items()) == named(world, view)
    assert set(dict(world.views[view].items())) & {"zoe", "green"}
    assert parked(world, view) == {NO_ROW: WHY}


@VIEWS
def test_explain_shows_them_and_retry_says_that_a_rebuild_is_needed(world: World, view: Any) -> None:
    upto = world.views[view].describe().position
    found = list(explain(view, live(world, view), NO_ROW, upto, lambda: CommittedLog(world.log.reader())))
    assert {step.touch.decoded.key for step in found} == {"l-2", "l-3"}
    assert found[0].error == WHY
    result = RowRetry(view, world.store, lambda: CommittedLog(world.log.reader())).run(live(world, view))
    assert result.freed == ()
    assert "correct key= and rebuild" in result.parked[NO_ROW]


def test_code_that_names_a_row_gives_it_by_a_rebuild(world: World) -> None:
    mended = FoldView(
        by_owner.name, events=Moved, row=Total, key=lambda e: e.owner or "-", evolve=add, indexes=("positive",)
    )
    assert not verify(world, mended).run(live(world, by_owner), deep=True).equal, "nobody says that the rows are these"
    assert rebuild(world, mended, swap_anyway=True).run().swapped
    assert parked(world, by_owner) == {}
    assert dict(world.views[mended].items()) == fold(mended, *(recorded.event for recorded in world.events("ledgers")))


@pytest.mark.parametrize("view", [product_sales], ids=repr)
def test_micro_batches_park_it_too(view: Any) -> None:
    bench = FoldBench(view)
    batches = Batches(bench, view)
    bench.write(out("a", "h", apple=1))
    bench.write(out("b", "h", **{"": 2, "pear": 3}))
    batches.fold()
    bench.write(out("c", "h", **{"": 4}))
    bench.write(out("d", "h", apple=5))
    batches.fold()
    (found,) = [why for checkpoint in batches.course.checkpoints.values() for why in checkpoint.parked.values()]
    assert (found.error, found.waiting) == (WHY, 2)
    assert set(bench.rows(view)) == {"apple", "pear"}


def test_a_fold_in_a_test_raises() -> None:
    with pytest.raises(ContractError, match="a row key may not be empty"):
        fold(by_owner, Moved(ledger="l", owner="", amount=ONE))
    with pytest.raises(ContractError, match="a row key may not be empty"):
        fold(by_tag, Moved(ledger="l", owner="o", amount=ONE, tags=("a", "")))


@pytest.mark.parametrize("text", ["\ud800", ""])
def test_what_utf_8_cannot_hold_is_no_key_either(text: str) -> None:
    ((key, item),) = by_owner.touches(Moved.model_construct(ledger="l", owner=text, amount=ONE), "l")
    assert key == NO_ROW
    assert isinstance(item, NoRowKey)


@pytest.mark.parametrize("text", [NO_ROW, "\0", " ", "@", "a/b", "%"])
def test_no_text_is_taken_for_it(text: str) -> None:
    ((key, _),) = by_owner.touches(Moved(ledger="l", owner=text, amount=ONE), "l")
    assert key != NO_ROW
    assert by_owner.keys.decode(key) == text


def test_a_key_that_raises_still_stops_the_view() -> None:
    """Only code can be wrong there, and code that comes may give the event its row: nothing is passed over."""
    view = FoldView("by_owner", events=Moved, row=Total, key=unowned, evolve=add)
    with pytest.raises(ValueError, match="nobody knows"):
        view.touches(Moved(ledger="l", owner="o", amount=ONE), "l")
    typed = FoldView("by_owner", events=Moved, row=Total, key=lambda e: e.owner, evolve=add)
    with pytest.raises(ContractError, match="which this view's key is made of") as raised:
        typed.touches(Moved.model_construct(ledger="l", owner=None, amount=ONE), "l")
    assert not isinstance(raised.value, NoRowKey)


def unowned(event: Moved) -> str:
    raise ValueError("nobody knows whose this is")
