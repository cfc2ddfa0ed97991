"""Rows that a stream of the user's own computes: written once, by one process, with the position that they hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from leftfold import App, ConfigurationError, Event, Position, StreamedView, ViewNotBuilt, memory
from leftfold.cli.run.run import parts_of
from leftfold.client import Views
from leftfold.client.results import describe
from leftfold.engine.streaming.computed_rows import token
from leftfold.engine.streaming.external_rows import ExternalRows
from leftfold.engine.views.generations import change
from leftfold.errors import ContractError, Fenced
from leftfold.memory import MemoryViewStore
from leftfold.ports.flush import BucketFlush, Generation
from tests.domains.ledger_world import NOW

TOPIC = "gauges.events"
TOPICS = {TOPIC: 2}


class Read(Event, category="gauges", key="gauge"):
    gauge: str
    level: int


@dataclass(frozen=True)
class Level:
    gauge: str
    level: int


def gauge_of(row: Level) -> str:
    return row.gauge


levels = StreamedView("levels", events=Read, row=Level, key=gauge_of, indexes=("level",))


def at(*offsets: int) -> Position:
    return Position({TOPIC: dict(enumerate(offsets))})


@pytest.fixture
def store() -> MemoryViewStore:
    return MemoryViewStore()


def open_rows(store: MemoryViewStore) -> tuple[ExternalRows[Level, str], Generation]:
    rows = ExternalRows(levels, store, TOPICS)
    return rows, rows.open()


def write(rows: ExternalRows[Level, str], reached: Position, *put: Level) -> None:
    """Writes a batch of rows, and what was put or deleted before."""
    for row in put:
        rows.put(row)
    rows.write(rows.take(), reached)


def rebuilt(store: MemoryViewStore, reached: Position) -> Generation:
    """The live generation, which a rebuild has made."""
    rows = ExternalRows(levels, store, TOPICS, is_rebuild=True)
    generation = rows.open()
    write(rows, reached)
    rows.show()
    return generation


def tear(store: MemoryViewStore, generation: Generation) -> None:
    """Moves one bucket of a generation to another batch than the rest."""
    checkpoint = store.checkpoints(generation)[0]
    torn = replace(checkpoint, token=token("another", 9))
    assert store.flush([BucketFlush(generation, 0, checkpoint.token, torn, (), (), ())])


def test_rows_are_read_like_those_of_any_view_once_they_are_shown(store: MemoryViewStore) -> None:
    rows, generation = open_rows(store)
    write(rows, at(2, 1), Level("a", 1), Level("a", 2), Level("b", 3))
    with pytest.raises(ViewNotBuilt, match="start its stream"):
        Views(store)[levels].get("a")
    rows.show()
    reader = Views(store)[levels]
    assert reader.get("a", after=at(2, 1)) == Level("a", 2)
    assert reader.top("level", 1) == {"b": Level("b", 3)}
    reported = describe(levels, generation, store)
    assert (reported.rows, reported.position) == (2, at(2, 1))


def test_a_row_without_a_key_is_refused_where_it_is_put_and_the_others_stay(store: MemoryViewStore) -> None:
    rows, _ = open_rows(store)
    rows.put(Level("a", 1))
    with pytest.raises(ContractError, match="a row key may not be empty"):
        rows.put(Level("", 2))
    write(rows, at(2, 1))
    rows.show()
    assert dict(Views(store)[levels].items()) == {"a": Level("a", 1)}


def test_a_row_that_is_deleted_leaves_rows_index_count_and_checksum(store: MemoryViewStore) -> None:
    fresh = MemoryViewStore()
    rows, generation = open_rows(store)
    write(rows, at(1, 1), Level("a", 1), Level("b", 1))
    rows.delete("a")
    rows.delete("never there")
    write(rows, at(2, 1))
    rows.show()
    other, same = open_rows(fresh)
    write(other, at(2, 1), Level("b", 1))
    left, right = describe(levels, generation, store), describe(levels, same, fresh)
    assert (left.rows, left.checksum) == (right.rows, right.checksum)
    assert Views(store)[levels].find(level=1) == {"b": Level("b", 1)}
    rows.delete("b")
    write(rows, at(3, 1), Level("b", 7))
    assert dict(Views(store)[levels].items()) == {"b": Level("b", 7)}


def test_a_later_process_takes_over_the_rows_and_the_earlier_one_is_fenced(store: MemoryViewStore) -> None:
    first, generation = open_rows(store)
    write(first, at(1, 0), Level("a", 1))
    first.show()
    second, same = open_rows(store)
    assert same.id == generation.id
    assert (second.is_live, second.position()) == (True, at(1, 0))
    first.put(Level("a", 100))
    with pytest.raises(Fenced, match="another one keeps it"):
        write(first, at(2, 0))
    write(second, at(2, 2), Level("b", 2))
    assert dict(Views(store)[levels].items()) == {"a": Level("a", 1), "b": Level("b", 2)}
    assert second.position() == at(2, 2)


def test_another_version_and_other_partitions_begin_with_nothing(store: MemoryViewStore) -> None:
    rows, generation = open_rows(store)
    write(rows, at(1, 1))
    wider = ExternalRows(levels, store, {TOPIC: 3}).open()
    raised = StreamedView("levels", events=Read, row=Level, key=gauge_of, indexes=("level",), version=2)
    next_rows = ExternalRows(raised, store, TOPICS)
    assert len({generation.id, wider.id, next_rows.open().id}) == 3
    assert not next_rows.position().covers(at(0, 1))
    assert wider.id in store.registry("levels").generations, "a version leaves the generation of another version alone"


def test_rows_of_different_batches_are_seen_until_others_are_whole(store: MemoryViewStore) -> None:
    """A store of several servers, killed between the flushes of two buckets, leaves them behind different batches."""
    rows, torn = open_rows(store)
    write(rows, at(1, 1), Level("a", 1))
    rows.show()
    tear(store, torn)
    after, made = open_rows(store)
    assert made.id != torn.id
    assert Views(store)[levels].get("a", after=at(1, 1)) == Level("a", 1)
    write(after, at(2, 1), Level("a", 2))
    after.show()
    assert Views(store)[levels].get("a") == Level("a", 2)
    assert open_rows(store)[1].id == made.id


def test_rows_that_a_rebuild_has_replaced_are_not_written_again_when_the_new_ones_are_torn(
    store: MemoryViewStore,
) -> None:
    rows, kept = open_rows(store)
    write(rows, at(1, 1), Level("a", 1))
    rows.show()
    tear(store, rebuilt(store, at(1, 1)))
    after, made = open_rows(store)
    after.check_current()
    assert after.position() == at(0, 0), "its rows begin with the first event"
    assert kept.id in store.registry("levels").generations, "reads under way end in it"
    write(after, at(2, 1), Level("a", 2))
    after.show()
    assert (open_rows(store)[1].id, Views(store)[levels].get("a")) == (made.id, Level("a", 2))


def test_rows_that_were_not_complete_when_a_rebuild_went_live_are_removed(store: MemoryViewStore) -> None:
    rows, incomplete = open_rows(store)
    live = rebuilt(store, at(1, 1))
    with pytest.raises(Fenced, match=f"was rebuilt as generation {live.id}"):
        rows.check_current()
    tear(store, live)
    after, made = open_rows(store)
    after.check_current()
    assert store.registry("levels").generations.keys() == {live.id, made.id}
    assert incomplete.id != made.id


def test_rows_that_an_operator_took_out_of_use_stay_so_after_a_restart(store: MemoryViewStore) -> None:
    rows, first = open_rows(store)
    write(rows, at(1, 1))
    rows.show()
    rebuilt(store, at(1, 1))
    change(store, "levels", lambda registry: registry.pointed(first))
    again, taken = open_rows(store)
    again.check_current()
    assert (taken.id, again.is_live) == (first.id, True)


def test_a_discarded_generation_is_in_no_registry(store: MemoryViewStore) -> None:
    rows, generation = open_rows(store)
    rows.discard()
    assert not store.registry("levels").generations
    assert open_rows(store)[1].id != generation.id


def test_a_generation_that_another_rebuild_has_removed_is_not_shown(store: MemoryViewStore) -> None:
    rows, live = open_rows(store)
    write(rows, at(1, 1))
    rows.show()
    first = ExternalRows(levels, store, TOPICS, is_rebuild=True)
    first.open()
    ExternalRows(levels, store, TOPICS, is_rebuild=True).open()
    with pytest.raises(Fenced, match="has removed generation"):
        first.show()
    assert store.registry("levels").live[levels.hash] == live.id


def test_no_worker_and_no_world_computes_a_streamed_view() -> None:
    app = App("gauges", views=[levels])
    assert parts_of(app, 1, [], {}) == []
    with memory(app, now=NOW) as world, pytest.raises(ConfigurationError, match="a stream of its own"):
        world.views[levels].get("a")
