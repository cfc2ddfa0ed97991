"""What is removed from Redis, and what a process that died meanwhile leaves: it is named, and removed on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from redis import Redis
from redis.connection import Connection

from leftfold import memory
from leftfold.cli.health.doctor import Examination, Finding
from leftfold.engine.views.cleanup import (
    orphans,
    remove,
    remove_orphans,
    remove_undeclared,
    sweep,
    undeclared,
    undeclared_view,
)
from leftfold.engine.views.generations import open_generation
from leftfold.engine.views.projector import Projector
from leftfold.memory import World
from leftfold.ports.flush import Generation, Phase, Registry
from leftfold.redis import RedisViewStore
from leftfold.redis.connection.topology import ClusterTopology
from leftfold.redis.keys import registry_key
from leftfold.runtime.operations.survey import Survey
from leftfold.testing.contracts.readers import checkpoint, flush_of, row
from tests.cli.shell import Typing, typing_with
from tests.domains import ledger_next
from tests.domains.ledger import app, by_owner, by_tag, summary
from tests.redis.cluster_set import ClusterSet
from tests.redis.flushes import flushes, new_marked, new_spread, rows, slot_of
from tests.redis.ledgers import NOW, assert_equal_to_the_log, happen, projector_on, settle
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers

APP = "tests.domains.ledger_next:app"
"""It declares one of the three views that are there."""
WRITES = (1, 4, 6, 14)
"""Of the twenty that remove four buckets: around the first checkpoint, its rows, and those of other buckets."""


class Died(BaseException):
    """The end of a process, behind which nothing of it runs."""


@pytest.fixture
def world(server: RedisServer, store: RedisViewStore) -> Iterator[World]:
    """A log, its three views and the summary of the next version in Redis, beside keys of other programs."""
    with server.client() as client:
        client.flushall()
        client.hset("view:by_tag:notes", "g:1", "not ours")
        client.hset("view:somebodys", "color", "red")
        client.set("view:by_mail", "a string")
    with memory(app, now=NOW) as world:
        happen(world, 1)
        for projector in (
            projector_on(world, store),
            Projector([ledger_next.summary], world.log.reader, store, look=0.0),
        ):
            settle(projector)
            projector.close()
        yield world


@pytest.fixture
def drop(server: RedisServer, capsys: pytest.CaptureFixture[str]) -> Typing:
    """Types `leftfold drop`."""
    return partial(typing_with(capsys, "--app", APP, "--redis", server.settings.url), "drop")


def die_in(write: int, work: Callable[[], object]) -> None:
    """Ends the work halfway through the n-th thing that it sends to Redis."""
    whole, count = Connection.send_packed_command, 0

    def send(self: Any, command: Any, check_health: bool = True) -> None:
        nonlocal count
        count += 1
        if count == write:
            data = command if isinstance(command, bytes) else b"".join(command)
            self._sock.sendall(data[: len(data) // 2])
            raise Died
        whole(self, command, check_health)  # type: ignore[no-untyped-call]  # redis-py has no type for it

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "send_packed_command", send)
        with pytest.raises(Died):
            work()


class Dying(RedisViewStore):
    """A store whose process dies where a generation would be registered, or behind the first bucket of a removal."""

    def change_registry(self, view: str, before: Registry, after: Registry, *more: Any) -> bool:
        if len(after.generations) > len(before.generations):
            raise Died
        return super().change_registry(view, before, after, *more)

    def unlink(self, generation: Generation) -> None:
        super().unlink(Generation(generation.view, generation.id, "", False, 1, {}))
        raise Died


@pytest.fixture
def dying(server: RedisServer) -> Iterator[Dying]:
    store = Dying(server.settings)
    yield store
    store.close()


@pytest.mark.parametrize("write", WRITES)
def test_what_a_removal_that_died_leaves_is_found_and_removed(
    server: RedisServer, store: RedisViewStore, world: World, write: int
) -> None:
    victim = next_live(store)
    remover = RedisViewStore(server.settings)
    unlink = remover.unlink
    # The registry has been changed by then; what dies is the removal of the keys.
    remover.unlink = lambda generation: die_in(write, lambda: unlink(generation))  # type: ignore[method-assign]
    remove(remover, store.registry(summary.name).generations[victim])
    remover.close()
    assert victim not in store.registry(summary.name).generations
    sweep(store, summary, 0.0)
    assert keys_of(server, victim), "the twin: no look through registries removes them"
    before, registry = others(server, victim), store.registry(summary.name)
    assert [orphan.id for orphan in orphans(store, [summary.name]).found] == [victim]
    assert [orphan.id for orphan in remove_orphans(store, summary.name)] == [victim]
    assert (dump(server), store.registry(summary.name)) == (before, registry)
    assert_equal_to_the_log(world, store)


def test_what_a_maker_that_died_leaves_is_found_and_removed(
    server: RedisServer, store: RedisViewStore, dying: Dying, world: World, drop: Typing
) -> None:
    """The doctor names it, `drop` removes it, and every other key stays as it is."""
    listed = set(store.registry(summary.name).generations)
    with pytest.raises(Died):
        open_generation(dying, summary, {"ledgers.events": 4}, Phase.SEALED)
    (lost,) = {id_ for _, id_ in store.stored([summary.name]).buckets if id_ not in listed}
    before, registry = others(server, lost), store.registry(summary.name)
    reported = looks(server)["orphans"]
    assert not reported.well
    assert f"(ledger_summary {lost})" in reported.message
    assert "leftfold drop ledger_summary --orphans --yes" in reported.message
    assert drop("ledger_summary", "--orphans", "--yes")[:2] == (0, f"ledger_summary: {lost} is removed\n")
    assert (dump(server), store.registry(summary.name)) == (before, registry)
    assert looks(server)["orphans"] == Finding("orphans", "every generation that has keys is in a registry", True)
    assert_equal_to_the_log(world, store)


def test_the_doctor_names_what_other_code_left(server: RedisServer, store: RedisViewStore, world: World) -> None:
    found = looks(server)["views"]
    assert found.well
    assert found.message.startswith("3 views, 4 generations; view ledger_summary: generation ")
    assert f"leftfold drop ledger_summary {next_live(store)} --yes" in found.message


def test_undeclared_views_are_named_while_no_projector_is_at_work_on_them(
    server: RedisServer, store: RedisViewStore, world: World
) -> None:
    assert named(server) == [{"by_owner", "by_tag"}] * 2
    projector = projector_on(world, store, lease=600.0)
    projector.step(0.0)
    assert named(server) == [set(), set()]
    projector.close()
    assert store.registered(0.0).whole is False, "a look that takes too long does not come to its end"
    assert store.registered().whole


def named(server: RedisServer) -> list[set[str]]:
    """The views that `status` and `doctor` name as undeclared."""
    survey = Survey(None, server.settings.url)
    survey.others({APP: ledger_next.app})
    found = looks(server, APP)
    assert found["views"].well, "they may be of another App"
    reported = "\n".join(survey.problems), found["views"].message
    return [
        {view.name for view in app.views if f"view {view.name}: app ledgers does not declare it" in text}
        for text in reported
    ]


def test_nothing_is_removed_before_it_is_confirmed_and_then_all_of_it(
    server: RedisServer, store: RedisViewStore, world: World, drop: Typing
) -> None:
    (live,) = store.registry("by_tag").generations.values()
    before, count = dump(server), sum(m.rows for m in store.checkpoints(live).values())
    code, out, _ = drop("by_tag")
    assert code == 0
    assert f"by_tag: {live.id} (live), begun {live.created}, {count} rows" in out
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


def test_what_is_at_work_unknown_or_half_said_is_refused(store: RedisViewStore, world: World, drop: Typing) -> None:
    projector = projector_on(world, store, lease=600.0)
    projector.step(0.0)
    code, _, err = drop("by_tag", "--yes")
    assert (code, "at work: projector; stop them first" in err) == (2, True), err
    projector.close()
    store.heartbeat(["rebuilds:by_tag"], "elsewhere (process 7)", 60.0)
    code, _, err = drop("by_tag", "--yes")
    assert (code, "being rebuilt or removed already by elsewhere" in err) == (69, True), err
    store.heartbeat(["rebuilds:by_tag"], "elsewhere (process 7)", 0.0)
    assert "did you mean ledger_summary?" in drop("ledger_sumary")[2]
    assert "did you mean ledger_summary?" in drop("ledger_sumary", "--orphans")[2]
    code, _, err = drop("by_tag", "live")
    assert (code, "all of it goes or nothing: leftfold drop by_tag\n" in err) == (2, True), err
    assert drop("ledger_summary")[0] == drop("by_tag", "live", "--orphans")[0] == 2
    assert drop("by_tag", "--orphans")[:2] == (0, "by_tag: every generation that has keys is in its registry\n")
    assert_equal_to_the_log(world, store)


def test_a_view_whose_removal_died_is_still_named_and_removed_the_second_time(
    server: RedisServer, store: RedisViewStore, dying: Dying, world: World, drop: Typing
) -> None:
    found = undeclared_view(dying, by_tag.name)
    assert found is not None
    with pytest.raises(Died):
        remove_undeclared(dying, found)
    assert [found.view for found in undeclared(store, ["ledger_summary"])] == ["by_owner", "by_tag"]
    assert drop("by_tag", "--yes")[0] == 0
    assert not [key for key in dump(server) if b"{by_tag:" in key]
    assert_equal_to_the_log(world, store, summary, by_owner)


def test_twin_what_is_taken_from_the_registry_first_is_never_named_again(
    server: RedisServer, store: RedisViewStore, dying: Dying, world: World
) -> None:
    found = undeclared_view(dying, by_tag.name)
    assert found is not None
    with pytest.raises(Died):
        remove(dying, found.generations[0])
    assert [found.view for found in undeclared(store, ["ledger_summary"])] == ["by_owner"]
    assert [key for key in dump(server) if b"{by_tag:" in key]


def test_every_master_of_a_cluster_is_looked_through(
    cluster: ClusterSet, stores: Callable[..., RedisViewStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin looks at one master, and misses what lies on the others."""
    store = stores(cluster.settings)
    for _ in range(12):
        made = new_spread(cluster, store)
        assert store.change_registry(made.view, Registry(), Registry().with_generation(made))
    lost = one_per_master(cluster, store)
    found = store.registered()
    assert (len(found.views), found.whole) == (12, True)
    assert {view.view for view in undeclared(store, [])} == found.views
    assert set(store.stored([lost[0].view]).buckets) == {(one.view, one.id) for one in lost}
    port, everywhere = cluster.owner(registry_key(made.view)).port, ClusterTopology.masters
    monkeypatch.setattr(
        ClusterTopology, "masters", lambda self: [one for one in everywhere(self) if one.address.endswith(f":{port}")]
    )
    assert 0 < len(store.registered().views) < 12
    assert len(set(store.stored([lost[0].view]).buckets)) == 1


def one_per_master(cluster: ClusterSet, store: RedisViewStore) -> list[Generation]:
    """Three generations of one view with one bucket each, on three masters, in no registry."""
    made = [Generation("things", f"{number}-0000", "h", False, 1, {"t": 1}) for number in range(1, 200)]
    owners = cluster.owners(slot_of(generation, 0) for generation in made)
    found = list({owner.port: generation for owner, generation in zip(owners, made, strict=True)}.values())
    assert len(found) == 3
    assert all(store.create_marks(generation, {0: checkpoint("", 0)}) for generation in found)
    return found


def test_a_generation_without_a_registry_is_removed_from_every_master(
    cluster: ClusterSet, stores: Callable[..., RedisViewStore]
) -> None:
    store = stores(cluster.settings)
    lost, live = new_spread(cluster, store), new_spread(cluster, store)
    for generation in lost, live:
        assert store.flush(flushes(generation, "", "t", "a"))
    before = store.registry(live.view)
    assert store.change_registry(live.view, before, before.with_generation(live))
    assert [(orphan.id, orphan.buckets) for orphan in orphans(store, [lost.view]).found] == [(lost.id, lost.buckets)]
    assert [orphan.id for orphan in remove_orphans(store, lost.view)] == [lost.id]
    for node in cluster.nodes:
        with node.client() as client:
            assert not list(client.scan_iter(f"v:{{{lost.view}:{lost.id}:*"))
    assert rows(store, live) == [f"a{bucket}" for bucket in range(live.buckets)]


def test_an_unlinked_generation_leaves_no_key(server: RedisServer, store: RedisViewStore) -> None:
    with server.client() as client:
        before = client.dbsize()
        generation = new_marked(store, 2)
        assert store.flush([flush_of(generation, 0, "", "t1", *(row(f"r{n}") for n in range(1700)))])
        assert client.dbsize() == before + 2 + 2 + 1700 + 3
        store.unlink(generation)
        assert client.dbsize() == before


def next_live(store: RedisViewStore) -> str:
    """The id of the generation that the next version of the code reads."""
    return store.registry(summary.name).live[ledger_next.summary.hash]


def looks(server: RedisServer, name: str = "tests.domains.ledger:app") -> dict[str, Finding]:
    return {found.about: found for found in Examination([name], None, server.settings.url).run()}


def keys_of(server: RedisServer, id_: str) -> set[bytes]:
    with server.client() as client:
        return set(client.scan_iter(f"v:{{{summary.name}:{id_}:*"))


def dump(server: RedisServer) -> dict[bytes, bytes]:
    """Every key of views with its value, as Redis would move it elsewhere."""
    with server.client() as client:
        return {key: _dumped(client, key) for key in client.scan_iter("v:*")}


def others(server: RedisServer, id_: str) -> dict[bytes, bytes]:
    """The same, without those of one generation of the summary."""
    left_out = keys_of(server, id_)
    return {key: value for key, value in dump(server).items() if key not in left_out}


def _dumped(client: Redis, key: bytes) -> bytes:
    found = client.dump(key)
    assert isinstance(found, bytes)
    return found
