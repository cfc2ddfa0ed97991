"""asyncio connections reach every kind of address, and say what refused them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.ports.flush import Generation
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.testing.contracts.readers import checkpoint, flush_of, new_generation, row
from tests.redis.server import RedisServer
from tests.redis.tls import certificate, terminated

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server with a password."""
    server = RedisServer(tmp_path_factory.mktemp("locked") / "data", password="s3cret")
    server.start()
    yield server
    server.kill()


async def waits_and_reads(settings: RedisSettings) -> list[str]:
    """Writes a row, hears of it and reads it, all over one address."""
    store = RedisViewStore(settings)
    generation = new_generation(buckets=1)
    try:
        assert await asyncio.to_thread(store.create_marks, generation, {0: checkpoint("", 0)})
        bell = await store.alisten(generation, None)
        assert await asyncio.to_thread(store.flush, [flush_of(generation, 0, "", "t1", row("a"))])
        await bell.wait(10.0)
        bell.close()
        snapshot = await store.aread(generation, [(0, "a")])
        assert snapshot.rows[0] is not None
        return await asyncio.to_thread(store.keys, generation, 0, "", 9)
    finally:
        await store.aclose()


def test_a_password_and_a_database(locked: RedisServer) -> None:
    settings = locked.settings.model_copy(update={"url": f"redis://127.0.0.1:{locked.port}/7"})
    assert asyncio.run(waits_and_reads(settings)) == ["a"]
    with locked.client() as client:
        client.select(7)
        assert client.dbsize() == 6


def test_a_socket_in_the_file_system(locked: RedisServer) -> None:
    settings = locked.settings.model_copy(update={"url": f"unix://{locked.unix_socket}?db=3"})
    assert asyncio.run(waits_and_reads(settings)) == ["a"]


def test_tls_with_a_certificate_of_ones_own(locked: RedisServer, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)

    async def encrypted() -> list[str]:
        async with terminated(locked.port, cert, key) as port:
            trusting = locked.settings.model_copy(
                update={"url": f"rediss://127.0.0.1:{port}/4", "ca_file": cert, "connect_timeout": 10.0}
            )
            found = await waits_and_reads(trusting)
            stranger = RedisViewStore(trusting.model_copy(update={"ca_file": None}))
            with pytest.raises(InfrastructureError, match=rf"127\.0\.0\.1:{port} is not reachable: .*certificate"):
                await stranger.aread(new_generation(), [(0, "a")])
            await stranger.aclose()
            return found

    assert asyncio.run(encrypted()) == ["a"]


@pytest.mark.parametrize("password", [None, "wr0ng"])
def test_a_refused_login_is_told_without_the_password(locked: RedisServer, password: str | None) -> None:
    secret = None if password is None else SecretStr(password)
    stranger = RedisViewStore(locked.settings.model_copy(update={"password": secret}))
    generation: Generation = new_generation()

    async def refused() -> None:
        for ask in (lambda: stranger.aread(generation, [(0, "a")]), lambda: stranger.alisten(generation, None)):
            denied = rf"127\.0\.0\.1:{locked.port} denies user 'default' a right: "
            with pytest.raises(ConfigurationError, match=denied) as caught:
                await ask()
            assert "wr0ng" not in str(caught.value)

    asyncio.run(refused())
    with pytest.raises(ConfigurationError, match="denies user 'default' a right: "):
        stranger.listen(generation, None)
    stranger.close()


def test_an_address_where_nobody_listens_is_told(locked: RedisServer) -> None:
    nowhere = RedisViewStore(RedisSettings(url="redis://127.0.0.1:1/0"))

    async def ask() -> None:
        with pytest.raises(InfrastructureError, match=r"redis at 127\.0\.0\.1:1 is not reachable: .*leftfold up"):
            await nowhere.aread(new_generation(), [(0, "a")])

    asyncio.run(ask())
    with pytest.raises(InfrastructureError, match="leftfold up"):
        nowhere.listen(new_generation(), None)
    nowhere.close()
