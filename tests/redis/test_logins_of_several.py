"""Passwords reach sentinels, masters and nodes, on every kind of connection, and no message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import SecretStr

from leftfold.contracts.buckets import COLUMNS, flush_of, mark, new_generation, row
from leftfold.engine.bulk_store import BulkRow
from leftfold.errors import InfrastructureError
from leftfold.flush import Phase
from leftfold.redis import BulkSink, RedisSettings, RedisViewStore
from tests.redis.cluster_set import ClusterSet
from tests.redis.sentinel_set import SentinelSet

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
    with running(kind(tmp_path, SECRET)) as settings:
        store, generation = RedisViewStore(settings), new_generation(BUCKETS).in_phase(Phase.BULK)
        assert store.create_marks(generation, {b: replace(mark("", 0), phase=Phase.BULK) for b in range(BUCKETS)})
        with BulkSink(settings) as sink:
            for bucket in range(BUCKETS):
                sink.write(generation, bucket, COLUMNS, (), [BulkRow("a", (b"red", b"S"))])
        store.seal(generation, {b: replace(mark("s", 0), rows=1) for b in range(BUCKETS)})
        sealed = generation.in_phase(Phase.SEALED)
        assert store.flush([flush_of(sealed, bucket, "s", "t", row("b")) for bucket in range(BUCKETS)])
        assert len(asyncio.run(store.aread(sealed, [(b, "b") for b in range(BUCKETS)])).marks) == BUCKETS
        store.close()
        stranger = RedisViewStore(settings.model_copy(update={"password": SecretStr("wr0ng")}))
        for refused in (
            lambda: stranger.flush([flush_of(sealed, 0, "t", "t2")]),
            lambda: stranger.marks(sealed),
            lambda: asyncio.run(stranger.aread(sealed, [(0, "a")])),
        ):
            with pytest.raises(InfrastructureError, match="WRONGPASS|invalid username-password") as caught:
                refused()
            assert "wr0ng" not in str(caught.value)
            assert SECRET not in str(caught.value)
        stranger.close()


def test_a_wrong_password_of_the_sentinels_is_told(tmp_path: Path) -> None:
    with running(SentinelSet(tmp_path, SECRET)) as settings:
        stranger = RedisViewStore(settings.model_copy(update={"sentinel_password": SecretStr("wr0ng")}))
        with pytest.raises(InfrastructureError, match="no sentinel names a master .*WRONGPASS") as caught:
            stranger.registry("things")
        assert "wr0ng" not in str(caught.value)
        stranger.close()
