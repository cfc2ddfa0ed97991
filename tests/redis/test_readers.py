"""Readers beside writers: threads, event loops, pages and the registry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from leftfold.errors import ContractError
from leftfold.ports.flush import Generation, Phase, Registry
from leftfold.ports.queries import Changes, Counting, GetRow, IndexRange, Matching, Query, Rows
from leftfold.redis import RedisViewStore
from leftfold.redis.keys import BucketKeys
from leftfold.redis.reads import compile_query, row_query, rows_query
from leftfold.redis.stored_values import decoded
from leftfold.testing.contracts.readers import checkpoint, new_generation
from tests.redis.flushes import new_marked, numbered
from tests.redis.ledgers import busy
from tests.redis.server import RedisServer, connections
from tests.threads import Background
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture
def generation(store: RedisViewStore) -> Generation:
    return new_marked(store, 1)


def a_busy_writer(store: RedisViewStore, generation: Generation) -> Background:
    def write(number: int) -> None:
        assert store.flush([numbered(generation, 0, number)])

    return busy(write)


def test_no_row_is_older_than_its_mark(store: RedisViewStore, generation: Generation) -> None:
    """So many keys are asked for that the server serves writers between the parts of a read."""
    keys = [(0, "a"), *((0, f"none{number}") for number in range(2000))]
    with a_busy_writer(store, generation):
        seen: set[int] = set()
        while len(seen) < 20:
            snapshot = store.read(generation, keys)
            at = snapshot.checkpoints[0].position.next_offset("shop.events", 0)
            fields = snapshot.rows[0]
            assert int(fields[b"color"] if fields else 0) >= at
            seen.add(at)


def test_rows_read_while_their_generation_is_removed_are_not_taken_for_missing(
    store: RedisViewStore, generation: Generation
) -> None:
    """In a cluster the live pointer is on another node and may be old; the second look at the checkpoint shows it."""
    assert store.flush([numbered(generation, 0, 1)])
    question = rows_query(generation, [(0, "a")])
    pointer_and_marks, rest = question.commands[:2], question.commands[2:]
    replies = [store._client.execute_command(*command) for command in pointer_and_marks]
    store.unlink(generation)
    replies += [store._client.execute_command(*command) for command in rest]
    assert question.answer(replies).rows == (None,)
    assert question.answer(replies).checkpoints == {}
    twin = question.answer([*replies[:-1], 1])
    assert (twin.rows, twin.checkpoints) == ((None,), {0: checkpoint("t1", 1)}), (
        "without it the row would be reported as absent"
    )


def test_a_glance_at_a_generation_that_is_removed_meanwhile_does_not_call_its_bucket_whole(
    store: RedisViewStore, generation: Generation
) -> None:
    assert store.flush([numbered(generation, 0, 1)])
    question = row_query(GetRow(generation, 0, "a"))
    pointer, row_, mark_ = question.commands
    assert question.answer([store._client.execute_command(*command) for command in question.commands]).whole
    live, early = (store._client.execute_command(*command) for command in (pointer, mark_))
    store.unlink(generation)
    fields, late = (store._client.execute_command(*command) for command in (row_, mark_))
    assert question.answer([live, fields, late])[1:] == (False, None)
    assert question.answer([live, fields, early])[1:] == (True, None), "a look before the row would tell it as absent"


ASKED: tuple[Callable[[Generation], Query[Any]], ...] = (
    lambda generation: Matching(generation, (IndexRange("color"),)),
    lambda generation: Counting(generation, (IndexRange("color"),)),
    lambda generation: Changes(generation, {0: ""}, 9, backwards=True),
)


@pytest.mark.parametrize("asked", ASKED, ids=["matching", "counting", "changes"])
def test_what_is_found_in_a_generation_that_is_removed_meanwhile_is_not_called_live_in_a_cluster(
    store: RedisViewStore, generation: Generation, asked: Callable[[Generation], Query[Any]]
) -> None:
    assert store.flush([numbered(generation, 0, 1)])
    assert store.change_registry(generation.view, Registry(), Registry().pointed(generation))
    question = asked(generation)
    plain, guarded = compile_query(question), compile_query(question, is_cluster=True)
    assert guarded.answer([store._client.execute_command(*command) for command in guarded.commands]) == store.ask(
        question
    )
    live = store._client.execute_command(*guarded.commands[0])
    store.unlink(generation)
    replies = [live, *(store._client.execute_command(*command) for command in guarded.commands[1:])]
    assert guarded.answer(replies).live == ""
    assert plain.answer(replies[: len(plain.commands)]).live == generation.id, (
        "nothing would show that rows are missing"
    )


def test_pages_hold_every_row_that_was_there_before(store: RedisViewStore, generation: Generation) -> None:
    for number in range(1, 100):
        assert store.flush([numbered(generation, 0, number)])
    there = set(store.keys(generation, 0, "", 1000))
    with a_busy_writer(store, new_marked(store, 1)):
        pages: list[str] = []
        while page := store.keys(generation, 0, pages[-1] if pages else "", 7):
            pages += page
    assert pages == sorted(there)


def test_clients_of_an_event_loop_end_with_it(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    async def read_often() -> None:
        for _ in range(3):
            await asyncio.gather(*(store.aask(Rows(generation, ((0, "a"),))) for _ in range(200)))

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
        await own.aask(Rows(generation, ((0, "a"),)))
        if how == "close":
            own.close()
        else:
            await own.aclose()
            await asyncio.to_thread(wait_for_connections, server, before)

    before = connections(server)
    asyncio.run(read_and_close())
    wait_for_connections(server, before)


def test_the_registry_keeps_fields_of_newer_versions(server: RedisServer, store: RedisViewStore) -> None:
    generation = new_generation()
    with server.client() as client:
        client.hset(f"view:{generation.view}", "note:x", "from the future")
        assert store.change_registry(generation.view, Registry(), Registry().pointed(generation))
        fields = client.hgetall(f"view:{generation.view}")
    assert fields[b"note:x"] == b"from the future"
    assert fields[b"live:" + generation.hash.encode()] == generation.id.encode()
    assert store.registry(generation.view).generations[generation.id].phase is Phase.LIVE


def test_an_unreadable_registry_or_mark_is_reported(
    server: RedisServer, store: RedisViewStore, generation: Generation
) -> None:
    with server.client() as client:
        client.hset(f"view:{generation.view}", "g:9-x", "{}")
        client.hset(BucketKeys(generation, 0).checkpoint, "position", "soup")
    with pytest.raises(ContractError, match=f"HDEL view:{generation.view} g:9-x"):
        store.registry(generation.view)
    with pytest.raises(ContractError, match=f"the checkpoint of bucket 0 of {generation.view}"):
        store.checkpoints(generation)


def test_an_older_generation_was_folded_by_the_one_code_that_it_names_and_has_no_end() -> None:
    old: dict[str, Any] = {
        "hash": "0123", "stream_keyed": False, "buckets": 16, "topics": {"shop.events": 4}, "phase": "kept",
        "created": "2026-01-01T00:00:00Z", "since": "2026-01-01T00:00:00Z", "name": "", "fold": "cafe", "ends": {},
    }  # fmt: skip
    for fold, folds in ("cafe", ("cafe",)), ("", ()):
        found = decoded("spend", {b"g:1-ab": json.dumps(old | {"fold": fold}).encode()}).generations["1-ab"]
        assert (found.fold, found.folds, found.superseded) == (fold, folds, ())
        assert (found.until, found.attempt, found.cut) == ("", "", "")


def wait_for_connections(server: RedisServer, count: int) -> None:
    wait_until(lambda: connections(server) <= count, f"all but {count} connections to close")
