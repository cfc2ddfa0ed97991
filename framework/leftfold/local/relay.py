"""A TLS relay in front of a server on this machine without TLS: the embedded Redis of the wheel."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from pathlib import Path

from leftfold.local.settings import HOST

__all__ = ["main", "serve"]

_CHUNK = 65_536


async def serve(port: int, to: int, certificate: Path) -> None:
    """Relays TLS connections from a loopback port to another port in plain text, until cancelled.

    Args:
        certificate: a PEM file of the key and the certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inward, outward = await asyncio.open_connection(HOST, to)
        except OSError:
            writer.close()
            return
        both = [asyncio.ensure_future(_pass(reader, outward)), asyncio.ensure_future(_pass(inward, writer))]
        # When one side closes, the other connection is closed too, as the server itself would do.
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for direction, side in zip(both, (writer, outward), strict=True):
            direction.cancel()
            side.close()

    server = await asyncio.start_server(connected, HOST, port, ssl=context)
    async with server:
        await server.serve_forever()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()


def main() -> None:
    """Runs the relay with the command line's arguments: a port, the port behind it, and a certificate file."""
    port, to, certificate = sys.argv[1:]
    asyncio.run(serve(int(port), int(to), Path(certificate)))


if __name__ == "__main__":
    main()
