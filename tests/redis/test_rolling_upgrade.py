"""During an upgrade projectors of both versions run on one Redis; each reader sees the rows of its code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import FoldView, memory
from leftfold.client import Views
from leftfold.engine.views.projector import Projector
from leftfold.errors import StaleViewError, ViewNotBuilt
from leftfold.memory import World
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.flush import Generation, Phase, Registry
from leftfold.redis import RedisViewStore
from leftfold.testing import fold
from tests.domains import ledger_next
from tests.domains.ledger import Summary, app, summary
from tests.redis.server import RedisServer
from tests.redis.test_tail_heals import happen
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

OLD, NEW = summary, ledger_next.summary
VERSIONS: dict[str, FoldView[Any, Summary, str]] = {"old": OLD, "new": NEW}


@pytest.fixture
def world(server: RedisServer) -> Iterator[World]:
    """A log with something in it, and an empty Redis."""
    with server.client() as client:
        client.flushall()
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        happen(world, 0)
        yield world


@pytest.mark.parametrize("leaves", ["old", "new"])
def test_each_reader_sees_the_fold_of_its_code_whoever_runs_and_whoever_leaves(
    server: RedisServer, store: RedisViewStore, world: World, leaves: str
) -> None:
    stays = "new" if leaves == "old" else "old"
    with at_work(server, world, VERSIONS[stays]):
        with at_work(server, world, VERSIONS[leaves]):
            wait_live(world, store, OLD, NEW)
            for seed in range(3, 9):
                happen(world, seed)
                assert [name for name, view in VERSIONS.items() if is_wrong(store, world, view)] == []
            last = rows(store, VERSIONS[leaves])
        for seed in range(9, 12):
            happen(world, seed)
            assert not is_wrong(store, world, VERSIONS[stays])
            assert rows(store, VERSIONS[leaves]) == last, "it stays as it was, until somebody drops it"


def test_an_upgrade_under_writes_goes_live_beside_the_old_one(
    server: RedisServer, store: RedisViewStore, world: World
) -> None:
    with at_work(server, world, OLD):
        wait_live(world, store, OLD)
        assert not is_wrong(store, world, OLD)
        with pytest.raises(ViewNotBuilt):
            rows(store, NEW)
        with at_work(server, world, NEW):
            wait_live(world, store, NEW)
            assert not is_wrong(store, world, OLD)
            assert not is_wrong(store, world, NEW)


def test_twin_tails_that_follow_what_other_code_made_spoil_its_rows(
    server: RedisServer, store: RedisViewStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def whichever(registry: Registry, view: View[Any, Any], fold: str = "") -> dict[str, Generation]:
        return {i: g for i, g in registry.generations.items() if g.phase not in (Phase.BULK, Phase.PINNED)}

    monkeypatch.setattr("leftfold.engine.views.projector.followed", whichever)
    monkeypatch.setattr("leftfold.engine.views.generations.followed", whichever)
    with at_work(server, world, OLD):
        wait_live(world, store, OLD)
        assert not is_wrong(store, world, OLD)
    with at_work(server, world, NEW):
        happen(world, 3)
        reader = Views(store)[OLD]
        wait_until(lambda: reader.describe().position.covers(ends(world)), "the other version to fold it all")
    assert rows(store, OLD) != expected(world, OLD)


def test_twin_tails_of_both_versions_in_one_group_leave_rows_to_each_other(
    server: RedisServer, store: RedisViewStore, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "tails", lambda view, hash_: f"tails:{view}")
    with at_work(server, world, OLD) as older:
        wait_live(world, store, OLD)
        with at_work(server, world, NEW) as newer:
            wait_until(lambda: shares(older) == shares(newer) == [2], "both to think that they share")
            happen(world, 3)
            assert is_wrong(store, world, OLD, seconds=1.0)


@contextmanager
def at_work(server: RedisServer, world: World, view: View[Any, Any]) -> Iterator[Projector]:
    """A projector of one version, in a thread and with a store of its own, as long as the block runs."""
    own, done, failed = RedisViewStore(server.settings), threading.Event(), list[BaseException]()
    tail = Projector([view], world.log.reader, own, look=0.02, member=f"version {view.version}")

    def run() -> None:
        try:
            while not done.is_set():
                if not tail.step(0.0):
                    done.wait(0.002)
        except BaseException as error:
            failed.append(error)
            raise

    thread = threading.Thread(target=run, name=tail.member)
    thread.start()
    try:
        yield tail
    finally:
        done.set()
        thread.join()
        tail.close()
        own.close()
    assert failed == []


def wait_live(world: World, store: RedisViewStore, *views: View[Any, Any]) -> None:
    """Waits until readers of these versions find something, and writes meanwhile."""
    seeds = iter(range(100, 10_000))

    def live() -> bool:
        happen(world, next(seeds), 5)
        registry = store.registry(summary.name)
        return all(registry.live_of(view.hash) for view in views)

    wait_until(live, "the versions to go live")


def is_wrong(store: RedisViewStore, world: World, view: FoldView[Any, Summary, str], seconds: float = 240.0) -> bool:
    """Whether a reader that waits for the end of the log does not see what its code makes of the log."""
    try:
        Views(store)[view].wait_reached(ends(world), timeout=seconds)
    except StaleViewError:
        return True
    return rows(store, view) != expected(world, view)


def rows(store: RedisViewStore, view: FoldView[Any, Summary, str]) -> dict[str, Summary]:
    """What a reader sees."""
    return dict(Views(store)[view].items())


def expected(world: World, view: FoldView[Any, Summary, str]) -> dict[str, Summary]:
    """What a version's code makes of the log."""
    return dict(fold(view, *(recorded.event for recorded in world.events("ledgers"))))


def ends(world: World) -> Position:
    """Where the log ends."""
    return world.log.reader().ends(["ledgers.events"])


def shares(tail: Projector) -> list[int]:
    """How many buckets it folds of each generation."""
    return [len(writer.buckets) for writer in tail.writers()]
