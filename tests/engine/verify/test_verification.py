"""Whether a view holds what the log says: checksums, rows, indexes, samples, and the steps that made a row."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from leftfold import FoldView
from leftfold.engine.verify.verification import Throttle, Verify
from leftfold.engine.views.folded_rows import place_of
from leftfold.errors import ConfigurationError, ContractError, ViewNotBuilt
from leftfold.memory import World
from leftfold.model.view import View
from leftfold.ports.flush import BucketFlush, Generation
from tests.domains.ledger import LedgerEvent, Moved, Summary, Total, add, by_owner, summarise, summary
from tests.domains.ledger_world import each_view, ledger_world, live, parked, rebuild, rows_of, send, steps_of, verify
from tests.engine.committed_log import CommittedLog


@pytest.fixture
def world(poisoned_world: World) -> World:
    return poisoned_world


def bucket_of(world: World, generation: Generation, bucket: int) -> Any:
    return world.store._buckets[generation.view, generation.id, bucket]


def buckets_of(world: World, view: View[Any, Any]) -> list[Any]:
    generation = live(world, view)
    return [bucket_of(world, generation, number) for number in range(generation.buckets)]


def key_in(generation: Generation, bucket: int) -> str:
    """A key that no row has, and that belongs to a bucket."""
    return next(key for n in range(9999) if place_of(generation, key := f"stray{n}")[0] == bucket)


def overpay(row: dict[bytes, bytes]) -> None:
    row[b"balance" if b"balance" in row else b"total"] = b"12345.67"


def place_of_row(world: World, generation: Generation) -> tuple[int, str]:
    """The bucket and the key of a row that is not parked."""
    checkpoints = world.store.checkpoints(generation)
    rows = ((b, k) for b in checkpoints for k in bucket_of(world, generation, b).rows)
    return next((b, k) for b, k in rows if k not in checkpoints[b].parked)


Damage = Callable[[dict[str, dict[bytes, bytes]], str, str], dict[str, tuple[bool, bool]]]
"""What happens to the rows of a bucket, given a key and one of no row; by key, whether store or log lacks it then."""


def wrong(rows: dict[str, dict[bytes, bytes]], key: str, stray: str) -> dict[str, tuple[bool, bool]]:
    overpay(rows[key])
    return {key: (False, False)}


def deleted(rows: dict[str, dict[bytes, bytes]], key: str, stray: str) -> dict[str, tuple[bool, bool]]:
    del rows[key]
    return {key: (True, False)}


def moved(rows: dict[str, dict[bytes, bytes]], key: str, stray: str) -> dict[str, tuple[bool, bool]]:
    rows[stray] = rows.pop(key)
    return {key: (True, False), stray: (False, True)}


def damaged(world: World, view: View[Any, Any], damage: Damage, *, noted: bool) -> dict[str, tuple[bool, bool]]:
    """Damages a row, with the checksum, as a bug would, or without, as a client of Redis; what should be found."""
    generation, digest = live(world, view), view.rows.digest
    bucket, key = place_of_row(world, generation)
    rows, checkpoint = bucket_of(world, generation, bucket).rows, world.store.checkpoints(generation)[bucket]

    def total() -> int:
        return sum(digest(k, tuple(row[c] for c in view.rows.columns)) for k, row in rows.items())

    before = total()
    expected = damage(rows, key, key_in(generation, bucket))
    if noted:
        summed = replace(checkpoint, checksum=(checkpoint.checksum + total() - before) % (1 << 128))
        assert world.store.flush([BucketFlush(generation, bucket, summed.token, summed, (), ())])
    return expected


@each_view
def test_rows_of_a_projector_are_verified(world: World, view: View[Any, Any]) -> None:
    result = verify(world, view).run(live(world, view))
    assert (result.equal, result.wrong, result.rows, result.newly) == (True, (), (), {})
    assert result.stored == result.folded
    assert result.position == world.views[view].describe().position
    assert bool(result.parked) == (view is summary), "parked rows are left out of both, and named"


@each_view
@pytest.mark.parametrize("damage", [wrong, deleted, moved])
@pytest.mark.parametrize("noted", [True, False], ids=["by a bug", "beside the checkpoint"])
def test_a_damaged_row_is_found_and_shown(world: World, view: View[Any, Any], damage: Damage, noted: bool) -> None:
    """Beside its checkpoint, by a deep verification only."""
    expected, generation = damaged(world, view, damage, noted=noted), live(world, view)
    shallow = verify(world, view).run(generation)
    assert (shallow.equal, len(shallow.wrong), shallow.rows, shallow.deep) == (not noted, int(noted), (), False)
    deep = verify(world, view).run(generation, deep=True)
    assert (deep.equal, deep.exit_code, deep.unsettled, len(deep.wrong)) == (False, 3, (), int(noted))
    assert {row.key: (row.one is None, row.other is None) for row in deep.rows} == expected
    if damage is wrong:
        (row,) = deep.rows
        assert {(row.one or {})[name] for name in row.fields} == {"12345.67"}
        assert deep.seeming == 1 or noted


@each_view
def test_a_row_in_a_bucket_that_nothing_folds_into_is_found(world: World, view: View[Any, Any]) -> None:
    place, key = place_of_row(world, live(world, view))
    row = bucket_of(world, live(world, view), place).rows[key]
    with ledger_world() as other:
        generation = live(other, view)
        assert verify(other, view).run(generation, deep=True).equal
        stray = key_in(generation, 0)
        bucket_of(other, generation, 0).rows[stray] = dict(row)
        assert verify(other, view).run(generation).equal, "the mark knows nothing of it"
        (found,) = verify(other, view).run(generation, deep=True).rows
        assert (found.key, found.other) == (stray, None)


@each_view
def test_events_after_the_checkpoint_of_a_bucket_are_no_difference(world: World, view: View[Any, Any]) -> None:
    """Marks of one view may stand at different places: each bucket is folded to its own."""
    generation = live(world, view)
    before = world.store.checkpoints(generation)
    rows = {b: {k: dict(r) for k, r in bucket_of(world, generation, b).rows.items()} for b in before}
    indexed = {b: dict(bucket_of(world, generation, b).indexed) for b in before}
    send(world, 11, 40)
    after = world.store.checkpoints(generation)
    moved = next(b for b in before if before[b].checksum != after[b].checksum)
    bucket = bucket_of(world, generation, moved)
    bucket.rows, bucket.checkpoint, bucket.indexed = rows[moved], before[moved], indexed[moved]
    assert verify(world, view).run(generation, deep=True).equal
    bucket.checkpoint = replace(before[moved], position=after[moved].position)
    assert verify(world, view).run(generation).wrong == (moved,), "the twin: the place is part of what is compared"


def test_other_code_can_verify_nothing(world: World) -> None:
    other = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=summarise, version=2)
    with pytest.raises(ConfigurationError, match="can verify only what it could have folded"):
        verify(world, other).run(live(world, summary))


def never(row: Summary | None, event: LedgerEvent) -> Summary | None:
    if isinstance(event, Moved):
        raise ValueError("a slip in this version")
    return summarise(row, event)


def test_a_fold_that_parks_more_is_a_difference_and_says_why(world: World) -> None:
    broken = FoldView(summary.name, events=LedgerEvent, row=Summary, evolve=never)
    result = verify(world, broken).run(live(world, summary))
    assert not result.equal
    assert set(result.newly.values()) == {"ValueError: a slip in this version"}


@each_view
def test_a_sample_of_the_rows_shows_what_a_rebuild_would_change(world: World, view: View[Any, Any]) -> None:
    total = len(rows_of(world, view))
    same = verify(world, view).sample(live(world, view), 0.5)
    assert (same.differing, same.differences, same.newly) == (0, (), {})
    assert 0 < same.rows < total
    whole = verify(world, view).sample(live(world, view), 1.0)
    assert whole.rows == total
    damaged(world, view, wrong, noted=True)
    assert len(verify(world, view).sample(live(world, view), 1.0).differences) == 1


@each_view
def test_the_steps_of_a_row_end_at_the_row(world: World, view: View[Any, Any]) -> None:
    for key, row in world.views[view].items():
        steps = steps_of(world, view, view.keys.encode(key))
        good = [step for step in steps if not step.error]
        assert good[0].before is None
        assert all(one.after == other.before for one, other in pairwise(steps))
        assert steps[-1].after == row
        times = [step.touch.decoded.time for step in steps]
        assert times == sorted(times)


def test_the_steps_stop_at_the_position_that_is_asked_for(world: World) -> None:
    key = next(key for key, row in world.views[summary].items() if row.moves > 1)
    position = world.views[summary].describe().position
    steps = steps_of(world, summary, key)
    cut = steps[-1].touch.record
    before = replace(position, offsets={cut.topic: {**position.offsets[cut.topic], cut.partition: cut.offset}})
    assert [step.touch for step in steps_of(world, summary, key, before)] == [step.touch for step in steps[:-1]]


def test_a_parked_row_is_explained_up_to_the_event_that_parks_it(world: World) -> None:
    parked = world.views[summary].describe().parked
    assert parked
    for key, why in parked.items():
        steps = steps_of(world, summary, key)
        first = next(step for step in steps if step.error)
        assert (first.touch.record.offset, first.error) == (why.offset, why.error)
        assert len([step for step in steps if step.error]) == why.waiting


def test_an_event_that_stops_a_view_stops_its_explanation(world: World) -> None:
    def owner(event: Moved) -> str:
        raise KeyError("owner")

    broken = FoldView(by_owner.name, events=Moved, row=Total, key=owner, evolve=add, indexes=("positive",))
    with pytest.raises(ContractError, match=r"stops at ledgers.events\[\d\]@\d+"):
        steps_of(world, broken, "o%2F1")


def test_wrong_and_stray_index_entries_are_found(world: World) -> None:
    generation = live(world, by_owner)
    buckets = buckets_of(world, by_owner)
    flipped = next(bucket for bucket in buckets if bucket.indexed)
    key, before = next(iter(flipped.indexed.items()))
    flipped.indexed[key] = {"positive": "=0" if before["positive"] == "=1" else "=1"}
    gone = key_in(generation, 0)
    buckets[0].indexed[gone] = {"positive": "=1"}
    assert verify(world, by_owner).run(generation).equal
    rows = {row.key: row for row in verify(world, by_owner).run(generation, deep=True).rows}
    assert rows.keys() == {key, gone}
    assert rows[key].fields == ("#positive",)
    assert [(rows[key].one or {})["#positive"], (rows[key].other or {})["#positive"]] == [
        flipped.indexed[key]["positive"],
        before["positive"],
    ]
    assert (rows[gone].one, rows[gone].other) == ({"#positive": "=1"}, None)


def test_more_than_fits_on_a_page_is_read_to_its_end(world: World) -> None:
    bucket = bucket_of(world, live(world, by_owner), 3)
    rows, entries = [f"row{n:05}" for n in range(1203)], [f"entry{n:05}" for n in range(4501)]
    bucket.rows.update((key, {b"total": b"1.00", b"positive": b"true"}) for key in rows)
    bucket.indexed.update((key, {"positive": "=1"}) for key in entries)
    result = verify(world, by_owner).run(live(world, by_owner), deep=True, most=9999)
    assert {row.key for row in result.rows} == {*rows, *entries}
    few = verify(world, by_owner).run(live(world, by_owner), deep=True)
    assert (len(few.rows), few.seeming, few.exit_code) == (100, 5704, 3)


def test_a_missing_index_entry_is_found(world: World) -> None:
    generation = live(world, by_owner)
    buckets = buckets_of(world, by_owner)
    key, before = next(bucket for bucket in buckets if bucket.indexed).indexed.popitem()
    (row,) = verify(world, by_owner).run(generation, deep=True).rows
    assert (row.key, row.fields) == (key, ("#positive",))
    assert "#positive" not in (row.one or {})
    assert (row.other or {})["#positive"] == before["positive"]


def verify_while_writing(world: World, view: View[Any, Any], seed: int, count: int = 60, **options: Any) -> Verify:
    """A verification during which a projector writes: after it has read the checkpoints, before it compares rows."""
    writes = iter([count])

    def open_log() -> CommittedLog:
        for commands in writes:
            send(world, seed, commands)
        return CommittedLog(world.log.reader())

    return Verify(view, world.store, open_log=open_log, open_store=lambda: world.store, **options)


@each_view
def test_rows_that_change_meanwhile_are_compared_at_their_new_checkpoints(world: World, view: View[Any, Any]) -> None:
    generation, before = live(world, view), rows_of(world, view)
    assert verify_while_writing(world, view, 21).run(generation, deep=True).equal
    assert rows_of(world, view) != before, "something moved"
    buckets = buckets_of(world, view)
    for row in (row for bucket in buckets for row in bucket.rows.values()):
        overpay(row)
    found = verify_while_writing(world, view, 22, 3).run(generation, deep=True, most=9999).rows
    spoilt = {key for bucket in buckets for key, row in bucket.rows.items() if b"12345.67" in row.values()}
    spoilt -= parked(world, view).keys()
    assert {row.key for row in found} == spoilt, "those that no event has touched since"
    assert 0 < len(spoilt) < sum(len(bucket.rows) for bucket in buckets)


@each_view
def test_a_generation_that_is_replaced_meanwhile_is_left_for_the_next(world: World, view: View[Any, Any]) -> None:
    old = live(world, view)
    rebuilds = iter([rebuild(world, view)])

    def open_log() -> CommittedLog:
        for one in rebuilds:
            assert one.run().swapped
        return CommittedLog(world.log.reader())

    verifying = Verify(view, world.store, open_log=open_log, open_store=lambda: world.store)
    result = verifying.run_named("live", deep=True)
    assert (result.equal, result.generation) == (True, live(world, view).id)
    assert result.generation != old.id
    with pytest.raises(ViewNotBuilt, match="is not whole"):
        verifying.run(old, deep=True)
    with pytest.raises(ViewNotBuilt, match=f"no generation '{old.id}'"):
        verifying.run_named(old.id, deep=True)
    del world.store._buckets[view.name, result.generation, 0]
    with pytest.raises(ViewNotBuilt, match="is not whole"):
        verifying.run_named("live")


def test_more_changing_rows_than_can_be_compared_leave_the_result_open(world: World) -> None:
    generation = live(world, by_owner)
    result = verify_while_writing(world, by_owner, 23, suspects=1).run(generation, deep=True)
    assert (result.equal, result.rows, result.exit_code) == (False, (), 4)
    assert result.unsettled
    assert verify_while_writing(world, by_owner, 24).run(generation, deep=True).exit_code == 0


def test_a_throttle_keeps_to_its_share() -> None:
    slept: list[float] = []
    worked, now = 0.0, 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    throttle = Throttle(0.1, worked=lambda: worked, clock=lambda: now, sleep=sleep)
    for _ in range(100):
        worked, now = worked + 0.01, now + 0.01
        throttle.pause()
    assert now == pytest.approx(10 * worked, rel=0.02)
    assert max(slept) <= 1.0
    worked += 3.0
    throttle.rest()
    assert now >= 10 * worked, "nothing is left over"


def test_a_throttle_counts_every_thread_of_the_process() -> None:
    slept: list[float] = []
    throttle, own = Throttle(0.1, sleep=slept.append, clock=lambda: 0.0), time.thread_time()
    other = threading.Thread(target=lambda: sum(range(3_000_000)))
    other.start()
    other.join()
    throttle.pause()
    assert sum(slept) > 10 * (time.thread_time() - own), "the twin: this thread alone did next to nothing"
