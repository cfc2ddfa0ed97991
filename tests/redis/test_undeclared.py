"""Views that were deleted from the code: named by status and doctor, removed by drop, and by nobody else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from leftfold import memory
from leftfold.cli.health.doctor import Examination
from leftfold.cli.main import run
from leftfold.engine.views.cleanup import undeclared, undeclared_view
from leftfold.memory import World
from leftfold.redis import RedisViewStore
from leftfold.redis.connection.sync import RoutedClient
from leftfold.redis.keys import registry_key
from leftfold.runtime.operations.survey import Survey
from tests.domains import ledger_next
from tests.domains.ledger import app, by_owner, by_tag, summary
from tests.redis.cluster_set import ClusterSet
from tests.redis.clustered import new_spread
from tests.redis.server import RedisServer
from tests.redis.test_killed_removals import dump
from tests.redis.test_tail_heals import assert_equal_to_the_log, happen, settle, tail_on

pytestmark = pytest.mark.servers

APP = "tests.domains.ledger_next:app"
"""It declares one of the three views that are there."""
Drop = Callable[..., tuple[int, str, str]]


@pytest.fixture
def world(server: RedisServer, store: RedisViewStore) -> Iterator[World]:
    """A log and its three views in Redis, beside keys of other programs."""
    with server.client() as client:
        client.flushall()
        client.hset("view:by_tag:notes", "g:1", "not ours")
        client.hset("view:somebodys", "color", "red")
        client.set("view:by_mail", "a string")
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        happen(world, 1)
        tail = tail_on(world, store)
        settle(tail)
        tail.close()
        yield world


@pytest.fixture
def drop(server: RedisServer, capsys: pytest.CaptureFixture[str]) -> Drop:
    """Types `leftfold drop`; the exit code and what it wrote."""

    def type_(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(["drop", *words, "--app", APP, "--redis", server.settings.url])
        return (code, *capsys.readouterr())

    return type_


def named(server: RedisServer) -> list[set[str]]:
    """The views that `status` and `doctor` name as undeclared."""
    survey = Survey(None, server.settings.url)
    survey.others({APP: ledger_next.app})
    looks = {found.about: found for found in Examination([APP], None, server.settings.url).run()}
    assert looks["views"].well, "they may be somebody else's"
    told = "\n".join(survey.problems), looks["views"].message
    return [
        {view.name for view in app.views if f"view {view.name}: app ledgers does not declare it" in text}
        for text in told
    ]


def test_they_are_named_while_no_tail_is_at_work_on_them(
    server: RedisServer, store: RedisViewStore, world: World
) -> None:
    assert named(server) == [{"by_owner", "by_tag"}] * 2
    tail = tail_on(world, store, lease=600.0)
    tail.step(0.0)
    assert named(server) == [set(), set()]
    tail.close()


def test_nothing_goes_before_somebody_says_so_and_then_all_of_it(
    server: RedisServer, store: RedisViewStore, world: World, drop: Drop
) -> None:
    (live,) = store.registry("by_tag").generations.values()
    before = dump(server)
    code, out, _ = drop("by_tag")
    assert code == 0
    assert (
        f"by_tag: {live.id} (live), begun {live.created}, {sum(m.rows for m in store.checkpoints(live).values())} rows"
        in out
    )
    assert out.rstrip().endswith("leftfold drop by_tag --yes")
    assert (dump(server), store.registry("by_tag").live) == (before, {by_tag.hash: live.id})
    code, out, _ = drop("by_tag", "--yes")
    assert (code, out.splitlines()[-1]) == (0, "by_tag: all of it is removed")
    assert undeclared_view(store, "by_tag") is None
    assert dump(server) == {key: value for key, value in before.items() if b"{by_tag:" not in key}
    with server.client() as client:
        assert not client.exists("view:by_tag")
        assert client.hgetall("view:somebodys") == {b"color": b"red"}
    assert_equal_to_the_log(world, store, summary, by_owner)


def test_it_stays_while_a_tail_is_at_work_on_it(store: RedisViewStore, world: World, drop: Drop) -> None:
    tail = tail_on(world, store, lease=600.0)
    tail.step(0.0)
    code, _, err = drop("by_tag", "--yes")
    assert (code, "at work: tail; stop them first" in err) == (2, True), err
    tail.close()
    assert_equal_to_the_log(world, store)


def test_it_stays_while_it_is_rebuilt(store: RedisViewStore, world: World, drop: Drop) -> None:
    store.heartbeat(["rebuilds:by_tag"], "elsewhere (process 7)", 60.0)
    code, _, err = drop("by_tag", "--yes")
    assert (code, "being rebuilt or removed already by elsewhere" in err) == (69, True), err
    assert_equal_to_the_log(world, store)


def test_what_nobody_knows_and_what_is_half_said_is_refused(store: RedisViewStore, world: World, drop: Drop) -> None:
    assert "did you mean ledger_summary?" in drop("ledger_sumary")[2]
    assert "did you mean ledger_summary?" in drop("ledger_sumary", "--orphans")[2]
    code, _, err = drop("by_tag", "live")
    assert (code, "all of it goes or nothing: leftfold drop by_tag\n" in err) == (2, True), err
    assert drop("ledger_summary")[0] == drop("by_tag", "live", "--orphans")[0] == 2
    assert drop("by_tag", "--orphans")[:2] == (0, "by_tag: every generation that has keys is in its registry\n")
    assert_equal_to_the_log(world, store)


def test_killed_in_the_midst_it_is_still_named_and_goes_the_second_time(
    server: RedisServer, store: RedisViewStore, world: World, drop: Drop
) -> None:
    kill(server, "whole")
    say_farewell(store)
    assert [found.view for found in undeclared(store, ["ledger_summary"])] == ["by_owner", "by_tag"]
    assert drop("by_tag", "--yes")[0] == 0
    assert not [key for key in dump(server) if b"{by_tag:" in key]
    assert_equal_to_the_log(world, store, summary, by_owner)


def test_twin_what_is_taken_from_the_registry_first_is_never_named_again(
    server: RedisServer, store: RedisViewStore, world: World
) -> None:
    kill(server, "one by one")
    assert [found.view for found in undeclared(store, ["ledger_summary"])] == ["by_owner"]
    assert [key for key in dump(server) if b"{by_tag:" in key]


def test_registries_are_found_on_every_master_of_a_cluster(
    cluster: ClusterSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.empty()
    store = RedisViewStore(cluster.settings)
    for _ in range(12):
        made = new_spread(cluster, store)
        before = store.registry(made.view)
        assert store.change_registry(made.view, before, before.with_generation(made))
    found = store.registered()
    assert (len(found.views), found.whole) == (12, True)
    assert {view.view for view in undeclared(store, [])} == found.views
    # The twin: a look at one master finds some of them.
    port = cluster.owner(registry_key(made.view)).port
    everywhere = sorted(store._topology.masters(), key=lambda master: not master.address.endswith(f":{port}"))
    monkeypatch.setattr(store._topology, "masters", lambda: everywhere[:1])
    assert isinstance(store._client, RoutedClient)
    assert 0 < len(store.registered().views) < 12
    store.close()


def test_a_look_that_takes_too_long_says_that_it_did_not_come_to_its_end(store: RedisViewStore, world: World) -> None:
    assert store.registered(0.0).whole is False
    assert store.registered().whole


def kill(server: RedisServer, how: str) -> None:
    """Lets a process remove the view until it is killed."""
    words = [sys.executable, "-m", "tests.redis.killed_removal_of_view", server.settings.url, how]
    done = subprocess.run(words, check=False, timeout=240.0, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr


def say_farewell(store: RedisViewStore) -> None:
    """Takes the killed one for dead now, and not when its lease is over."""
    for member in store.heartbeat(["rebuilds:by_tag"], "", 0.0)["rebuilds:by_tag"]:
        store.heartbeat(["rebuilds:by_tag"], member, 0.0)
