"""A bare connection: packed commands out, replies in, nothing retried."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import hiredis

from leftfold.redis.failures import refuse_errors
from leftfold.redis.packing import packed
from leftfold.redis.settings import RedisSettings

__all__ = ["Dial", "Wire", "dial", "greeting"]

Dial: TypeAlias = Callable[[RedisSettings], socket.socket]

CHUNK_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024


def dial(settings: RedisSettings) -> socket.socket:
    """Opens a connection, without logging in."""
    if settings.socket_path is not None:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.settimeout(settings.connect_timeout)
        local.connect(settings.socket_path)
        return local
    plain = socket.create_connection((settings.host, settings.port), settings.connect_timeout)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not settings.encrypted:
        return plain
    trust = ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file else None)
    return trust.wrap_socket(plain, server_hostname=settings.host)


class Wire:
    """One connection, logged in; one thread uses it.

    Every method raises OSError when the connection is lost, times out or speaks something else: what was sent may or
    may not have happened then, and the connection is of no more use.

    Raises:
        ConfigurationError: the server refuses the login. InfrastructureError: it refuses the database.
    """

    def __init__(self, settings: RedisSettings, dial: Dial = dial) -> None:
        self._reader = hiredis.Reader(protocolError=ConnectionError)
        self._owed, self._timeout = 0, settings.timeout
        self._socket = dial(settings)
        try:
            self._socket.settimeout(self._timeout)
            hello = greeting(settings)
            refuse_errors(settings, self.exchange(hello), hello)
        except BaseException:
            self.close()
            raise

    def send(self, commands: Sequence[bytes]) -> None:
        """Writes packed commands at once."""
        self._socket.sendall(b"".join(commands))
        self._owed += len(commands)

    def receive(self, count: int | None = None, *, within: float | None = None) -> list[Any]:
        """Waits for replies to what was sent, all that are owed or so many; errors of commands are among them.

        Args:
            within: seconds for each part of them to come, instead of those in the settings.
        """
        if within is not None:
            self._socket.settimeout(within)
        replies: list[Any] = []
        wanted, gets = self._owed if count is None else count, self._reader.gets
        while len(replies) < wanted:
            reply = gets()
            if reply is False:
                self._fill()
            else:
                replies.append(reply)
        self._owed -= wanted
        if within is not None:
            self._socket.settimeout(self._timeout)
        return replies

    def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        """Sends everything and returns every reply."""
        return self.begin(commands) + self.receive()

    def begin(self, commands: Sequence[bytes]) -> list[Any]:
        """Sends everything and returns the replies so far; `receive` gives those still owed.

        A long list goes in chunks, and the replies to each are read after the next is sent, so that neither side
        waits with full buffers for the other.
        """
        replies: list[Any] = []
        for chunk in _chunks(commands):
            self.send(chunk)
            replies += self.receive(self._owed - len(chunk))
        return replies

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _fill(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(data)


def greeting(settings: RedisSettings) -> list[bytes]:
    """What a new connection sends first: the login, and which database."""
    commands = []
    if settings.password is not None:
        user = () if settings.username is None else (settings.username.encode(),)
        commands.append(packed(b"AUTH", *user, settings.password.get_secret_value().encode()))
    if settings.database:
        commands.append(packed(b"SELECT", b"%d" % settings.database))
    return commands


def _chunks(commands: Iterable[bytes]) -> Iterator[list[bytes]]:
    chunk: list[bytes] = []
    size = 0
    for command in commands:
        chunk.append(command)
        size += len(command)
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
