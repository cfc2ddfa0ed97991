"""Readers beside writers: threads, event loops, pages and the registry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from leftfold.errors import ContractError
from leftfold.ports.flush import BucketFlush, Generation, Phase, Registry
from leftfold.ports.queries import Changes, Counting, GetRow, IndexRange, Matching, Query
from leftfold.redis import RedisViewStore
from leftfold.redis.keys import BucketKeys
from leftfold.redis.reads import GetRowQuery, SnapshotQuery, compile_query
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from tests.redis.server import RedisServer
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture
def generation(store: RedisViewStore) -> Generation:
    """An empty generation of one bucket."""
    generation = new_generation(buckets=1)
    assert store.create_marks(generation, {0: checkpoint("", 0)})
    return generation


def numbered(generation: Generation, number: int) -> BucketFlush:
    """The flush that takes one row and the checkpoint to a number."""
    expected = "" if number == 1 else f"t{number - 1}"
    change = row("a")._replace(fields=(b"%d" % number, b"S"))
    added = row(f"r{number:05d}")
    return flush_of(generation, 0, expected, f"t{number}", change, added, at=number)


@contextmanager
def a_busy_writer(store: RedisViewStore, generation: Generation) -> Iterator[None]:
    """Flushes on and on in another thread."""
    end = threading.Event()

    def write() -> None:
        number = 0
        while not end.is_set():
            number += 1
            assert store.flush([numbered(generation, number)])

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield
        finally:
            end.set()
            writing.result()


def test_no_row_is_older_than_its_mark(store: RedisViewStore, generation: Generation) -> None:
    """So many keys are asked for that the server serves writers between the parts of a read."""
    keys = [(0, "a"), *((0, f"none{number}") for number in range(2000))]
    with a_busy_writer(store, generation):
        seen: set[int] = set()
        while len(seen) < 50:
            snapshot = store.read(generation, keys)
            at = snapshot.checkpoints[0].position.next_offset("shop.events", 0)
            fields = snapshot.rows[0]
            assert int(fields[b"color"] if fields else 0) >= at
            seen.add(at)


def test_rows_read_while_their_generation_is_removed_are_not_taken_for_missing(
    store: RedisViewStore, generation: Generation
) -> None:
    """In a cluster the live pointer is on another node and may be old; the second look at the checkpoint shows it."""
    assert store.flush([numbered(generation, 1)])
    question = SnapshotQuery(generation, [(0, "a")])
    pointer_and_marks, rest = question.commands[:2], question.commands[2:]
    replies = [store._client.execute_command(*command) for command in pointer_and_marks]
    store.unlink(generation)
    replies += [store._client.execute_command(*command) for command in rest]
    assert question.answer(replies).rows == (None,)
    assert question.answer(replies).checkpoints == {}
    twin = question.answer([*replies[:-1], 1])
    assert (twin.rows, twin.checkpoints) == ((None,), {0: checkpoint("t1", 1)}), (
        "without it the row would be told as absent"
    )


def test_a_glance_at_a_generation_that_is_removed_meanwhile_does_not_call_its_bucket_whole(
    store: RedisViewStore, generation: Generation
) -> None:
    assert store.flush([numbered(generation, 1)])
    question = GetRowQuery(GetRow(generation, 0, "a"))
    pointer, row_, mark_ = question.commands
    assert question.answer([store._client.execute_command(*command) for command in question.commands]).whole
    live, early = (store._client.execute_command(*command) for command in (pointer, mark_))
    store.unlink(generation)
    fields, late = (store._client.execute_command(*command) for command in (row_, mark_))
    assert question.answer([live, fields, late])[1:] == (False, None)
    assert question.answer([live, fields, early])[1:] == (True, None), "a look before the row would tell it as absent"


@pytest.mark.parametrize("asked", [Matching, Counting])
def test_what_is_found_in_a_generation_that_is_removed_meanwhile_is_not_called_live_in_a_cluster(
    store: RedisViewStore, generation: Generation, asked: Callable[[Generation, tuple[IndexRange, ...]], Query[Any]]
) -> None:
    assert store.flush([numbered(generation, 1)])
    assert store.change_registry(generation.view, Registry(), Registry().pointed(generation))
    question = asked(generation, (IndexRange("color"),))
    plain, guarded = compile_query(question), compile_query(question, is_cluster=True)
    assert guarded.answer([store._client.execute_command(*command) for command in guarded.commands]) == store.ask(
        question
    )
    live = store._client.execute_command(*guarded.commands[0])
    store.unlink(generation)
    replies = [live, *(store._client.execute_command(*command) for command in guarded.commands[1:])]
    assert guarded.answer(replies).live == ""
    assert plain.answer(replies[: len(plain.commands)]).live == generation.id, "nothing would tell that rows are gone"


def test_changes_read_while_their_generation_is_removed_are_not_called_live_in_a_cluster(
    store: RedisViewStore, generation: Generation
) -> None:
    assert store.change_registry(generation.view, Registry(), Registry().pointed(generation))
    guarded = compile_query(Changes(generation, {0: ""}, 9, backwards=True), is_cluster=True)
    before = [store._client.execute_command(*command) for command in guarded.commands[:2]]
    assert guarded.answer([*before, *(store._client.execute_command(*c) for c in guarded.commands[2:])]).live
    store.unlink(generation)
    recent = guarded.answer([*before, *(store._client.execute_command(*c) for c in guarded.commands[2:])])
    assert (recent.live, recent.entries) == ("", {0: ()})


def test_pages_hold_every_row_that_was_there_before(store: RedisViewStore, generation: Generation) -> None:
    for number in range(1, 300):
        assert store.flush([numbered(generation, number)])
    there = set(store.keys(generation, 0, "", 1000))
    wanted = new_generation(buckets=1)
    assert store.create_marks(wanted, {0: checkpoint("", 0)})
    with a_busy_writer(store, wanted):
        pages: list[str] = []
        while page := store.keys(generation, 0, pages[-1] if pages else "", 7):
            pages += page
    assert pages == sorted(there)


def test_clients_of_an_event_loop_end_with_it(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    async def read_often() -> None:
        for _ in range(3):
            await asyncio.gather(*(store.aread(generation, [(0, "a")]) for _ in range(200)))

    before = connections(server)
    asyncio.run(read_often())
    asyncio.run(read_often())
    wait_for_connections(server, before)


@pytest.mark.parametrize("how", ["close", "aclose"])
def test_a_store_closed_inside_a_loop_leaves_nothing_behind(
    server: RedisServer, generation: Generation, how: str
) -> None:
    async def read_and_close() -> None:
        own = RedisViewStore(server.settings)
        await own.aread(generation, [(0, "a")])
        if how == "close":
            own.close()
        else:
            await own.aclose()
            await asyncio.to_thread(wait_for_connections, server, before)

    before = connections(server)
    asyncio.run(read_and_close())
    wait_for_connections(server, before)


def test_the_registry_loses_no_change(store: RedisViewStore) -> None:
    view = new_generation().view

    def add(worker: int) -> None:
        for number in range(10):
            while True:
                before = store.registry(view)
                after = before.with_generation(Generation(view, f"{worker}-{number}", "h", True, 1, {"t": 1}))
                if store.change_registry(view, before, after):
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert len(store.registry(view).generations) == 40


def test_the_registry_keeps_fields_of_newer_versions(server: RedisServer, store: RedisViewStore) -> None:
    generation = new_generation()
    with server.client() as client:
        client.hset(f"view:{generation.view}", "note:x", "from the future")
        assert store.change_registry(generation.view, Registry(), Registry().pointed(generation))
        fields = client.hgetall(f"view:{generation.view}")
    assert fields[b"note:x"] == b"from the future"
    assert fields[b"live:" + generation.hash.encode()] == generation.id.encode()
    assert store.registry(generation.view).generations[generation.id].phase is Phase.LIVE


def test_an_unreadable_registry_or_mark_is_told(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    with server.client() as client:
        client.hset(f"view:{generation.view}", "g:9-x", "{}")
        client.hset(BucketKeys(generation, 0).checkpoint, "position", "soup")
    with pytest.raises(ContractError, match=f"HDEL view:{generation.view} g:9-x"):
        store.registry(generation.view)
    with pytest.raises(ContractError, match=f"the checkpoint of bucket 0 of {generation.view}"):
        store.checkpoints(generation)


def test_an_unlinked_generation_leaves_no_key(server: RedisServer, store: RedisViewStore) -> None:
    generation = new_generation(buckets=2)
    with server.client() as client:
        before = client.dbsize()
        assert store.create_marks(generation, {0: checkpoint("", 0), 1: checkpoint("", 0)})
        assert store.flush([flush_of(generation, 0, "", "t1", *(row(f"r{n}") for n in range(1700)))])
        assert client.dbsize() == before + 2 + 2 + 1700 + 3
        store.unlink(generation)
        assert client.dbsize() == before


def connections(server: RedisServer) -> int:
    """How many clients the server has."""
    with server.client() as client:
        return len(client.client_list())


def wait_for_connections(server: RedisServer, count: int) -> None:
    """Waits until the server has no more clients than that."""
    wait_until(lambda: connections(server) <= count, f"all but {count} connections to close")
