"""The contract tests for every ViewStore; needs pytest."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from leftfold.model.position import Position
from leftfold.model.row_codec import ordered
from leftfold.ports.flush import Generation, Parked, Phase, Registry, While
from leftfold.ports.protocols import ViewStore
from leftfold.ports.queries import Rows
from leftfold.testing.contracts.readers import (
    COLUMNS,
    ReadingContract,
    changed,
    checkpoint,
    deleted,
    flush_of,
    keys_with,
    new_generation,
    row,
)

__all__ = ["ViewStoreContract"]


class ViewStoreContract(ReadingContract):
    """Contract tests for a ViewStore: subclass as `Test…`, with a fixture `store`; generations are new per test."""

    @pytest.fixture
    def store(self) -> Iterator[ViewStore]:
        """The adapter under test."""
        raise NotImplementedError("override the fixture `store`")

    @pytest.fixture
    def generation(self, store: ViewStore) -> Generation:
        """An empty sealed generation of four buckets, with its checkpoints."""
        generation = new_generation()
        assert store.create_marks(generation, {bucket: checkpoint("", 0) for bucket in range(generation.buckets)})
        return generation

    def test_an_unregistered_view_has_an_empty_registry(self, store: ViewStore) -> None:
        assert store.registry(new_generation().view) == Registry()

    def test_the_registry_changes_only_from_what_it_is(self, store: ViewStore, generation: Generation) -> None:
        view = generation.view
        one = Registry().with_generation(generation)
        assert store.change_registry(view, Registry(), one)
        assert store.registry(view) == one
        assert not store.change_registry(view, Registry(), one.pointed(generation))
        assert store.registry(view) == one
        assert store.change_registry(view, one, one.pointed(generation))
        assert store.registry(view).live_of(generation.hash) == generation.in_phase(Phase.LIVE)

    def test_the_registry_changes_only_while_a_condition_holds(self, store: ViewStore, generation: Generation) -> None:
        one = Registry().with_generation(generation)
        assert not store.change_registry(generation.view, Registry(), one, While(generation, lambda: False))
        assert store.registry(generation.view) == Registry()
        assert store.change_registry(generation.view, Registry(), one, While(generation, lambda: True))
        assert store.registry(generation.view) == one

    def test_the_registry_keeps_which_codes_and_topics_a_generation_is_of_and_when_it_ends(
        self, store: ViewStore, generation: Generation
    ) -> None:
        superseding = replace(
            generation.in_phase(Phase.KEPT, "2017-01-01T00:00:00Z", "2017-01-02T00:00:00.000Z")
            .claimed("a")
            .claimed("b"),
            superseded=("c", "d"),
            cut="shop.events[0] ended at 3",
            ids={"shop.events": "Yz1"},
        )
        registry = Registry().with_generation(generation).with_generation(superseding)
        assert store.change_registry(generation.view, Registry(), registry)
        assert store.registry(generation.view) == registry
        assert store.registry(generation.view).generations[superseding.id].folds == ("a", "b")

    def test_the_registry_keeps_every_field_of_a_generation(self, store: ViewStore, generation: Generation) -> None:
        said: dict[str, Any] = {
            "since": "2017-01-02T00:00:00Z",
            "name": "then",
            "folds": ("ab12",),
            "attempt": "host (process 1, cd34)",
        }
        whole = replace(generation, **said, ends=Position.at("shop.events", 3, 17), phase=Phase.BULK)
        assert store.change_registry(generation.view, Registry(), Registry().with_generation(whole))
        assert store.registry(generation.view).generations[generation.id] == whole

    def test_a_generation_and_its_live_pointer_leave_the_registry(
        self, store: ViewStore, generation: Generation
    ) -> None:
        view, live = generation.view, Registry().pointed(generation)
        assert store.change_registry(view, Registry(), live)
        assert store.change_registry(view, live, live.without(generation.id))
        assert store.registry(view) == Registry()

    def test_views_have_registries_of_their_own(self, store: ViewStore, generation: Generation) -> None:
        assert store.change_registry(generation.view, Registry(), Registry().pointed(generation))
        assert store.registry(new_generation().view) == Registry()

    def test_checkpoints_are_read_as_they_were_written(self, store: ViewStore) -> None:
        generation = new_generation(buckets=2).in_phase(Phase.BULK)
        parked = Parked("shop.events", 1, 7, "ValueError: é\r\n\0", waiting=3)
        whole = replace(
            checkpoint("t", 5),
            checksum=(1 << 128) - 1,
            phase=Phase.BULK,
            rows=12,
            parked={"k%20": parked},
            time="2017-01-01T00:00:00Z",
        )
        assert store.create_marks(generation, {0: whole, 1: checkpoint("", 0)})
        assert store.checkpoints(generation) == {0: whole, 1: checkpoint("", 0)}

    def test_a_checkpoint_that_lost_its_seal_counts_as_missing(self, store: ViewStore) -> None:
        generation = new_generation(buckets=2).in_phase(Phase.BULK)
        assert store.create_marks(generation, {0: replace(checkpoint("", 0), phase=Phase.BULK), 1: checkpoint("", 0)})
        assert set(store.checkpoints(generation)) == {0, 1}
        for phase in (Phase.SEALED, Phase.LIVE, Phase.KEPT):
            assert store.checkpoints(generation.in_phase(phase)) == {1: checkpoint("", 0)}
            assert store.read(generation.in_phase(phase), [(0, "a"), (1, "b")]).checkpoints == {1: checkpoint("", 0)}

    def test_checkpoints_are_created_once(self, store: ViewStore) -> None:
        generation = new_generation(buckets=2)
        assert store.checkpoints(generation) == {}
        assert store.create_marks(generation, {1: checkpoint("first", 1)})
        assert not store.create_marks(generation, {0: checkpoint("second", 0), 1: checkpoint("second", 0)})
        assert store.checkpoints(generation) == {1: checkpoint("first", 1)}

    def test_a_flush_is_visible_whole(self, store: ViewStore, generation: Generation) -> None:
        one = flush_of(generation, 0, "", "t1", row("a", b"1"), row("b", b"2", version=3))
        two = flush_of(generation, 3, "", "t2", row("c", b"3"))
        assert store.flush([one, two])
        snapshot = store.read(generation, [(0, "a"), (3, "c"), (0, "b"), (0, "c")])
        assert snapshot.checkpoints == {0: checkpoint("t1", 1), 3: checkpoint("t2", 1)}
        assert snapshot.rows == (
            {b"color": b"1", b"size": b"S"},
            {b"color": b"3", b"size": b"S"},
            {b"color": b"2", b"size": b"S", b"@version": b"3"},
            None,
        )

    def test_every_checkpoint_moves_with_or_without_changed_rows(
        self, store: ViewStore, generation: Generation
    ) -> None:
        assert store.flush([flush_of(generation, bucket, "", f"t{bucket}", at=9) for bucket in range(4)])
        assert store.checkpoints(generation) == {bucket: checkpoint(f"t{bucket}", 9) for bucket in range(4)}

    def test_flushes_follow_one_another(self, store: ViewStore, generation: Generation) -> None:
        for number in range(5):
            before, after = ("" if number == 0 else f"t{number - 1}"), f"t{number}"
            assert store.flush([flush_of(generation, b, before, after, row(f"r{number}")) for b in (0, 1)])
        assert store.keys(generation, 1, "", 10) == ["r0", "r1", "r2", "r3", "r4"]

    def test_a_flush_with_a_stale_token_writes_nothing(self, store: ViewStore, generation: Generation) -> None:
        assert store.flush([flush_of(generation, 0, "", "mine", row("a"))])
        late = [
            flush_of(generation, 1, "", "late", row("b")),
            flush_of(generation, 0, "", "late", row("c"), deleted("a")),
        ]
        assert not store.flush(late)
        checkpoints = store.checkpoints(generation)
        assert [checkpoints[0].token, checkpoints[1].token] == ["mine", ""]
        assert store.keys(generation, 0, "", 9) == ["a"]
        assert store.keys(generation, 1, "", 9) == []

    def test_a_writer_continues_after_reading_the_checkpoints_again(
        self, store: ViewStore, generation: Generation
    ) -> None:
        assert store.flush([flush_of(generation, 0, "", "t1")])
        assert not store.flush([flush_of(generation, 0, "?", "t2", row("a"))])
        expected = store.checkpoints(generation)[0].token
        assert store.flush([flush_of(generation, 0, expected, "t2", row("a"))])

    def test_a_flush_into_a_bucket_without_a_checkpoint_writes_nothing(self, store: ViewStore) -> None:
        generation = new_generation(buckets=2)
        assert store.create_marks(generation, {0: checkpoint("", 0)})
        assert not store.flush([flush_of(generation, 0, "", "t", row("a")), flush_of(generation, 1, "", "t", row("b"))])
        assert store.checkpoints(generation) == {0: checkpoint("", 0)}
        assert store.read(generation, [(0, "a"), (1, "b")]).rows == (None, None)

    def test_a_flush_lands_when_awaited_or_when_the_next_one_begins(
        self, store: ViewStore, generation: Generation
    ) -> None:
        first = store.begin_flush([flush_of(generation, 0, "", "t1", row("a"))])
        stale = store.begin_flush([flush_of(generation, 0, "", "t2", row("b"))])
        third = store.begin_flush([flush_of(generation, 0, "t1", "t3", row("c"))])
        assert (third.landed(), stale.landed(), first.landed()) == (True, False, True)
        assert store.keys(generation, 0, "", 9) == ["a", "c"]

    def test_several_generations_are_read_at_once(self, store: ViewStore, generation: Generation) -> None:
        other = new_generation(buckets=1)
        assert store.create_marks(other, {0: checkpoint("", 0)})
        assert store.flush([flush_of(generation, 2, "", "t1", row("a", b"1"))])
        assert store.flush([flush_of(other, 0, "", "u1", row("a", b"2"))])
        one, two = store.read_all([(generation, [(2, "a"), (1, "a")]), (other, [(0, "a")])])
        assert (one, two) == (store.read(generation, [(2, "a"), (1, "a")]), store.read(other, [(0, "a")]))
        assert store.read_all([]) == []

    def test_members_of_a_group_see_each_other_until_they_leave(self, store: ViewStore) -> None:
        one, other = f"tails:{uuid4().hex}", f"tails:{uuid4().hex}"
        assert store.heartbeat([one, other], "b", 60.0) == {one: ("b",), other: ("b",)}
        assert store.heartbeat([one], "a", 60.0) == {one: ("a", "b")}
        assert store.heartbeat([one], "b", 0.0) == {one: ("a",)}
        assert store.heartbeat([other], "c", 60.0) == {other: ("b", "c")}

    def test_nothing_to_flush_is_done(self, store: ViewStore) -> None:
        assert store.flush([])

    def test_rows_are_written_over_and_deleted(self, store: ViewStore, generation: Generation) -> None:
        assert store.flush([flush_of(generation, 0, "", "t1", row("a", b"1"), row("b", b"1"))])
        assert store.flush([flush_of(generation, 0, "t1", "t2", changed("a", b"1", b"2"), deleted("b", b"1"))])
        rows = store.read(generation, [(0, "a"), (0, "b")]).rows
        assert rows == ({b"color": b"2", b"size": b"S"}, None)
        assert store.keys(generation, 0, "", 9) == ["a"]

    def test_deleting_a_row_that_is_not_there_changes_nothing(self, store: ViewStore, generation: Generation) -> None:
        assert store.flush([flush_of(generation, 0, "", "t1", deleted("a", None))])
        assert store.keys(generation, 0, "", 9) == []

    def test_an_index_finds_rows_by_value_and_follows_them(self, store: ViewStore, generation: Generation) -> None:
        def found(value: bytes) -> list[str]:
            return keys_with(store, generation, 0, "color", ordered(value.decode()))

        assert store.flush([flush_of(generation, 0, "", "t1", row("b", b"red"), row("a", b"red"), row("c", b"redder"))])
        assert (found(b"red"), found(b"redder"), found(b"re")) == (["a", "b"], ["c"], [])
        assert keys_with(store, generation, 0, "size", "=S") == ["a", "b", "c"]
        assert keys_with(store, generation, 1, "color", "=red") == []
        moves = [changed("a", b"red", b"blue"), deleted("b", b"red"), changed("c", b"redder", b"redder")]
        assert store.flush([flush_of(generation, 0, "t1", "t2", *moves)])
        assert (found(b"red"), found(b"blue"), found(b"redder")) == ([], ["a"], ["c"])

    @pytest.mark.parametrize("value", ["", "a", "a\0", "a\0b", "\r\n", "é", "\U0010ffff"])
    def test_an_index_tells_strange_values_apart(self, store: ViewStore, generation: Generation, value: str) -> None:
        others = [row("x", b""), row("y", b"a\0b\0c"), row("z", b"a\1")]
        assert store.flush([flush_of(generation, 0, "", "t1", row("k", value.encode()), *others)])
        expected = ["k", "x"] if not value else ["k"]
        assert keys_with(store, generation, 0, "color", ordered(value)) == expected

    def test_keys_page_in_byte_order(self, store: ViewStore, generation: Generation) -> None:
        names = ["~", "a", "B", "1", "%C3%A9", "a/b", "a.b", "aa", "-"]
        assert store.flush([flush_of(generation, 2, "", "t1", *map(row, names))])
        pages, after = [], ""
        while page := store.keys(generation, 2, after, 4):
            pages.append(page)
            after = page[-1]
        assert [len(page) for page in pages] == [4, 4, 1]
        assert [key for page in pages for key in page] == sorted(names)
        assert store.keys(generation, 2, "a/", 1) == ["a/b"]

    @pytest.mark.parametrize(
        "value", [b"", b"\r\n", b"\0", b"$5\r\nhello\r\n", b"%d %b %%", bytes(range(256)), b"x" * 300_000]
    )
    def test_a_row_holds_any_bytes(self, store: ViewStore, generation: Generation, value: bytes) -> None:
        key = "%7Bb%7D%0D%0A/%25/~"
        change = row(key)._replace(fields=(value, value), before=None, after=("=", "="))
        assert store.flush([flush_of(generation, 0, "", "t1", change)])
        assert store.read(generation, [(0, key)]).rows == ({b"color": value, b"size": value},)
        assert store.keys(generation, 0, "", 9) == [key]

    def test_ten_thousand_rows_in_one_flush(self, store: ViewStore, generation: Generation) -> None:
        names = [f"r{number:05d}" for number in range(10_000)]
        flushes = [
            flush_of(generation, bucket, "", "t1", *(row(name, name.encode()) for name in names[bucket::4]))
            for bucket in range(4)
        ]
        assert store.flush(flushes)
        assert [len(store.keys(generation, bucket, "", 9999)) for bucket in range(4)] == [2500] * 4
        rows = store.read(generation, [(number % 4, name) for number, name in enumerate(names)]).rows
        assert [fields[b"color"] for fields in rows if fields is not None] == [name.encode() for name in names]

    def test_a_read_names_the_live_generation_of_its_hash(self, store: ViewStore, generation: Generation) -> None:
        assert store.read(generation, []).live == ""
        other = replace(generation, id="other", hash="another")
        live = Registry().pointed(generation).pointed(other)
        assert store.change_registry(generation.view, Registry(), live)
        assert store.read(generation, [(0, "a")]).live == generation.id
        assert store.read(other, []).live == other.id

    def test_a_read_returns_the_checkpoints_of_its_buckets(self, store: ViewStore, generation: Generation) -> None:
        snapshot = store.read(generation, [(1, "a"), (3, "b"), (1, "c")])
        assert snapshot.checkpoints == {1: checkpoint("", 0), 3: checkpoint("", 0)}
        assert snapshot.rows == (None, None, None)

    def test_asyncio_reads_the_same(self, store: ViewStore, generation: Generation) -> None:
        assert store.flush([flush_of(generation, 0, "", "t1", row("a"))])
        keys = [(0, "a"), (1, "b")]
        assert asyncio.run(store.aask(Rows(generation, tuple(keys)))) == store.read(generation, keys)
        assert asyncio.run(store.aask(Rows(generation, tuple(keys)))) == store.read(generation, keys)

    def test_an_unlinked_generation_is_removed_and_fences_its_writers(
        self, store: ViewStore, generation: Generation
    ) -> None:
        twin = replace(generation, id=generation.id + "0")
        assert store.create_marks(twin, {0: checkpoint("", 0)})
        for one in (generation, twin):
            assert store.flush([flush_of(one, 0, "", "t1", *(row(f"r{n}") for n in range(1200)))])
        store.unlink(generation)
        assert store.checkpoints(generation) == {}
        assert store.keys(generation, 0, "", 9) == []
        assert keys_with(store, generation, 0, "size", "=S") == []
        assert store.read(generation, [(0, "r1")]).rows == (None,)
        assert not store.flush([flush_of(generation, 0, "t1", "t2", row("late"))])
        assert len(store.keys(twin, 0, "", 9999)) == 1200
        assert store.read(twin, [(0, "r1")]).rows == (dict(zip(COLUMNS, (b"red", b"S"), strict=True)),)
        store.unlink(generation)
