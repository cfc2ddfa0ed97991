"""The bulk folds against the ProjectionWriter, on logs with broken records of every kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leftfold import Event, FoldView, Json, SpreadView, View
from leftfold.engine.processing.stream_state import SETTLED
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions, rebuild_together
from leftfold.engine.views.decoding import EventDecoder
from leftfold.engine.views.generations import open_generation
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.errors import ContractError
from leftfold.memory import MemoryLog, MemoryViewStore
from leftfold.ports.flush import Checkpoint, Generation, Phase
from leftfold.testing.contracts.readers import keys_with
from tests.engine.committed_log import CommittedLog

TOPIC, PARTITIONS = "counts.events", 2
NAMES = ("a", "b", "c/d", "é", "\0", "b'\\xff'")


class _Count(Event, category="counts", key="name"):
    name: str


def _by_amount(old: Json) -> Json:
    return {**old, "by": old["amount"]}


class Counted(_Count, version=2, upcasts={1: _by_amount}):
    by: int


class Forgotten(_Count):
    pass


@dataclass(frozen=True)
class Row:
    total: int
    label: str | None = None


def tally(row: Row | None, event: Counted | Forgotten) -> Row | None:
    match event:
        case Forgotten():
            return None
        case Counted(by=13):
            raise ValueError("thirteen")
        case Counted(by=14):
            return Row(0, 14)  # type: ignore[arg-type]  # a row that cannot be stored, until another event repairs it
        case Counted(by=by):
            return Row((row.total if row else 0) + by, "x" * by if by > 0 else None)


def halves(event: Counted) -> Iterable[tuple[str, int]]:
    if event.by == 12:
        raise ValueError("twelve has too many halves")
    return [("left", event.by), (event.name, event.by // 2), ("left", 1)]


def add(row: Row | None, item: int) -> Row | None:
    """A sum that goes when it is 0 and cannot be stored, for its label, when it is 3, 10, 17 …"""
    if item == 13:
        raise ValueError("thirteen")
    total = (row.total if row else 0) + item
    return Row(total, 14 if total % 7 == 3 else None) if total else None  # type: ignore[arg-type]  # the same


def total(row: Row | None, event: Counted) -> Row | None:
    return add(row, event.by)


def half(event: Counted) -> int:
    if event.by == 12:
        raise ValueError("twelve has too many halves")
    return event.by // 2


by_name = FoldView("by_name", events=Counted | Forgotten, row=Row, evolve=tally, indexes=("total",))
only_counted = FoldView("only_counted", events=Counted, row=Row, evolve=total)
by_half = FoldView("by_half", events=Counted, row=Row, key=half, evolve=total, indexes=("total",))
spread = SpreadView("spread", events=Counted, row=Row, each=halves, evolve=add)


def usual(type_: bytes, sequence: bytes = b"1", time: bytes = b"2026-01-01T00:00:00Z") -> list[tuple[str, bytes]]:
    """Headers as a processor writes them."""
    return [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"i"),
        ("ce_source", b"/s"),
        ("ce_type", type_),
        ("ce_subject", b"s"),
        ("ce_time", time),
        ("ce_sequence", sequence),
        ("ce_decision", b"1/1"),
    ]


good_types = st.sampled_from([b"counts.Counted.v2", b"counts.Forgotten.v1", b"counts.Counted.v1"])
odd_types = st.sampled_from(
    [
        b"counts.Counted.v9",
        b"counts.Other.v1",
        b"nonsense",
        b"",
        b"counts.Counted.vx",
        b"\xff.v1",
        dict(SETTLED)["ce_type"],
    ]
)
good_times = st.integers(0, 59).map(lambda second: b"2026-01-01T00:00:%02dZ" % second)
values = st.builds(
    lambda name, by: f'{{"name":"{name if name.isalnum() else "n"}","by":{by},"amount":{by}}}'.encode(),
    st.sampled_from(NAMES),
    st.integers(-3, 9) | st.sampled_from([12, 13, 14]),
)
names = st.sampled_from(NAMES).map(str.encode)
good = st.tuples(names, values, st.builds(usual, good_types, st.integers(1, 99).map(lambda n: b"%d" % n), good_times))
odd_keys = st.sampled_from([None, b"", b"\xff", b"a"])
odd_values = st.sampled_from([None, b"", b"{", b'{"by":"many"}', b'{"name":"a","by":1}'])
odd_headers: st.SearchStrategy[Any] = st.one_of(
    st.just([]),
    st.builds(usual, good_types | odd_types, st.sampled_from([b"x", b"", b" 7 ", b"-1"]), good_times),
    st.builds(usual, good_types | odd_types, st.just(b"3"), st.sampled_from([b"\xff", "é".encode(), b""])),
    st.builds(usual, good_types | odd_types).flatmap(st.permutations),
    st.builds(usual, good_types).map(lambda headers: [*headers[:4], headers[5], headers[4], *headers[6:]]),
    st.builds(usual, good_types | odd_types).map(lambda headers: headers[:4]),
    st.builds(usual, good_types | odd_types).map(lambda headers: [(name, None) for name, _ in headers]),
)
odd = st.one_of(
    st.tuples(names, values, odd_headers),
    st.tuples(odd_keys, values, st.builds(usual, good_types | odd_types)),
    st.tuples(names, odd_values, st.builds(usual, good_types | odd_types)),
)


def logs(records: st.SearchStrategy[Any], most: int) -> st.SearchStrategy[Any]:
    """Logs of one partition, where all engines see one order, and of two."""
    return st.integers(0, PARTITIONS - 1).flatmap(
        lambda last: st.lists(st.tuples(st.integers(0, last), records), max_size=most)
    )


def logged(records: Iterable[tuple[int, tuple[Any, Any, Any]]]) -> MemoryLog:
    log = MemoryLog()
    log.create(TOPIC, PARTITIONS)
    for partition, (key, value, headers) in records:
        log.append(TOPIC, partition, key, value, headers)
    return log


def followed(view: View[Any, Any], log: MemoryLog) -> tuple[ProjectionWriter, MemoryViewStore]:
    """The view as one batch of a projector folds it."""
    store, reader = MemoryViewStore(), log.reader()
    generation = open_generation(store, view, {TOPIC: PARTITIONS}, Phase.SEALED)
    writer, decoder = ProjectionWriter(view, generation, store), EventDecoder([view])
    reader.seek(reader.ends([TOPIC]).__class__({TOPIC: dict.fromkeys(range(PARTITIONS), 0)}))
    assert writer.fold([decoder.decode(record) for record in reader.poll(10_000, 0.0)], reader.position())
    return writer, store


def rebuild_of(view: View[Any, Any], log: MemoryLog, store: MemoryViewStore) -> Rebuild:
    return Rebuild(
        view,
        store,
        open_log=lambda: CommittedLog(log.reader()),
        open_reader=log.reader,
        open_sink=lambda: store,
        options=RebuildOptions(patience=0.0),
    )


def rebuilt(view: View[Any, Any], log: MemoryLog) -> tuple[Generation, MemoryViewStore]:
    store = MemoryViewStore()
    rebuild_of(view, log, store).run()
    generation = store.registry(view.name).live_of(view.hash)
    assert generation is not None
    return generation, store


def contents(generation: Generation, store: MemoryViewStore) -> dict[int, Any]:
    """What readers see of each bucket: everything but the checkpoint's token and phase."""
    found = {}
    for bucket, checkpoint in store.checkpoints(generation).items():
        keys = store.keys(generation, bucket, "", 10_000)
        rows = store.read(generation, [(bucket, key) for key in keys]).rows
        indexed = {value: keys_with(store, generation, bucket, "total", value) for value in _values(store, generation)}
        found[bucket] = (dict(zip(keys, rows, strict=True)), indexed, public_part(checkpoint))
    return found


def public_part(checkpoint: Checkpoint) -> Checkpoint:
    return replace(checkpoint, token="", phase=Phase.SEALED, parked=dict(checkpoint.parked))


def _values(store: MemoryViewStore, generation: Generation) -> set[str]:
    held = (b for k, b in store._buckets.items() if k[:2] == (generation.view, generation.id))
    return {value for b in held for entries in b.indexed.values() for value in entries.values()}


@settings(max_examples=80, deadline=None)
@given(records=logs(good | odd, 40))
@pytest.mark.parametrize("view", [by_name, only_counted], ids=lambda view: view.name)
def test_streams_fold_and_park_alike(view: Any, records: Any) -> None:
    log = logged(records)
    writer, store = followed(view, log)
    assert contents(*rebuilt(view, log)) == contents(writer.generation, store)


@settings(max_examples=60, deadline=None)
@given(records=logs(good | odd, 40))
def test_views_that_are_folded_in_one_pass_fold_and_park_alike(records: Any) -> None:
    log, store = logged(records), MemoryViewStore()
    views = (by_name, only_counted)
    rebuilds = [rebuild_of(view, log, store) for view in views]
    rebuild_together(rebuilds, rebuilds[0].plan())
    for view in views:
        generation = store.registry(view.name).live_of(view.hash)
        assert generation is not None
        writer, followed_store = followed(view, log)
        assert contents(generation, store) == contents(writer.generation, followed_store)


@settings(max_examples=60, deadline=None)
@given(records=logs(good, 30) | logs(good | odd, 6))
@pytest.mark.parametrize("view", [by_half, spread], ids=lambda view: view.name)
def test_other_views_fold_alike_or_stop_at_the_same_kind_of_event(view: Any, records: Any) -> None:
    log = logged(records)
    writer, store = followed(view, log)
    if writer.stopped:
        with pytest.raises(ContractError, match=f"view {view.name} stops at counts.events"):
            rebuilt(view, log)
    else:
        mine, theirs = contents(*rebuilt(view, log)), contents(writer.generation, store)
        parked = {key for _, _, checkpoint in theirs.values() for key in checkpoint.parked}
        if not parked or not any(partition for partition, _ in records):
            assert mine == theirs
        assert {key for _, _, checkpoint in mine.values() for key in checkpoint.parked} == parked
        assert [checkpoint.checksum for _, _, checkpoint in mine.values()] == [
            checkpoint.checksum for _, _, checkpoint in theirs.values()
        ]
