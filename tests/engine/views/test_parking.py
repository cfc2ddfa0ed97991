"""Rows that are parked, events that are parked by themselves, and views that stop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from leftfold import FoldView
from leftfold.engine.verify.history import RowRetry
from leftfold.engine.verify.verification import Verify
from leftfold.engine.views.folded_rows import NO_KEY
from leftfold.errors import ContractError
from leftfold.memory import World
from leftfold.model.keys import NO_ROW, NoRowKey, partition_of
from leftfold.ports.flush import BucketFlush, Checkpoint
from leftfold.testing import fold
from tests.domains.ledger import Move, Moved, Total, add, by_owner, by_tag
from tests.domains.ledger_world import folded, ledger_world, live, rebuild, retry, rows_of, steps_of, verify
from tests.domains.ledger_world import parked as parked_in
from tests.domains.shop import Added, Opened, Spend, Summary, household_spend, open_baskets, product_sales, spend
from tests.engine.committed_log import CommittedLog
from tests.engine.fold_bench import PARTITIONS, TOPIC, Batches, FoldBench, checksum, out

ONE = Decimal(1)


def opened(basket: str) -> Opened:
    return Opened(basket_id=basket, household="h")


def added(basket: str, product: str = "p") -> Added:
    return Added(basket_id=basket, product=product, price=ONE)


def parked(bench: FoldBench, view: Any = open_baskets) -> dict[str, Any]:
    return dict(bench.views[view].describe().parked)


def checkpoint(bench: FoldBench, bucket: int) -> Checkpoint:
    return bench.store.checkpoints(bench.live(household_spend))[bucket]


@pytest.fixture
def bench() -> FoldBench:
    return FoldBench(open_baskets)


def test_an_event_that_a_fold_cannot_digest_parks_its_row_at_its_last_good_state() -> None:
    bench = FoldBench()
    projector = bench.fold(None, opened("b"), added("b"))
    before = bench.views[open_baskets].get("b")
    (bad,) = bench.write(added("b", "unfoldable"))
    bench.write(added("b"))
    bench.fold(projector, added("c"))
    entry = bench.views[open_baskets].entry("b")
    assert entry.row == before
    assert entry.parked is not None
    assert (entry.parked.topic, entry.parked.partition, entry.parked.offset) == (TOPIC, bad.partition, bad.offset)
    assert entry.parked.error == "ValueError: cannot be summarised"
    assert entry.parked.waiting == 2
    assert bench.views[open_baskets].get("c") == Summary(1, ONE)


def test_a_checkpoint_keeps_the_beginning_of_a_long_error() -> None:
    def wordy(row: Summary | None, event: Added) -> Summary:
        raise ValueError(f"cannot fold {event}" + "x" * 1_000_000)

    view = FoldView("wordy", events=Added, row=Summary, evolve=wordy)
    bench = FoldBench(view)
    bench.fold(None, added("b"))
    error = parked(bench, view)["b"].error
    assert error.startswith("ValueError: cannot fold basket_id='b'")
    assert len(error) == 500


def test_parked_keys_are_left_out_of_the_checksum() -> None:
    with_, without = FoldBench(), FoldBench()
    with_.write(opened("b"))
    with_.write(added("b", "unfoldable"))
    for bench in (with_, without):
        bench.fold(None, opened("c"))
    sums = [checksum(list(b.store.checkpoints(b.live(open_baskets)).values())) for b in (with_, without)]
    assert sums[0] == sums[1] != 0
    assert set(parked(with_)) == {"b"}


def test_a_new_projector_keeps_parked_rows_parked() -> None:
    bench = FoldBench()
    bench.fold(None, added("b", "unfoldable"))
    bench.fold(None, added("b"))
    assert parked(bench)["b"].waiting == 2


@pytest.mark.parametrize("key", [None, b"", b"\xff\xfe"])
def test_an_event_whose_key_cannot_be_read_parks_under_a_key_of_its_own(bench: FoldBench, key: bytes | None) -> None:
    bench.raw(key, b"{", ce_type=b"baskets.Added.v1")
    bench.fold(None, opened("c"))
    assert list(parked(bench)) == ([open_baskets.keys.encode(repr(key))] if key else [open_baskets.keys.encode(NO_KEY)])
    assert bench.views[open_baskets].get("c") == Summary()
    retry = RowRetry(open_baskets, bench.store, lambda: CommittedLog(bench.log.reader()))
    result = retry.run(bench.live(open_baskets))
    assert (result.freed, list(result.parked)) == ((), list(parked(bench))), "no retry frees it: no event has this key"


@pytest.mark.parametrize("bad", [b"{", b'{"basket_id":"b","household":"unkeyed","total":"1","lines":[]}'])
def test_a_cross_stream_view_stops_at_an_event_of_an_unknown_row(bad: bytes) -> None:
    bench = FoldBench(household_spend)
    projector = bench.settle()
    bench.fold(projector, out("a", "h", p=1))
    record = bench.raw(b"b", bad, ce_type=b"baskets.CheckedOut.v1")
    for _ in range(3):
        projector.step(0.0)
    bench.fold(projector, out("c", "h", p=1))
    what, details = bench.reports[-1]
    assert what == "view stopped"
    assert f"{TOPIC}[{record.partition}]@{record.offset}" in details["why"]
    assert bench.rows(household_spend) == {"h": Spend(ONE, "base")}
    checkpoints = bench.store.checkpoints(bench.live(household_spend)).values()
    assert all(checkpoint.position.next_offset(TOPIC, record.partition) <= record.offset for checkpoint in checkpoints)


def test_a_stopped_view_leaves_the_others_going() -> None:
    bench = FoldBench(open_baskets, household_spend)
    bench.write(out("b", "unkeyed", p=1))
    bench.write(opened("c"))
    projector = bench.projector()
    bench.until(projector, lambda: bool(bench.reports.of("view stopped")))
    bench.until(projector, lambda: bench.store.registry("open_baskets").live != {})
    bench.write(opened("d"))
    for _ in range(5):
        projector.step(0.0)
    assert set(bench.rows(open_baskets)) == {"c", "d"}


def test_an_unreadable_event_concerns_only_the_views_that_read_its_class() -> None:
    bench = FoldBench(open_baskets, household_spend)
    bench.raw(b"b", b"{", ce_type=b"baskets.Added.v1")
    bench.fold(None, out("c", "h", p=1))
    assert bench.rows(household_spend) == {"h": Spend(ONE, "base")}
    assert set(parked(bench)) == {"b"}


def test_more_parked_keys_than_allowed_stop_the_view_and_move_nothing(bench: FoldBench) -> None:
    projector = bench.settle()
    for number in range(101):
        bench.write(added(f"b{number}", "unfoldable"))
    for _ in range(3):
        projector.step(0.0)
    assert bench.reports[-1] == (
        "view stopped",
        {"view": "open_baskets", "why": "more than 100 keys are parked; fix the fold and rebuild"},
    )
    assert parked(bench) == {}


def test_a_stored_row_that_cannot_be_read_any_more_parks_its_key() -> None:
    bench = FoldBench(household_spend)
    bench.fold(None, out("b", "h", p=1))
    generation = bench.live(household_spend)
    number = partition_of(b"h", generation.buckets)
    bench.store._buckets[generation.view, generation.id, number].rows["h"][b"total"] = b"?"
    bench.write(out("c", "h", p=1))
    bench.fold(None, out("d", "i", p=1))
    assert set(parked(bench, household_spend)) == {"h"}
    assert bench.views[household_spend].get("i") == Spend(ONE, "base")


def test_a_row_that_is_parked_because_it_cannot_be_read_is_left_out_of_the_checksum() -> None:
    """As a verification leaves it out, and as the checksum leaves out every other parked row."""
    bench = FoldBench(household_spend)
    bench.fold(None, out("b", "h", p=1)).close()
    generation, codec = bench.live(household_spend), household_spend.rows
    number = partition_of(b"h", generation.buckets)
    row, before = bench.store._buckets[generation.view, generation.id, number].rows["h"], checkpoint(bench, number)
    row[b"total"] = b"?"
    noted = replace(before, checksum=codec.digest("h", tuple(row[column] for column in codec.columns)), token="bug")
    assert bench.store.flush([BucketFlush(generation, number, before.token, noted, (), ())])
    bench.fold(None, out("c", "h", p=1))
    assert set(parked(bench, household_spend)) == {"h"}
    assert checkpoint(bench, number).checksum == 0
    verification = Verify(
        household_spend,
        bench.store,
        open_log=lambda: CommittedLog(bench.log.reader()),
        open_store=lambda: bench.store,
    )
    assert verification.run(generation).equal


def test_the_same_fold_parks_in_memory_loudly() -> None:
    with pytest.raises(ValueError, match="cannot be summarised"):
        fold(open_baskets, added("b", "unfoldable"))
    assert fold(household_spend, out("b", "h", p=1)) == {"h": spend(None, out("b", "h", p=1))}
    assert partition_of(b"b", PARTITIONS) < PARTITIONS


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
    with ledger_world() as world:
        world.client.send_many(COMMANDS)
        yield world


def named(world: World, view: Any) -> dict[Any, Any]:
    """The rows of a fold that leaves out what names none."""
    rows: dict[str, Any] = {}
    for recorded in world.events("ledgers"):
        for key, item in view.touches(recorded.event, recorded.key):
            if not isinstance(item, NoRowKey):
                rows[key] = view.evolve(rows.get(key), item)
    return {view.keys.decode(key): row for key, row in rows.items() if row is not None}


@VIEWS
def test_an_event_without_a_row_key_is_parked_and_every_other_row_is_folded(world: World, view: Any) -> None:
    assert parked_in(world, view) == {NO_ROW: WHY}
    assert rows_of(world, view) == named(world, view)
    assert {"ann", "red"} & set(rows_of(world, view))


@VIEWS
def test_rebuild_and_verification_park_the_same_events_without_a_row_key(world: World, view: Any) -> None:
    before = world.views[view].describe()
    assert verify(world, view).run(live(world, view), deep=True).equal
    rebuild(world, view).run()
    after = world.views[view].describe()
    assert (after.checksum, after.rows, after.parked) == (before.checksum, before.rows, before.parked)


@VIEWS
def test_explain_shows_events_without_a_row_key_and_retry_asks_for_a_rebuild(world: World, view: Any) -> None:
    found = steps_of(world, view, NO_ROW)
    assert {step.touch.decoded.key for step in found} == {"l-2", "l-3"}
    assert found[0].error == WHY
    result = retry(world, view).run(live(world, view))
    assert result.freed == ()
    assert "correct key= and rebuild" in result.parked[NO_ROW]


def test_a_rebuild_with_corrected_code_gives_such_events_their_row(world: World) -> None:
    corrected = FoldView(
        by_owner.name, events=Moved, row=Total, key=lambda e: e.owner or "-", evolve=add, indexes=("positive",)
    )
    assert not verify(world, corrected).run(live(world, by_owner), deep=True).equal, "its fold gives other rows"
    assert rebuild(world, corrected, swap_anyway=True).run().swapped
    assert parked_in(world, by_owner) == {}
    assert rows_of(world, corrected) == folded(world, corrected)


@pytest.mark.parametrize("view", [product_sales], ids=repr)
def test_micro_batches_park_events_without_a_row_key(view: Any) -> None:
    bench = FoldBench(view)
    batches = Batches(bench, view)
    bench.write(out("a", "h", apple=1))
    bench.write(out("b", "h", **{"": 2, "pear": 3}))
    batches.fold()
    bench.write(out("c", "h", **{"": 4}))
    bench.write(out("d", "h", apple=5))
    batches.fold()
    (found,) = [why for checkpoint in batches.driver.checkpoints.values() for why in checkpoint.parked.values()]
    assert (found.error, found.waiting) == (WHY, 2)
    assert set(bench.rows(view)) == {"apple", "pear"}


def test_a_fold_in_a_test_raises_for_an_event_without_a_row_key() -> None:
    with pytest.raises(ContractError, match="a row key may not be empty"):
        fold(by_owner, Moved(ledger="l", owner="", amount=ONE))
    with pytest.raises(ContractError, match="a row key may not be empty"):
        fold(by_tag, Moved(ledger="l", owner="o", amount=ONE, tags=("a", "")))


@pytest.mark.parametrize("text", ["\ud800", ""])
def test_an_empty_text_or_half_a_surrogate_pair_is_no_row_key(text: str) -> None:
    ((key, item),) = by_owner.touches(Moved.model_construct(ledger="l", owner=text, amount=ONE), "l")
    assert key == NO_ROW
    assert isinstance(item, NoRowKey)


@pytest.mark.parametrize("text", [NO_ROW, "\0", " ", "@", "a/b", "%"])
def test_no_text_encodes_to_the_key_of_events_without_a_row(text: str) -> None:
    ((key, _),) = by_owner.touches(Moved(ledger="l", owner=text, amount=ONE), "l")
    assert key != NO_ROW
    assert by_owner.keys.decode(key) == text


def test_a_key_function_that_raises_stops_the_view() -> None:
    """Only code can be wrong there, and code that comes may give the event its row: nothing is passed over."""
    view = FoldView("by_owner", events=Moved, row=Total, key=unowned, evolve=add)
    with pytest.raises(ValueError, match="the owner is not known"):
        view.touches(Moved(ledger="l", owner="o", amount=ONE), "l")
    typed = FoldView("by_owner", events=Moved, row=Total, key=lambda e: e.owner, evolve=add)
    unread = Moved(ledger="l", owner="o", amount=ONE)
    vars(unread)["owner"] = None  # no event is read so, but a key may be made of anything
    with pytest.raises(ContractError, match="which this view's key is made of") as raised:
        typed.touches(unread, "l")
    assert not isinstance(raised.value, NoRowKey)


def unowned(event: Moved) -> str:
    raise ValueError("the owner is not known")
