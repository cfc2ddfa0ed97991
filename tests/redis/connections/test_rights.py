"""A user of Redis who lacks a right, and a server that drops keys by itself, are named at once."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import hiredis
import pytest
import redis

from leftfold.errors import ConfigurationError
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.rights import redis_rules
from leftfold.ports.bulk import BulkRow
from leftfold.ports.flush import Generation, Phase, Registry
from leftfold.ports.queries import Rows
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore, refuse_eviction
from leftfold.redis.connection.errors import describe_command, executed
from leftfold.redis.connection.protocol import EXEC, MULTI, packed
from leftfold.runtime.workers.view_workers import follow
from leftfold.testing.contracts.readers import COLUMNS, checkpoint, flush_of, new_generation, row
from tests.cli.shell import Shell
from tests.redis.server import RedisServer, as_user

pytestmark = pytest.mark.servers

SECRET = "h1dden"
Act = Callable[[RedisViewStore, Generation, RedisSettings], object]


def fill(settings: RedisSettings, generation: Generation) -> int:
    with RedisBulkSink(settings) as sink:
        return sink.write(generation, 1, COLUMNS, (), [BulkRow("a", (b"red", b"S"))])


def listen(store: RedisViewStore, generation: Generation) -> None:
    async def alisten() -> None:
        (await store.alisten(generation, None)).close()

    asyncio.run(alisten())


def known(generation: Generation) -> Registry:
    return Registry({generation.id: generation}, {})


WRITES: dict[str, tuple[Act, str, str]] = {
    # what is done, what a reader is denied of it, and what the writer of another view is
    "create marks": (
        lambda store, g, _: store.create_marks(replace(g, id="2"), {0: checkpoint("", 0)}),
        "(UN)?WATCH",
        r"WATCH v:\{VIEW:2:0\}@",
    ),
    "flush": (
        lambda store, g, _: store.flush([flush_of(g, 0, "", "t1", row("a"))]),
        "(UN)?WATCH",
        r"WATCH v:\{VIEW:1:0\}@",
    ),
    "fill": (lambda _, g, settings: fill(settings, g), "(UN)?WATCH", r"WATCH v:\{VIEW:1:1\}@"),
    "seal": (
        lambda store, g, _: store.seal(g, {0: checkpoint("s", 0), 1: checkpoint("s", 0)}),
        "WATCH",
        r"WATCH v:\{VIEW:1:0\}@",
    ),
    "register": (
        lambda store, g, _: store.change_registry(g.view, Registry({}, {}), known(g)),
        "(UN)?WATCH",
        "WATCH view:VIEW",
    ),
    "remove": (lambda store, g, _: store.unlink(g), r"UNLINK v:\{VIEW:1:0\}@", r"[A-Z]+ v:\{VIEW:1:0\}[@#]"),
    "attend": (
        lambda store, g, _: store.heartbeat([f"tails:{g.view}:1"], "me", 1.0),
        "ZADD members:tails:VIEW",
        "ZADD members:tails:VIEW",
    ),
}
READS: dict[str, tuple[Act, str, str]] = {
    "registry": (lambda store, g, _: store.registry(g.view), "", "HGETALL view:VIEW"),
    "marks": (lambda store, g, _: store.checkpoints(g), "", "[A-Z]+ (view:VIEW|v:.VIEW:1)"),
    "read": (lambda store, g, _: store.read(g, [(0, "a")]), "", "[A-Z]+ (view:VIEW|v:.VIEW:1)"),
    "aread": (lambda store, g, _: asyncio.run(store.aask(Rows(g, ((0, "a"),)))), "", "[A-Z]+ (view:VIEW|v:.VIEW:1)"),
    "finished": (lambda store, g, _: store.finished(g), "", r"HGET v:\{VIEW:1:0\}@"),
    "listen": (lambda store, g, _: store.listen(g, None), "", r"SUBSCRIBE v:\{VIEW:1\}!"),
    "alisten": (lambda store, g, _: listen(store, g), "", r"SUBSCRIBE v:\{VIEW:1\}!"),
}


@pytest.fixture(scope="module")
def generation(server: RedisServer) -> Generation:
    """One with a live bucket and one that is filled, beside users who read its view and who write another one."""
    generation = replace(new_generation(2), id="1")
    store = RedisViewStore(server.settings)
    assert store.create_marks(generation, {0: checkpoint("", 0), 1: replace(checkpoint("", 0), phase=Phase.BULK)})
    store.close()
    with server.client() as client:
        for role, view in (("client", generation.view), ("projector", "another")):
            rules = redis_rules([role], [view]).split()
            client.execute_command("ACL", "SETUSER", role, "reset", "on", f">{SECRET}", *rules)
    return generation


@pytest.fixture
def store_of(server: RedisServer) -> Iterator[Callable[[str], RedisViewStore]]:
    """Stores by the login of a user."""
    stores: list[RedisViewStore] = []

    def open_(name: str) -> RedisViewStore:
        stores.append(RedisViewStore(as_user(server.settings, name, SECRET)))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


@pytest.mark.parametrize("done", [*WRITES, *READS])
@pytest.mark.parametrize("name", ["client", "projector"])
def test_whatever_is_denied_is_named_with_the_user_and_the_view(
    server: RedisServer, generation: Generation, store_of: Callable[[str], RedisViewStore], name: str, done: str
) -> None:
    act, lacks_write, lacks_view = (WRITES | READS)[done]
    store, settings = store_of(name), as_user(server.settings, name, SECRET)
    denied = (lacks_write if name == "client" else lacks_view).replace("VIEW", generation.view)
    if not denied:
        act(store, generation, settings)
        return
    with pytest.raises(ConfigurationError) as raised:
        act(store, generation, settings)
    reported = str(raised.value)
    assert re.search(rf"denies user '{name}' a right: {denied}.* \(.*no permissions", reported), reported
    assert "leftfold topics acl" in reported
    assert SECRET not in reported


def test_a_right_that_is_taken_away_between_flushes_is_missed_by_the_next(
    server: RedisServer, generation: Generation, store_of: Callable[[str], RedisViewStore]
) -> None:
    own = replace(generation, view="another", id="3", buckets=1)
    store = store_of("projector")
    assert store.create_marks(own, {0: checkpoint("", 0)})
    assert store.flush([flush_of(own, 0, "", "t1", row("secret row"))])
    for less, denied in (
        ("-hset", r"HSET v:\{another:3:0\}"),
        ("-publish", r"PUBLISH v:\{another:3\}!"),
        ("resetchannels", r"PUBLISH v:\{another:3\}!"),
    ):
        with server.client() as client:
            client.execute_command("ACL", "SETUSER", "projector", less)
        try:
            with pytest.raises(ConfigurationError, match=f"denies user 'projector' a right: {denied}") as raised:
                store.flush([flush_of(own, 0, "t1", "t2", row("secret row"))])
            assert "secret row" not in str(raised.value)
        finally:
            with server.client() as client:
                client.execute_command("ACL", "SETUSER", "projector", "+hset", "+publish", "&v:{another:*")
    assert store.flush([flush_of(own, 0, "t1", "t2", row("secret row"))])


@pytest.mark.parametrize("role", ["client", "projector"])
def test_a_key_of_a_slot_that_moves_may_be_asked_for(server: RedisServer, generation: Generation, role: str) -> None:
    """One server knows no slots, and says so only to those who have the right."""
    with server.client() as client:
        client.execute_command("AUTH", role, SECRET)
        with pytest.raises(redis.ResponseError, match="cluster support disabled"):
            client.execute_command("ASKING")


def test_what_is_denied_only_within_exec_is_a_missing_right_too(server: RedisServer) -> None:
    commands = [MULTI, packed(b"HSET", b"v:{another:3:0}:secret row", b"a", b"b"), packed(b"TIME"), EXEC]
    why = hiredis.ReplyError(
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC"
    )
    with pytest.raises(ConfigurationError, match=r"HSET v:\{another:3:0\} \(NOPERM"):
        executed(server.settings, [why, b"1"], commands)


@pytest.mark.parametrize(("name", "password"), [("client", "guessed"), ("stranger", SECRET)])
def test_a_login_that_is_not_taken_is_named_without_its_password(
    server: RedisServer, generation: Generation, name: str, password: str
) -> None:
    settings = as_user(server.settings, name, password)
    store = RedisViewStore(settings)
    for act, *_ in (WRITES | READS).values():
        with pytest.raises(ConfigurationError, match=f"denies user '{name}' a right: .*") as raised:
            act(store, generation, settings)
        assert password not in str(raised.value)
    store.close()


def test_commands_are_named_without_what_is_secret_in_them() -> None:
    assert describe_command(packed(b"AUTH", b"client", SECRET.encode())) == "AUTH"
    assert describe_command(("hset", b"v:{sums:1:0}:a secret row", "field", "value")) == "HSET v:{sums:1:0}"
    assert describe_command(("ZADD", "members:tails:sums:abc", 1, "me")) == "ZADD members:tails:sums"
    assert describe_command((b"WATCH", b"view:sums")) == "WATCH view:sums"


@pytest.fixture(scope="module")
def evicting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server that evicts keys of any kind when its memory is full, and lets CONFIG be used by no client."""
    options = {"maxmemory-policy": "allkeys-lru", "rename-command CONFIG": '""'}
    with RedisServer(tmp_path_factory.mktemp("evicting") / "data", options=options) as server:
        yield server


def test_a_server_that_drops_keys_without_a_time_to_live_is_refused(server: RedisServer) -> None:
    with server.client() as client:
        for policy in ("noeviction", "volatile-lru", "volatile-ttl"):
            client.config_set("maxmemory-policy", policy)
            assert refuse_eviction(server.settings) == policy
        typed = f"type: redis-cli -h {server.settings.host} -p {server.settings.port} config set"
        try:
            for policy in ("allkeys-lru", "allkeys-lfu", "allkeys-random"):
                client.config_set("maxmemory-policy", policy)
                advice = f"has maxmemory-policy {policy}, .*maxmemory-policy noeviction"
                with pytest.raises(ConfigurationError, match=advice) as reported:
                    refuse_eviction(server.settings)
                assert typed in str(reported.value)
        finally:
            client.config_set("maxmemory-policy", "noeviction")


def test_where_config_is_forbidden_info_says_it(evicting: RedisServer) -> None:
    with pytest.raises(ConfigurationError, match="allkeys-lru"):
        refuse_eviction(evicting.settings)


def test_a_server_that_says_neither_is_not_refused(server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "silent", "reset", "on", ">x", "+@all", "-config", "-info")
    assert refuse_eviction(RedisSettings(url=f"redis://silent:x@127.0.0.1:{server.port}/0")) == ""


def test_run_refuses_it_before_anything_starts_and_the_doctor_says_that_it_is_wrong(
    evicting: RedisServer, tmp_path: Path
) -> None:
    shell, why = Shell(tmp_path), "maxmemory-policy allkeys-lru, which drops rows of views unnoticed"
    words = ["--app", "tests.cli.tower:app", "--redis", evicting.settings.url]
    refused = shell.here("run", "--kafka", "127.0.0.1:1", *words)
    assert (refused.code, why in refused.err) == (ConfigurationError.exit_code, True)
    result = shell.here("doctor", "--json", *words)
    found = {row["about"]: row for row in result.rows()}["redis"]
    assert (result.code, found["well"], why in found["message"]) == (1, False, True)


def test_a_projector_refuses_it_whenever_it_connects(evicting: RedisServer) -> None:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="allkeys-lru"):
        follow([], kafka, evicting.settings, threading.Event(), lambda what, details: None, options={})
