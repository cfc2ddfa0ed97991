"""TLS in front of a plain server, with a certificate made for the run."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ["certificate", "terminated"]


def certificate(place: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key."""
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
