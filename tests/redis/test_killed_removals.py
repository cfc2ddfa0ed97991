"""SIGKILL while a generation is removed or made: what no registry lists is found and removed, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from redis import Redis

from leftfold import memory
from leftfold.cli.health.doctor import Examination, Finding
from leftfold.cli.views.drop import remove_unlisted
from leftfold.engine.views.cleanup import orphans, sweep
from leftfold.engine.views.projector import Projector
from leftfold.memory import World
from leftfold.redis import RedisViewStore
from tests.domains import ledger_next
from tests.domains.ledger import app, summary
from tests.redis.server import RedisServer
from tests.redis.test_tail_heals import assert_equal_to_the_log, happen, settle, tail_on

pytestmark = pytest.mark.servers

WRITES = (1, 2, 4, 5, 6, 9, 14)
"""Of the twenty that remove four buckets: around the first checkpoint, its rows, and those of other buckets."""


@pytest.fixture
def world(server: RedisServer, store: RedisViewStore) -> Iterator[World]:
    """A log, and its views in Redis: those of this code, and the summary of the next version."""
    with server.client() as client:
        client.flushall()
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        happen(world, 1)
        for tail in tail_on(world, store), Projector([ledger_next.summary], world.log.reader, store, look=0.0):
            settle(tail)
            tail.close()
        yield world


@pytest.mark.parametrize("write", [WRITES[0], *(pytest.param(one, marks=pytest.mark.faults) for one in WRITES[1:])])
def test_what_a_killed_removal_leaves_is_found_and_removed(
    server: RedisServer, store: RedisViewStore, world: World, write: int, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = next_live(store)
    kill(server, victim, write)
    assert victim not in store.registry(summary.name).generations
    assert_found_and_removed(server, store, victim, capsys)
    assert_equal_to_the_log(world, store)


def test_what_a_killed_maker_leaves_is_found_and_removed(
    server: RedisServer, store: RedisViewStore, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = set(store.registry(summary.name).generations)
    kill(server, "", 0)
    (lost,) = {id_ for view, id_ in store.stored([summary.name]).buckets if id_ not in listed}
    assert_found_and_removed(server, store, lost, capsys)
    assert_equal_to_the_log(world, store)


def test_twin_without_a_look_through_the_keys_nothing_ever_removes_them(
    server: RedisServer, store: RedisViewStore, world: World
) -> None:
    victim = next_live(store)
    kill(server, victim, 6)
    sweep(store, summary, 0.0)
    tail = tail_on(world, store)
    happen(world, 2)
    settle(tail)
    tail.close()
    assert keys_of(server, victim)


def test_without_orphans_the_doctor_says_so_and_names_what_other_code_left(
    server: RedisServer, store: RedisViewStore, world: World
) -> None:
    found = looks(server)
    assert found["orphans"] == Finding("orphans", "every generation that has keys is in a registry", True)
    assert found["views"].well
    assert found["views"].message.startswith("3 views, 4 generations; view ledger_summary: generation ")
    way_out = f"leftfold drop --app tests.domains.ledger:app ledger_summary {next_live(store)} --yes"
    assert way_out in found["views"].message


def assert_found_and_removed(
    server: RedisServer, store: RedisViewStore, lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The doctor names it, `drop` removes it, and every other key stays as it is."""
    before = {key: value for key, value in dump(server).items() if key not in keys_of(server, lost)}
    registry = store.registry(summary.name)
    assert keys_of(server, lost)
    assert [orphan.id for orphan in orphans(store, [summary.name]).found] == [lost]
    told = looks(server)["orphans"]
    assert not told.well
    assert f"(ledger_summary {lost})" in told.message
    assert "leftfold drop --app tests.domains.ledger:app ledger_summary --orphans --yes" in told.message
    capsys.readouterr()
    remove_unlisted(store, summary.name, sure=True)
    assert capsys.readouterr().out == f"ledger_summary: {lost} is removed\n"
    assert dump(server) == before
    assert store.registry(summary.name) == registry


def kill(server: RedisServer, victim: str, write: int) -> None:
    """Lets a process remove or make a generation until it is killed."""
    words = [sys.executable, "-m", "tests.redis.killed_removal", server.settings.url, victim, str(write)]
    assert subprocess.run(words, check=False, timeout=240.0).returncode == -9, "it was not killed: it wrote less often"


def next_live(store: RedisViewStore) -> str:
    """The id of the generation that the next version of the code reads."""
    return store.registry(summary.name).live[ledger_next.summary.hash]


def looks(server: RedisServer) -> dict[str, Finding]:
    """What the doctor says, by what it is about."""
    return {found.about: found for found in Examination(["tests.domains.ledger:app"], None, server.settings.url).run()}


def keys_of(server: RedisServer, id_: str) -> set[bytes]:
    """The keys of a generation."""
    with server.client() as client:
        return set(client.scan_iter(f"v:{{{summary.name}:{id_}:*"))


def dump(server: RedisServer) -> dict[bytes, bytes]:
    """Every key of views with its value, as Redis would move it elsewhere."""
    with server.client() as client:
        return {key: _dumped(client, key) for key in client.scan_iter("v:*")}


def _dumped(client: Redis, key: bytes) -> bytes:
    found = client.dump(key)
    assert isinstance(found, bytes)
    return found
