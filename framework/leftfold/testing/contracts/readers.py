"""The contract tests for queries, change streams and notifications of a ViewStore; needs pytest."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from uuid import uuid4

import pytest

from leftfold.model.position import Position
from leftfold.model.row_codec import ordered
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Phase, Registry, RowChange
from leftfold.ports.protocols import ViewStore
from leftfold.ports.queries import (
    Changed,
    Changes,
    Counting,
    Entries,
    GetRow,
    IndexRange,
    InspectedRow,
    Inspection,
    Listed,
    Matching,
    Registered,
    RowResult,
    Rows,
)

__all__ = [
    "COLUMNS", "ReadingContract", "changed", "checkpoint", "deleted", "flush_of", "keys_with", "new_generation", "row",
]  # fmt: skip


COLUMNS = (b"color", b"size")
_numbers = count(1)


def new_generation(buckets: int = 4) -> Generation:
    """A new generation of a view that no other test uses."""
    return Generation(
        view=f"things_{uuid4().hex[:8]}",
        id=f"{next(_numbers)}-ab12",
        hash="0123456789ab",
        stream_keyed=True,
        buckets=buckets,
        topics={"shop.events": buckets},
        created="2017-01-01T00:00:00Z",
    )


def checkpoint(token: str, at: int) -> Checkpoint:
    """A checkpoint at an offset of one partition."""
    return Checkpoint(Position.at("shop.events", 0, at), token=token)


def row(key: str, color: bytes = b"red", *, version: int | None = None) -> RowChange:
    """The change that adds a row."""
    return RowChange(key, (color, b"S"), version, None, _entries(color))


def changed(key: str, before: bytes, after: bytes) -> RowChange:
    """A row whose color changes."""
    return RowChange(key, (after, b"S"), None, _entries(before), _entries(after))


def deleted(key: str, color: bytes | None = b"red") -> RowChange:
    """The deletion of a row; None = there was none."""
    return RowChange(key, None, None, None if color is None else _entries(color), None)


def keys_with(store: ViewStore, generation: Generation, bucket: int, index: str, value: str) -> list[str]:
    """The encoded keys of a bucket's rows whose indexed field has this ordered value, in byte order."""
    matches = store.ask(Matching(generation, (IndexRange(index, value, value),), buckets=(bucket,)))
    return [key for _, key in matches.found[0][bucket]]


def flush_of(
    generation: Generation, bucket: int, expected: str, token: str, *changes: RowChange, at: int = 1
) -> BucketFlush:
    """A flush that moves the checkpoint to an offset and from one token to another."""
    return BucketFlush(generation, bucket, expected, checkpoint(token, at), COLUMNS, ("color", "size"), changes)


def _entries(color: bytes) -> tuple[str, ...]:
    return ordered(color.decode()), ordered("S")


VALUES = ("", "a", "a\0", "a\0\0", "a\0b", "a\0\x7f", "a\x01", "a\x7f", "ab", "b", "é", "\U0010ffff")
SOON = 240.0


class ReadingContract:
    """The part of ViewStoreContract about queries, change streams and notifications."""

    @pytest.fixture
    def store(self) -> Iterator[ViewStore]:
        """The adapter under test."""
        raise NotImplementedError("override the fixture `store`")

    @pytest.fixture
    def whole(self, store: ViewStore) -> Generation:
        """A live generation of four buckets."""
        generation = new_generation()
        assert store.create_marks(generation, {bucket: checkpoint("", 0) for bucket in range(generation.buckets)})
        assert store.change_registry(generation.view, Registry(), Registry().pointed(generation))
        return generation

    def test_every_bound_finds_and_counts_what_lies_within(self, store: ViewStore, whole: Generation) -> None:
        rows = [row(f"k{number}", value.encode()) for number, value in enumerate(VALUES)]
        nameless = row("none")._replace(after=(ordered(None), ordered(None)))
        assert store.flush(
            [flush_of(whole, 1, "", "t", *rows[::2]), flush_of(whole, 3, "", "t", *rows[1::2], nameless)]
        )
        texts = {ordered(value): f"k{number}" for number, value in enumerate(VALUES)}
        ends = [None, *(ordered(value) for value in VALUES)]
        ranges = tuple(
            IndexRange("color", low, high, above, below)
            for low, high, above, below in itertools.product(ends, ends, (False, True), (False, True))
        )
        found, counts = store.ask(Matching(whole, ranges)), store.ask(Counting(whole, ranges))
        for range_, entries, total in zip(ranges, found.found, counts.totals, strict=True):
            expected = {(text, key) for text, key in texts.items() if _within(range_, text)}
            assert {entry for some in entries.values() for entry in some} == expected, range_
            assert all(list(some) == sorted(some) for some in entries.values()), range_
            assert total == len(expected), range_
        assert found.live == counts.live == whole.id

    def test_none_is_found_as_a_value_and_by_no_range(self, store: ViewStore, whole: Generation) -> None:
        nameless = row("none")._replace(after=(ordered(None), ordered("S")))
        assert store.flush([flush_of(whole, 0, "", "t", nameless, row("dash", b"-"))])
        none = ordered(None)
        asked = (IndexRange("color", none, none), IndexRange("color"), IndexRange("size"))
        assert store.ask(Counting(whole, asked)).totals == (1, 1, 2)
        assert store.ask(Matching(whole, asked[:1])).found[0][0] == ((none, "none"),)

    def test_matches_are_cut_in_order_or_backwards(self, store: ViewStore, whole: Generation) -> None:
        rows = [row(f"k{value}", value.encode()) for value in "dbacbe"]
        assert store.flush([flush_of(whole, 2, "", "t", *rows)])
        first = store.ask(Matching(whole, (IndexRange("color"),), limit=2)).found[0]
        last = store.ask(Matching(whole, (IndexRange("color", high=ordered("d")),), limit=2, backwards=True)).found[0]
        assert [key for _, key in first[2]] == ["ka", "kb"]
        assert [key for _, key in last[2]] == ["kd", "kc"]
        assert first[0] == last[3] == ()
        only = store.ask(Matching(whole, (IndexRange("color"),), buckets=(2,))).found[0]
        assert set(only) == {2}

    def test_asyncio_gets_the_same_answers(self, store: ViewStore, whole: Generation) -> None:
        assert store.flush([flush_of(whole, 0, "", "t", row("a"), row("b", b"blue"))])
        buckets = tuple(range(whole.buckets))

        async def same() -> None:
            assert await store.aask(Registered(whole.view)) == store.ask(Registered(whole.view))
            assert await store.aask(Rows(whole, ((0, "a"), (1, "x")), buckets)) == store.ask(
                Rows(whole, ((0, "a"), (1, "x")), buckets)
            )
            assert await store.aask(Listed(whole, 0, "", 9)) == store.ask(Listed(whole, 0, "", 9)) == ["a", "b"]
            matching, counting = Matching(whole, (IndexRange("color"),)), Counting(whole, (IndexRange("color"),))
            assert await store.aask(matching) == store.ask(matching)
            assert await store.aask(counting) == store.ask(counting)
            changes = Changes(whole, dict.fromkeys(buckets, ""), 9, backwards=True)
            assert await store.aask(changes) == store.ask(changes)

        asyncio.run(same())

    def test_get_row_returns_the_row_the_live_generation_and_whether_the_bucket_exists(
        self, store: ViewStore, whole: Generation
    ) -> None:
        assert store.flush([flush_of(whole, 0, "", "t", row("a"))])
        there = RowResult(whole.id, True, store.read(whole, [(0, "a")]).rows[0])
        assert there.fields is not None
        assert store.ask(GetRow(whole, 0, "a")) == asyncio.run(store.aask(GetRow(whole, 0, "a"))) == there
        assert store.ask(GetRow(whole, 0, "b")) == RowResult(whole.id, True, None)
        assert store.ask(GetRow(replace(whole, id="other"), 0, "a")) == RowResult(whole.id, False, None)

    def test_index_entries_are_listed_from_any_entry_on(self, store: ViewStore, whole: Generation) -> None:
        rows = [row(f"k{number}", value.encode()) for number, value in enumerate((*VALUES, "a", "a"))]
        nameless = row("none")._replace(after=(ordered(None), ordered("S")))
        assert store.flush([flush_of(whole, 1, "", "t", nameless, *rows), flush_of(whole, 2, "", "t", row("z"))])
        entries = sorted((change.after[0], change.key) for change in (nameless, *rows) if change.after)
        assert store.ask(Entries(whole, 1, "color", ("", ""), 99)) == entries
        for place, first in enumerate(entries):
            assert store.ask(Entries(whole, 1, "color", first, 2)) == entries[place : place + 2]
        assert store.ask(Entries(whole, 0, "color", ("", ""), 9)) == []

    def test_inspection_returns_all_that_is_stored_of_a_row(self, store: ViewStore, whole: Generation) -> None:
        assert store.flush([flush_of(whole, 0, "", "t", row("a"), row("b", b"blue"))])
        red, blue = ("color", ordered("red")), ("color", ordered("blue"))
        fields = store.read(whole, [(0, "a")]).rows[0]
        there = store.ask(Inspection(whole, 0, "a", (red, blue)))
        assert there == InspectedRow(checkpoint("t", 1), fields, True, frozenset({red}), True)
        assert asyncio.run(store.aask(Inspection(whole, 0, "a", (red, blue)))) == there
        nothing = InspectedRow(checkpoint("t", 1), None, False, frozenset(), True)
        assert store.ask(Inspection(whole, 0, "c", (red, blue))) == nothing
        missing = store.ask(Inspection(replace(whole, id="other"), 0, "a", (red,)))
        assert missing == InspectedRow(None, None, False, frozenset(), False)

    def test_checkpoints_are_read_for_buckets_without_rows(self, store: ViewStore, whole: Generation) -> None:
        snapshot = store.ask(Rows(whole, (), (0, 3)))
        assert (snapshot.live, dict(snapshot.checkpoints), snapshot.rows) == (
            whole.id,
            {0: checkpoint("", 0), 3: checkpoint("", 0)},
            (),
        )

    def test_a_change_stream_begins_at_the_checkpoint(self, store: ViewStore) -> None:
        generation = new_generation(buckets=1)
        assert store.create_marks(generation, {0: checkpoint("", 7)})
        (first,) = store.ask(Changes(generation, {0: ""}, 9, backwards=True)).entries[0]
        assert (first.position, first.keys) == (checkpoint("", 7).position, ())

    def test_a_flush_adds_to_the_streams_of_the_buckets_that_it_changed(
        self, store: ViewStore, whole: Generation
    ) -> None:
        begin = {b: e[0].id for b, e in self._entries(store, whole).items()}
        assert store.flush(
            [flush_of(whole, 0, "", "t1", row("a"), row("%20"), at=3), flush_of(whole, 1, "", "t1", at=3)]
        )
        assert store.flush([flush_of(whole, 0, "t1", "t2", changed("a", b"red", b"blue"), deleted("%20"), at=5)])
        recent = store.ask(Changes(whole, begin, 9))
        changes = [(entry.position, entry.keys) for entry in recent.entries[0]]
        assert recent.entries[0][0].id == begin[0]
        assert changes[1:] == [(checkpoint("", 3).position, ("a", "%20")), (checkpoint("", 5).position, ("a", "%20"))]
        assert [entry.id for entry in recent.entries[1]] == [begin[1]]
        assert recent.positions[0] == checkpoint("", 5).position
        assert recent.positions[1] == checkpoint("", 3).position
        assert recent.live == whole.id
        later = store.ask(Changes(whole, {0: recent.entries[0][1].id}, 9)).entries[0]
        assert later == recent.entries[0][1:]
        assert store.ask(Changes(whole, begin, 2)).entries[0] == recent.entries[0][:2]

    def test_a_flush_that_does_not_land_adds_no_changes(self, store: ViewStore, whole: Generation) -> None:
        before = self._entries(store, whole)
        assert not store.flush([flush_of(whole, 0, "stale", "t1", row("a"))])
        assert self._entries(store, whole) == before

    def test_streams_are_read_backwards_page_by_page(self, store: ViewStore, whole: Generation) -> None:
        for number in range(5):
            before = "" if number == 0 else f"t{number - 1}"
            assert store.flush([flush_of(whole, 0, before, f"t{number}", row(f"r{number}"), at=number)])
        pages, id_ = [], ""
        while page := store.ask(Changes(whole, {0: id_}, 2, backwards=True)).entries[0]:
            pages.append([entry.keys for entry in page])
            id_ = page[-1].id
        assert pages == [[("r4",), ("r3",)], [("r2",), ("r1",)], [("r0",), ()]]

    def test_the_streams_of_a_bulk_load_begin_where_it_was_sealed(self, store: ViewStore) -> None:
        generation = new_generation(buckets=1)
        assert store.create_marks(generation, {0: Checkpoint(Position(), phase=Phase.BULK)})
        seal = getattr(store, "seal", None)
        assert seal is not None, "a store of views can be filled in bulk"
        seal(generation, {0: checkpoint("", 40)})
        (first,) = store.ask(Changes(generation, {0: ""}, 9, backwards=True)).entries[0]
        assert (first.position, first.keys) == (checkpoint("", 40).position, ())

    def test_a_removed_bucket_has_no_position(self, store: ViewStore, whole: Generation) -> None:
        store.unlink(whole)
        recent = store.ask(Changes(whole, {0: "", 1: ""}, 9, backwards=True))
        assert recent.positions == {}
        assert recent.entries == {0: (), 1: ()}

    def test_a_waiter_is_notified_of_the_flush_that_reaches_its_position(
        self, store: ViewStore, whole: Generation
    ) -> None:
        bell = store.listen(whole, checkpoint("", 2).position)
        try:
            assert store.flush([flush_of(whole, 0, "", "t1", at=1)])
            assert waited(bell.wait, 0.2) >= 0.2, "it notified too early"
            timer = threading.Timer(0.05, lambda: store.flush([flush_of(whole, 0, "t1", "t2", at=2)]))
            timer.start()
            assert waited(bell.wait, SOON) < SOON
            timer.join()
        finally:
            bell.close()

    def test_a_notification_before_the_wait_is_not_missed(self, store: ViewStore, whole: Generation) -> None:
        bell = store.listen(whole, None)
        try:
            assert store.flush([flush_of(whole, 0, "", "t1", at=1)])
            assert waited(bell.wait, SOON) < SOON
        finally:
            bell.close()

    def test_a_waiter_is_notified_when_another_generation_goes_live(self, store: ViewStore, whole: Generation) -> None:
        bell = store.listen(whole, checkpoint("", 99).position)
        try:
            now = store.registry(whole.view)
            assert store.change_registry(whole.view, now, now.pointed(replace(whole, id="2-next")))
            assert waited(bell.wait, SOON) < SOON
        finally:
            bell.close()

    def test_asyncio_waiters_are_notified_too(self, store: ViewStore, whole: Generation) -> None:
        async def hear() -> float:
            bells = [await store.alisten(whole, checkpoint("", 2).position) for _ in range(20)]
            try:
                flush = asyncio.to_thread(store.flush, [flush_of(whole, 0, "", "t1", at=2)])
                began = time.monotonic()
                await asyncio.gather(flush, *(bell.wait(SOON) for bell in bells))
                return time.monotonic() - began
            finally:
                for bell in bells:
                    bell.close()

        assert asyncio.run(hear()) < SOON

    def _entries(self, store: ViewStore, generation: Generation) -> dict[int, tuple[Changed, ...]]:
        ids = dict.fromkeys(range(generation.buckets), "")
        return dict(store.ask(Changes(generation, ids, 99, backwards=True)).entries)


def waited(wait: Callable[[float], None], seconds: float) -> float:
    """The seconds that a wait took."""
    began = time.monotonic()
    wait(seconds)
    return time.monotonic() - began


def _within(range_: IndexRange, text: str) -> bool:
    low, high = range_.low, range_.high
    above = low is None or low < text or (low == text and not range_.above_low)
    return above and (high is None or text < high or (text == high and not range_.below_high))
