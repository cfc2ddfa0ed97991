"""A real and a simulated Redis that get the same bytes."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import hiredis

from leftfold.testing.simulation.redis_server import RedisServer as Simulated
from tests.redis.server import RedisServer as Real

__all__ = ["CONNECTIONS", "Both", "Command", "Step", "packed", "real_server"]

Command = tuple[bytes, ...]
Step = tuple[int, Sequence[Command]]

_PATIENCE_SECONDS = 60.0
CONNECTIONS = 3


def packed(*parts: bytes) -> bytes:
    """One command."""
    command: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # the stub wants a tuple of one
    return command


class Both:
    """Connections to an empty real server and to a new simulated one; what goes to one goes to the other."""

    def __init__(self, server: Real, stack: ExitStack) -> None:
        self._server, self._stack = server, stack
        self.simulated = Simulated(time.time)
        self._sockets: list[socket.socket] = []
        self._heard: list[list[bytes]] = []
        for _ in range(CONNECTIONS):
            self.connect()
        self._sockets[0].sendall(packed(b"FLUSHALL"))
        assert self._read(self._sockets[0], b"+OK\r\n") == b"+OK\r\n"
        self.sessions = [self.simulated.open(heard.append) for heard in self._heard]  # type: ignore[arg-type]

    def connect(self) -> None:
        """Opens a connection to the real server."""
        connection = socket.create_connection(("127.0.0.1", self._server.port), _PATIENCE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(self._stack.enter_context(connection))
        self._heard.append([])

    def say(self, number: int, *commands: Command) -> bytes:
        """Sends commands over one of the connections; both answers, which are equal."""
        return self.send(number, b"".join(packed(*command) for command in commands))

    def send(self, number: int, data: bytes) -> bytes:
        """Sends bytes over one of the connections; both answers, which are equal."""
        expected = self.sessions[number].receive(data)
        self._sockets[number].sendall(data)
        found = self._read(self._sockets[number], expected)
        assert found == expected, f"real {found!r}, simulated {expected!r} to {data!r}"
        return found

    def heard(self, number: int) -> bytes:
        """What came over a connection by itself."""
        expected = b"".join(self._heard[number])
        self._heard[number].clear()
        assert self._read(self._sockets[number], expected) == expected
        return expected

    def end(self) -> None:
        """Nothing more has come over any connection."""
        for number in range(CONNECTIONS):
            self.say(number, (b"PING",))

    def _read(self, connection: socket.socket, expected: bytes) -> bytes:
        """As many replies as are expected, or what has come of them when no more comes."""
        wanted, reader, data = _count(hiredis.Reader(), expected), hiredis.Reader(), b""
        found = 0
        while found < wanted:
            try:
                more = connection.recv(65536)
            except TimeoutError:
                break
            if not more:
                break
            data += more
            found += _count(reader, more)
        return data


def _count(reader: hiredis.Reader, data: bytes) -> int:
    """How many replies are complete with these bytes."""
    reader.feed(data)
    count = 0
    while reader.gets() is not False:
        count += 1
    return count


def real_server(directory: Path, password: str | None = None) -> Real:
    """A real server that keeps nothing on disk."""
    return Real(directory, password, options={"appendonly": "no"})
