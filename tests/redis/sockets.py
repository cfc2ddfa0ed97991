"""Real sockets that count, and that break on demand."""

from __future__ import annotations

import socket

from leftfold.redis import RedisSettings
from leftfold.redis.connection.protocol import connect

__all__ = ["Line"]


class _Socket(socket.socket):
    """A socket that reports to its line."""

    line: Line
    broken = False

    def sendall(self, data: bytes, flags: int = 0) -> None:  # type: ignore[override]  # only bytes are sent
        """Sends everything, or what the line lets through, and then is dead."""
        line = self.line
        line.writes += 1
        share, line.let_through = line.let_through, None
        super().sendall(data if share is None else data[: int(len(data) * share)], flags)
        if share is not None:
            line.sent_until_broken = int(len(data) * share)
            self.broken = True
            if share < 1:
                self.shutdown(socket.SHUT_RDWR)

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """What the server says, and nothing more once the line is broken, even if it has come."""
        return b"" if self.broken else super().recv(bufsize, flags)


class Line:
    """Opens sockets, counts their writes, and breaks the next write when told.

    `let_through` is the share of the next write that still goes out; 1 loses only the answer.
    """

    def __init__(self) -> None:
        self.writes = 0
        self.sent_until_broken = 0
        self.let_through: float | None = None

    def connect(self, settings: RedisSettings) -> socket.socket:
        """Opens a connection as the adapter would."""
        plain = connect(settings)
        watched = _Socket(plain.family, plain.type, plain.proto, fileno=plain.detach())
        watched.line = self
        return watched
