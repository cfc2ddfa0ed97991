"""A gateway on a port of loopback, in a thread of the test, and callers that write HTTP byte by byte."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, Self

from fastapi import FastAPI

from leftfold.http import GatewayServer
from tests.waiting import WAIT_SECONDS, wait_until

__all__ = ["Answer", "Caller", "serving"]


@contextmanager
def serving(api: FastAPI, **options: Any) -> Iterator[GatewayServer]:
    """A server of an API until the block ends."""
    server = GatewayServer(api, **options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the gateway", running=thread.is_alive)
        yield server
    finally:
        server.should_exit = True
        thread.join(WAIT_SECONDS)


class Answer(NamedTuple):
    """An answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    def problem(self) -> dict[str, Any]:
        """The problem in it."""
        assert self.headers["content-type"] == "application/problem+json", self
        found: dict[str, Any] = json.loads(self.body)
        assert found["status"] == self.status
        return found


class Listening(Protocol):
    """A server on this machine."""

    @property
    def port(self) -> int: ...


class Caller:
    """A connection to a gateway."""

    def __init__(self, server: Listening, buffer: int = 0) -> None:
        self.socket = socket.socket()
        if buffer:  # of what arrives, in bytes; the kernel's own grows to some megabytes
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(WAIT_SECONDS)
        self.socket.connect(("127.0.0.1", server.port))
        self._reading = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reading.close()
        self.socket.close()

    def send(self, *parts: bytes) -> Caller:
        """Writes these bytes."""
        for part in parts:
            self.socket.sendall(part)
        return self

    def get(self, path: str) -> Answer:
        """The answer to a whole request."""
        return self.send(f"GET {path} HTTP/1.1\r\nHost: gateway\r\n\r\n".encode()).answer()

    def answer(self) -> Answer:
        """The next answer that has a length."""
        status, headers = self.head()
        return Answer(status, headers, self._reading.read(int(headers.get("content-length", "0"))))

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        status = int(self._reading.readline().split()[1])
        return status, dict(self._header(line) for line in iter(self._reading.readline, b"\r\n"))

    def line(self) -> bytes:
        """The next line of a body, also of one in chunks; b"" when the connection has ended."""
        try:
            return self._reading.readline()
        except ConnectionResetError:
            return b""

    def chunks(self) -> bytes:
        """The body of the next answer, which has chunks."""
        self.head()
        found = b""
        while size := int(self._reading.readline(), 16):
            found += self._reading.read(size)
            self._reading.readline()
        return found

    def rest(self) -> bytes:
        """What still comes until the gateway ends the connection."""
        return self._reading.read()

    @staticmethod
    def _header(line: bytes) -> tuple[str, str]:
        name, _, value = line.decode().partition(":")
        return name.lower(), value.strip()
