"""Passwords reach sentinels, masters and nodes, on every kind of connection, and no message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from leftfold.errors import ConfigurationError
from leftfold.model.rights import redis_rules
from leftfold.ports.bulk import BulkRow
from leftfold.ports.flush import Generation, Phase
from leftfold.redis import RedisBulkSink, RedisSettings, RedisViewStore
from leftfold.testing.contracts.readers import COLUMNS, checkpoint, flush_of, new_generation, row
from tests.redis.cluster_set import ClusterSet
from tests.redis.sentinel_set import SentinelSet
from tests.redis.server import RedisServer

pytestmark = pytest.mark.servers

SECRET = "s3cret"
BUCKETS = 4


@contextmanager
def running(servers: SentinelSet | ClusterSet) -> Iterator[RedisSettings]:
    """A set that wants to be logged in to."""
    try:
        servers.start()
        yield servers.settings
    finally:
        servers.kill()


@pytest.mark.parametrize("kind", [SentinelSet, ClusterSet])
def test_a_password_opens_every_kind_of_connection(
    kind: Callable[[Path, str], SentinelSet | ClusterSet], tmp_path: Path
) -> None:
    servers = kind(tmp_path, SECRET)
    with running(servers) as settings:
        store, generation = RedisViewStore(settings), new_generation(BUCKETS).in_phase(Phase.BULK)
        assert store.create_marks(generation, {b: replace(checkpoint("", 0), phase=Phase.BULK) for b in range(BUCKETS)})
        with RedisBulkSink(settings) as sink:
            for bucket in range(BUCKETS):
                sink.write(generation, bucket, COLUMNS, (), [BulkRow("a", (b"red", b"S"))])
        store.seal(generation, {b: replace(checkpoint("s", 0), rows=1) for b in range(BUCKETS)})
        sealed = generation.in_phase(Phase.SEALED)
        assert store.flush([flush_of(sealed, bucket, "s", "t", row("b")) for bucket in range(BUCKETS)])
        assert len(asyncio.run(store.aread(sealed, [(b, "b") for b in range(BUCKETS)])).checkpoints) == BUCKETS
        store.close()
        stranger = RedisViewStore(settings.model_copy(update={"password": SecretStr("wr0ng")}))
        for refused in (
            lambda: stranger.flush([flush_of(sealed, 0, "t", "t2")]),
            lambda: stranger.checkpoints(sealed),
            lambda: asyncio.run(stranger.aread(sealed, [(0, "a")])),
        ):
            with pytest.raises(ConfigurationError, match="WRONGPASS|invalid username-password") as caught:
                refused()
            assert "wr0ng" not in str(caught.value)
            assert SECRET not in str(caught.value)
        stranger.close()
        _denies_readers(servers.nodes if isinstance(servers, ClusterSet) else servers.servers, settings, sealed)


def _denies_readers(servers: list[RedisServer], settings: RedisSettings, generation: Generation) -> None:
    """One who may only read is told what else was denied, on every kind of connection."""
    for server in servers:
        with server.client() as client:
            rules = redis_rules("client", [generation.view]).split()
            client.execute_command("ACL", "SETUSER", "client", "reset", "on", f">{SECRET}", *rules)
    scheme, _, place = settings.url.partition("://")
    reader = RedisViewStore(settings.model_copy(update={"url": f"{scheme}://client@{place}"}))
    assert reader.checkpoints(generation).keys() == set(range(BUCKETS))
    assert len(asyncio.run(reader.aread(generation, [(b, "b") for b in range(BUCKETS)])).checkpoints) == BUCKETS
    hidden = replace(generation, view="another")
    for denied, what in (
        (lambda: reader.flush([flush_of(generation, 0, "t", "t2")]), "UNWATCH"),
        (lambda: reader.unlink(generation), "UNLINK v:"),
        (lambda: reader.registry("another"), "HGETALL view:another"),
        (lambda: reader.checkpoints(hidden), "[A-Z]+ (v:{|view:)another"),
        (lambda: asyncio.run(reader.aread(hidden, [(0, "a")])), "[A-Z]+ (v:{|view:)another"),
    ):
        with pytest.raises(ConfigurationError, match=f"denies user 'client' a right: {what}"):
            denied()
    reader.close()


def test_a_wrong_password_of_the_sentinels_is_told(tmp_path: Path) -> None:
    with running(SentinelSet(tmp_path, SECRET)) as settings:
        stranger = RedisViewStore(settings.model_copy(update={"sentinel_password": SecretStr("wr0ng")}))
        with pytest.raises(ConfigurationError, match="no sentinel names a master .*invalid username") as caught:
            stranger.registry("things")
        assert "wr0ng" not in str(caught.value)
        stranger.close()
