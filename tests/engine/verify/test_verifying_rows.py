"""A deep verification compares rows, key lists and indexes, whatever the checkpoints say, while projectors go on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import memory
from leftfold.engine.verify.verification import Verify
from leftfold.engine.views.folded_rows import place_of
from leftfold.errors import ViewNotBuilt
from leftfold.memory import World
from leftfold.model.view import View
from leftfold.ports.bulk import CommittedLog
from tests.engine.rebuild.test_rebuild_swap import live, rebuild
from tests.engine.verify.test_verifying import bucket_of, named, overpay, verify
from tests.ledger import app, by_owner, histories, stranger


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send_many(list(histories(stranger(5), 120, poison=0.02)))
        yield world


def damaged(world: World, view: View[Any, Any]) -> tuple[str, dict[bytes, bytes]]:
    """A row, changed beside its checkpoint, as somebody with a Redis client would."""
    generation = live(world, view)
    checkpoints = world.store.checkpoints(generation)
    rows = ((b, k, r) for b in checkpoints for k, r in bucket_of(world, generation, b).rows.items())
    key, row = next((k, r) for b, k, r in rows if k not in checkpoints[b].parked)
    overpay(row)
    return key, row


@named
def test_a_row_changed_beside_its_mark_is_found_by_comparing_rows_only(world: World, view: View[Any, Any]) -> None:
    key, _ = damaged(world, view)
    generation = live(world, view)
    shallow = verify(world, view).run(generation)
    assert (shallow.equal, shallow.wrong, shallow.deep) == (True, (), False), "the twin: no bucket looks wrong"
    deep = verify(world, view).run(generation, deep=True)
    assert (deep.equal, deep.exit_code, deep.wrong) == (False, 3, ())
    assert [row.key for row in deep.rows] == [key]
    assert (deep.seeming, deep.unsettled) == (1, ())


@named
def test_a_row_deleted_beside_its_mark_is_found(world: World, view: View[Any, Any]) -> None:
    key, _ = damaged(world, view)
    generation = live(world, view)
    for number in range(generation.buckets):
        bucket_of(world, generation, number).rows.pop(key, None)
    (row,) = verify(world, view).run(generation, deep=True).rows
    assert (row.key, row.one, row.other is None) == (key, None, False)


@named
def test_a_row_in_a_bucket_that_nothing_folds_into_is_found(world: World, view: View[Any, Any]) -> None:
    _, row = damaged(world, view)
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as other:
        generation = live(other, view)
        bucket = other.store.bucket(generation, 0)
        assert bucket is not None
        assert verify(other, view).run(generation, deep=True).equal
        keys = (f"stray{n}" for n in range(9999))
        key = next(key for key in keys if place_of(generation, key)[0] == 0)
        bucket.rows[key] = dict(row)
        assert verify(other, view).run(generation).equal, "the mark knows nothing of it"
        (found,) = verify(other, view).run(generation, deep=True).rows
        assert (found.key, found.other) == (key, None)


def test_index_entries_that_no_row_has_and_those_that_lack_are_found(world: World) -> None:
    generation = live(world, by_owner)
    buckets = [bucket_of(world, generation, number) for number in range(generation.buckets)]
    flipped = next(bucket for bucket in buckets if bucket.indexed)
    key, before = next(iter(flipped.indexed.items()))
    flipped.indexed[key] = {"positive": "=0" if before["positive"] == "=1" else "=1"}
    gone = next(name for n in range(9999) if place_of(generation, name := f"gone{n}")[0] == 0)
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


def test_an_entry_that_lacks_is_found(world: World) -> None:
    generation = live(world, by_owner)
    buckets = [bucket_of(world, generation, number) for number in range(generation.buckets)]
    key, before = next(bucket for bucket in buckets if bucket.indexed).indexed.popitem()
    (row,) = verify(world, by_owner).run(generation, deep=True).rows
    assert (row.key, row.fields) == (key, ("#positive",))
    assert "#positive" not in (row.one or {})
    assert (row.other or {})["#positive"] == before["positive"]


def busy(world: World, view: View[Any, Any], seed: int, count: int = 60, **options: Any) -> Verify:
    """A verification during which a projector writes: after it has read the checkpoints, before it compares rows."""
    writes = iter([histories(stranger(seed), count)])

    def open_log() -> CommittedLog:
        for commands in writes:
            world.client.send_many(list(commands))
        return CommittedLog(world.log.reader())

    return Verify(view, world.store, open_log=open_log, open_store=lambda: world.store, **options)


@named
def test_rows_that_move_on_meanwhile_are_compared_where_they_are_then(world: World, view: View[Any, Any]) -> None:
    generation, before = live(world, view), dict(world.views[view].items())
    assert busy(world, view, 21).run(generation, deep=True).equal
    assert dict(world.views[view].items()) != before, "something moved"
    parked = {key for checkpoint in world.store.checkpoints(generation).values() for key in checkpoint.parked}
    buckets = [bucket_of(world, generation, number) for number in range(generation.buckets)]
    for row in (row for bucket in buckets for row in bucket.rows.values()):
        overpay(row)
    found = busy(world, view, 22, 3).run(generation, deep=True, most=9999).rows
    spoilt = {key for bucket in buckets for key, row in bucket.rows.items() if b"12345.67" in row.values()} - parked
    assert {row.key for row in found} == spoilt, "those that no event has touched since"
    assert 0 < len(spoilt) < sum(len(bucket.rows) for bucket in buckets)


@named
def test_a_generation_that_is_replaced_and_removed_meanwhile_is_left_for_the_next(
    world: World, view: View[Any, Any]
) -> None:
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


def test_more_moving_rows_than_can_be_looked_at_are_no_proof_of_anything(world: World) -> None:
    generation = live(world, by_owner)
    result = busy(world, by_owner, 23, suspects=1).run(generation, deep=True)
    assert (result.equal, result.rows, result.exit_code) == (False, (), 4)
    assert result.unsettled
    assert busy(world, by_owner, 24).run(generation, deep=True).exit_code == 0
