"""Whether a view holds what the log says: verify, explain, retry; each with what it finds when something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from leftfold import FoldView, memory
from leftfold.engine.verify.history import explain
from leftfold.engine.verify.verification import Verify
from leftfold.engine.views.folded_rows import place_of
from leftfold.errors import ConfigurationError, ContractError
from leftfold.memory import World
from leftfold.model.view import View
from leftfold.ports.bulk import CommittedLog
from leftfold.ports.flush import BucketFlush, Generation
from leftfold.testing import fold
from tests.engine.rebuild.test_rebuild_swap import live
from tests.ledger import (
    LedgerEvent,
    Moved,
    Summary,
    Total,
    add,
    app,
    by_owner,
    by_tag,
    histories,
    stranger,
    summarise,
    summary,
)

VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)
named = pytest.mark.parametrize("view", VIEWS, ids=lambda view: str(view.name))


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send_many(list(histories(stranger(5), 120, poison=0.02)))
        yield world


def verify(world: World, view: View[Any, Any]) -> Verify:
    return Verify(view, world.store, open_log=lambda: CommittedLog(world.log.reader()), open_store=lambda: world.store)


def spoil(world: World, view: View[Any, Any], how: Callable[[dict[bytes, bytes]], None]) -> str:
    """Changes a stored row, and the checksum with it, as a bug would; its key."""
    generation, codec = live(world, view), view.rows
    checkpoints = world.store.checkpoints(generation)
    places = (
        (b, k) for b in checkpoints for k in world.store.keys(generation, b, "", 99) if k not in checkpoints[b].parked
    )
    bucket, key = next(places)
    row = world.store._buckets[view.name, generation.id, bucket].rows[key]
    before = codec.digest(key, tuple(row[c] for c in codec.columns))
    how(row)
    after = codec.digest(key, tuple(row[c] for c in codec.columns))
    checkpoint = replace(checkpoints[bucket], checksum=(checkpoints[bucket].checksum + after - before) % (1 << 128))
    assert world.store.flush([BucketFlush(generation, bucket, checkpoint.token, checkpoint, (), ())])
    return key


def overpay(row: dict[bytes, bytes]) -> None:
    row[b"balance" if b"balance" in row else b"total"] = b"12345.67"


@named
def test_what_the_tail_folded_is_equal(world: World, view: View[Any, Any]) -> None:
    result = verify(world, view).run(live(world, view))
    assert (result.equal, result.wrong, result.rows, result.newly) == (True, (), (), {})
    assert result.stored == result.folded
    assert result.position == world.views[view].describe().position
    assert bool(result.parked) == (view is summary), "parked rows are left out of both, and named"


@named
def test_a_wrong_row_is_found_and_shown(world: World, view: View[Any, Any]) -> None:
    key = spoil(world, view, overpay)
    result = verify(world, view).run(live(world, view), deep=True)
    assert not result.equal
    assert len(result.wrong) == 1
    (row,) = result.rows
    assert row.key == key
    assert row.one is not None
    assert row.other is not None
    assert {row.one[name] for name in row.fields} == {"12345.67"}
    shallow = verify(world, view).run(live(world, view))
    assert (shallow.equal, shallow.rows) == (False, ())


@named
def test_a_missing_and_a_stray_row_are_found(world: World, view: View[Any, Any]) -> None:
    generation, codec = live(world, view), view.rows
    checkpoints = world.store.checkpoints(generation)
    bucket = next(b for b in checkpoints if bucket_of(world, generation, b).rows)
    rows = bucket_of(world, generation, bucket).rows
    key = next(key for key in rows if key not in checkpoints[bucket].parked)
    stray = next(name for n in range(9999) if place_of(generation, name := f"stray{n}")[0] == bucket)
    gone = rows[stray] = rows.pop(key)
    lost, found = (codec.digest(k, tuple(gone[c] for c in codec.columns)) for k in (key, stray))
    moved = replace(checkpoints[bucket], checksum=(checkpoints[bucket].checksum - lost + found) % (1 << 128))
    assert world.store.flush([BucketFlush(generation, bucket, moved.token, moved, (), ())])
    told = {
        row.key: (row.one is None, row.other is None) for row in verify(world, view).run(generation, deep=True).rows
    }
    assert told == {key: (True, False), stray: (False, True)}


def bucket_of(world: World, generation: Generation, bucket: int) -> Any:
    return world.store._buckets[generation.view, generation.id, bucket]


@named
def test_what_lies_behind_the_place_of_a_bucket_is_no_difference(world: World, view: View[Any, Any]) -> None:
    """Marks of one view may stand at different places: each bucket is folded to its own."""
    generation = live(world, view)
    before = world.store.checkpoints(generation)
    rows = {b: {k: dict(r) for k, r in bucket_of(world, generation, b).rows.items()} for b in before}
    indexed = {b: dict(bucket_of(world, generation, b).indexed) for b in before}
    world.client.send_many(list(histories(stranger(11), 40)))
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


@named
def test_a_sample_of_the_rows_tells_what_a_rebuild_would_change(world: World, view: View[Any, Any]) -> None:
    total = len(dict(world.views[view].items()))
    same = verify(world, view).sample(live(world, view), 0.5)
    assert (same.differing, same.differences, same.newly) == (0, (), {})
    assert 0 < same.rows < total
    whole = verify(world, view).sample(live(world, view), 1.0)
    assert whole.rows == total
    spoil(world, view, overpay)
    assert len(verify(world, view).sample(live(world, view), 1.0).differences) == 1


@named
def test_the_steps_of_a_row_end_at_the_row(world: World, view: View[Any, Any]) -> None:
    generation = live(world, view)
    position = world.views[view].describe().position
    for key, row in world.views[view].items():
        encoded = view.keys.encode(key)
        steps = list(explain(view, generation, encoded, position, lambda: CommittedLog(world.log.reader())))
        good = [step for step in steps if not step.error]
        assert good[0].before is None
        assert all(one.after == other.before for one, other in pairwise(steps))
        assert steps[-1].after == row
        times = [step.touch.decoded.time for step in steps]
        assert times == sorted(times)


def test_the_steps_stop_at_the_place_that_is_asked_for(world: World) -> None:
    key = next(key for key, row in world.views[summary].items() if row.moves > 1)
    generation, position = live(world, summary), world.views[summary].describe().position
    steps = list(explain(summary, generation, key, position, lambda: CommittedLog(world.log.reader())))
    cut = steps[-1].touch.record
    before = replace(position, offsets={cut.topic: {**position.offsets[cut.topic], cut.partition: cut.offset}})
    again = list(explain(summary, generation, key, before, lambda: CommittedLog(world.log.reader())))
    assert [step.touch for step in again] == [step.touch for step in steps[:-1]]


def test_a_parked_row_is_explained_up_to_the_event_that_parks_it(world: World) -> None:
    generation = live(world, summary)
    parked = {
        key: why
        for checkpoint in world.store.checkpoints(generation).values()
        for key, why in checkpoint.parked.items()
    }
    assert parked
    position = world.views[summary].describe().position
    for key, why in parked.items():
        steps = list(explain(summary, generation, key, position, lambda: CommittedLog(world.log.reader())))
        first = next(step for step in steps if step.error)
        assert (first.touch.record.offset, first.error) == (why.offset, why.error)
        assert len([step for step in steps if step.error]) == why.waiting


def test_an_event_that_stops_a_view_stops_its_explanation(world: World) -> None:
    def owner(event: Moved) -> str:
        raise KeyError("owner")

    broken = FoldView(by_owner.name, events=Moved, row=Total, key=owner, evolve=add)
    position = world.views[by_owner].describe().position
    with pytest.raises(ContractError, match=r"stops at ledgers.events\[\d\]@\d+"):
        list(explain(broken, live(world, by_owner), "o%2F1", position, lambda: CommittedLog(world.log.reader())))


def test_the_rows_are_what_memory_folds(world: World) -> None:
    events = [recorded.event for recorded in world.events("ledgers")]
    assert dict(world.views[by_tag].items()) == fold(by_tag, *events)
