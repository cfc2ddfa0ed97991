"""Connections reach every kind of address, and say what refused them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.ports.flush import Generation
from leftfold.ports.queries import Rows
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.testing.contracts.readers import flush_of, new_generation, row
from tests.redis.flushes import new_marked
from tests.redis.server import RedisServer
from tests.waiting import WAIT_SECONDS

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("locked") / "data", password="s3cret") as server:
        yield server


def certificate(place: Path) -> tuple[Path, Path]:
    cert, key = place / "cert.pem", place / "key.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key), "-out"]
    subprocess.run([*made, str(cert), *subject], check=True, capture_output=True)
    return cert, key


@asynccontextmanager
async def terminated(port: int, cert: Path, key: Path) -> AsyncIterator[int]:
    """The port of a TLS end that hands everything on to a plain port."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trust.load_cert_chain(cert, key)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, outer), pump(inner, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=trust)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def waits_and_reads(settings: RedisSettings) -> list[str]:
    """Writes a row, hears of it and reads it, all over one address."""
    store = RedisViewStore(settings)
    try:
        generation = await asyncio.to_thread(new_marked, store, 1)
        waiter = await store.alisten(generation, None)
        assert await asyncio.to_thread(store.flush, [flush_of(generation, 0, "", "t1", row("a"))])
        async with asyncio.timeout(WAIT_SECONDS):  # `wait` itself returns as well when its time is up
            await waiter._notified.wait()
        waiter.close()
        snapshot = await store.aask(Rows(generation, ((0, "a"),)))
        assert snapshot.rows[0] is not None
        return await asyncio.to_thread(store.keys, generation, 0, "", 9)
    finally:
        await store.aclose()


@pytest.mark.usefixtures("no_net")
@pytest.mark.parametrize("url", ["redis://127.0.0.1:{0.port}/7", "unix://{0.unix_socket}?db=7"])
def test_every_kind_of_connection_reaches_an_address_a_socket_and_a_database(locked: RedisServer, url: str) -> None:
    with locked.client() as client:
        client.flushall()
        settings = locked.settings.model_copy(update={"url": url.format(locked)})
        assert asyncio.run(waits_and_reads(settings)) == ["a"]
        client.select(7)
        assert client.dbsize() == 6


@pytest.mark.usefixtures("no_net")
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
                await stranger.aask(Rows(new_generation(), ((0, "a"),)))
            await stranger.aclose()
            return found

    assert asyncio.run(encrypted()) == ["a"]


@pytest.mark.parametrize("password", [None, "wr0ng"])
def test_a_refused_login_is_reported_without_the_password(locked: RedisServer, password: str | None) -> None:
    secret = None if password is None else SecretStr(password)
    stranger = RedisViewStore(locked.settings.model_copy(update={"password": secret}))
    generation: Generation = new_generation()

    async def refused() -> None:
        for ask in (lambda: stranger.aask(Rows(generation, ((0, "a"),))), lambda: stranger.alisten(generation, None)):
            denied = rf"127\.0\.0\.1:{locked.port} denies user 'default' a right: "
            with pytest.raises(ConfigurationError, match=denied) as caught:
                await ask()
            assert "wr0ng" not in str(caught.value)

    asyncio.run(refused())
    with pytest.raises(ConfigurationError, match="denies user 'default' a right: "):
        stranger.listen(generation, None)
    stranger.close()


def test_an_address_where_no_server_listens_is_named(locked: RedisServer) -> None:
    nowhere = RedisViewStore(RedisSettings(url="redis://127.0.0.1:1/0"))

    async def ask() -> None:
        with pytest.raises(
            InfrastructureError, match=r"redis at 127\.0\.0\.1:1 is not reachable: .*is the address right"
        ):
            await nowhere.aask(Rows(new_generation(), ((0, "a"),)))

    asyncio.run(ask())
    for blocked in (
        lambda: nowhere.listen(new_generation(), None),
        lambda: nowhere.checkpoints(new_generation()),
        lambda: nowhere.flush([flush_of(new_generation(), 0, "", "t", row("a"))]),
    ):
        with pytest.raises(InfrastructureError, match="is the address right"):
            blocked()
    nowhere.close()
