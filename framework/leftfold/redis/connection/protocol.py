"""Redis commands and replies as bytes, and a raw connection."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Generic, TypeAlias

import hiredis
from typing_extensions import TypeVar

from leftfold.model.row_codec import Fields
from leftfold.ports.flush import Generation
from leftfold.redis.connection.errors import Command, Part, refuse_errors
from leftfold.redis.connection.settings import RedisSettings
from leftfold.redis.keys import BucketKeys, entry, registry_key

__all__ = [
    "EXEC", "MULTI", "UNWATCH", "Connector", "RawConnection", "RedisQuery", "RowPacker", "SortedSets", "check_login",
    "connect", "hash_of", "keep_alive", "live_command", "live_in", "login_commands", "packed", "why_no_master",
]  # fmt: skip


A = TypeVar("A")
VERSION = b"@version"
_MEMBERS = 500


def packed(*parts: Part) -> bytes:
    """One command in the Redis protocol (RESP)."""
    command: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # the stub wants a tuple of one
    return command


MULTI, EXEC, UNWATCH, ROLE = packed(b"MULTI"), packed(b"EXEC"), packed(b"UNWATCH"), packed(b"ROLE")


class RowPacker:
    """Packs the rows of one bucket with a format string per row shape, three times as fast as `packed`."""

    __slots__ = ("_keys", "_plain", "_versioned")

    def __init__(self, keys: BucketKeys, columns: Fields) -> None:
        self._keys = keys.rows
        self._plain, self._versioned = _form(columns), _form((*columns, VERSION))

    def put(self, key: str, fields: Fields, version: int | None) -> bytes:
        """The command that writes every field of a row."""
        name = self._keys + key.encode()
        parts = (name, *fields) if version is None else (name, *fields, b"%d" % version)
        slots: list[int | bytes] = [0] * (2 * len(parts))
        slots[::2] = map(len, parts)
        slots[1::2] = parts
        return (self._plain if version is None else self._versioned) % tuple(slots)

    def drop(self, key: str) -> bytes:
        """The command that removes a row."""
        return packed(b"UNLINK", self._keys + key.encode())


@lru_cache(maxsize=1024)
def _form(columns: Fields) -> bytes:
    words = [b"*%d\r\n$4\r\nHSET\r\n" % (2 + 2 * len(columns)), b"$%d\r\n%b\r\n"]
    for column in columns:
        words += (b"$%d\r\n%b\r\n" % (len(column), column)).replace(b"%", b"%%"), b"$%d\r\n%b\r\n"
    return b"".join(words)


class SortedSets:
    """Collects changes to the key list and the indexes of a bucket; the last change of a member counts."""

    __slots__ = ("_indexes", "_keys", "_moves")

    def __init__(self, keys: BucketKeys, indexes: Iterable[str]) -> None:
        self._indexes = tuple(map(keys.index, indexes))
        self._keys = keys.listed
        self._moves: dict[bytes, dict[bytes, bool]] = {name: {} for name in (self._keys, *self._indexes)}

    def list(self, key: str, listed: bool) -> None:
        """Adds a row to the key list, or removes it."""
        self._moves[self._keys][key.encode()] = listed

    def move(self, key: str, before: tuple[str, ...] | None, after: tuple[str, ...] | None) -> None:
        """Changes a row's index entries; None = no row."""
        if before == after:
            return
        for entries, present in ((before, False), (after, True)):
            if entries is not None:
                for name, value in zip(self._indexes, entries, strict=True):
                    self._moves[name][entry(value, key)] = present

    def commands(self) -> Iterator[bytes]:
        """The packed commands for all collected changes."""
        for name, members in self._moves.items():
            absent = [member for member, present in members.items() if not present]
            there = [member for member, present in members.items() if present]
            for some in _slices(absent):
                yield packed(b"ZREM", name, *some)
            for some in _slices(there):
                scored = [b"0"] * (2 * len(some))
                scored[1::2] = some
                yield packed(b"ZADD", name, *scored)


def _slices(members: list[bytes]) -> Iterator[list[bytes]]:
    rest = iter(members)
    while some := list(islice(rest, _MEMBERS)):
        yield some


Connector: TypeAlias = Callable[[RedisSettings], socket.socket]
"""Opens a socket to a server, without logging in."""

CHUNK_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024


def connect(settings: RedisSettings) -> socket.socket:
    """Opens a socket to the server, without logging in."""
    if settings.socket_path is not None:
        local = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        local.settimeout(settings.connect_timeout)
        local.connect(settings.socket_path)
        return local
    plain = socket.create_connection((settings.host, settings.port), settings.connect_timeout)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(plain)
    if not settings.encrypted:
        return plain
    trust = ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file else None)
    return trust.wrap_socket(plain, server_hostname=settings.host)


_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPALIVE": 30, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""The options of redis-py's connections, in seconds and probes; the second is macOS's name of the first."""


def keep_alive(connection: socket.socket) -> None:
    """Probes an idle connection as redis-py does, so that no firewall forgets it; the kernel would wait two hours."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class RawConnection:
    """One Redis connection, logged in; for one thread.

    It sends commands that are packed already, and their replies can be read later. A redis-py pipeline takes three
    round trips for a flush instead of one, and 1.8 times as long for 1,000 rows.

    Every method raises OSError when the connection is lost, times out or receives something other than RESP: the
    commands sent may or may not have run, and the connection cannot be used again.

    Args:
        require_master: refuses a server that is a replica.

    Raises:
        ConfigurationError: the server refuses the login. InfrastructureError: it refuses the database.
    """

    def __init__(self, settings: RedisSettings, connect: Connector = connect, *, require_master: bool = False) -> None:
        self._reader = hiredis.Reader(protocolError=ConnectionError)
        self._pending, self._timeout = 0, settings.timeout
        self._socket = connect(settings)
        try:
            self._socket.settimeout(self._timeout)
            commands = login_commands(settings, require_master=require_master)
            check_login(settings, self.exchange(commands), commands)
        except BaseException:
            self.close()
            raise

    def send(self, commands: Sequence[bytes]) -> None:
        """Writes packed commands at once."""
        self._socket.sendall(b"".join(commands))
        self._pending += len(commands)

    def receive(self, count: int | None = None, *, within: float | None = None) -> list[Any]:
        """Waits for replies, `count` or all that are due; error replies are among them.

        Args:
            within: seconds for each read, instead of the timeout in the settings.
        """
        if within is not None:
            self._socket.settimeout(within)
        replies: list[Any] = []
        wanted, gets = self._pending if count is None else count, self._reader.gets
        while len(replies) < wanted:
            reply = gets()
            if reply is False:
                self._fill()
            else:
                replies.append(reply)
        self._pending -= wanted
        if within is not None:
            self._socket.settimeout(self._timeout)
        return replies

    def exchange(self, commands: Sequence[bytes]) -> list[Any]:
        """Sends all commands and returns every reply."""
        return self.begin(commands) + self.receive()

    def begin(self, commands: Sequence[bytes]) -> list[Any]:
        """Sends all commands and returns the replies so far; `receive` gives the rest.

        A long list is sent in chunks, and the replies to each are read after the next is sent, so that neither side
        waits with full buffers for the other.
        """
        replies: list[Any] = []
        for chunk in chunks(commands, len, CHUNK_BYTES):
            self.send(chunk)
            replies += self.receive(self._pending - len(chunk))
        return replies

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def _fill(self) -> None:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._reader.feed(data)


def login_commands(settings: RedisSettings, *, require_master: bool) -> list[bytes]:
    """The first commands of a new connection: the login, the database, and where it matters the server's role."""
    commands = []
    if settings.password is not None:
        user = () if settings.username is None else (settings.username.encode(),)
        commands.append(packed(b"AUTH", *user, settings.password.get_secret_value().encode()))
    if settings.database:
        commands.append(packed(b"SELECT", b"%d" % settings.database))
    return [*commands, ROLE] if require_master else commands


def check_login(settings: RedisSettings, replies: Sequence[Any], commands: Sequence[bytes]) -> None:
    """Checks the replies to `login_commands`.

    Raises:
        ConfigurationError: the server refuses the login. InfrastructureError: it refuses the database.
        ConnectionError: it is not a master.
    """
    refuse_errors(settings, replies, commands)
    if commands[-1:] == [ROLE] and (why := why_no_master(replies[-1], settings)):
        raise ConnectionError(why)


def why_no_master(role: Any, server: RedisSettings) -> str:
    """The reason why a server with this ROLE reply cannot be used as a master; '' when it is one."""
    return "" if role[0] == b"master" else f"{server.address} is a {role[0].decode()} now, not the master"


def chunks(items: Iterable[A], weight: Callable[[A], int], heaviest: int, most: int = sys.maxsize) -> Iterator[list[A]]:
    """Items in chunks, each of which ends once it weighs `heaviest` or has `most` items."""
    chunk: list[A] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += weight(item)
        if size >= heaviest or len(chunk) >= most:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


@dataclass(slots=True)
class RedisQuery(Generic[A]):
    """A query compiled for any client, threaded or not.

    Args:
        commands: the commands to send, in this order; each one's second word is its only key.
        answer: makes the answer from the replies, one per command; error replies were raised before.
    """

    commands: Sequence[Command]
    answer: Callable[[Sequence[Any]], A]


def hash_of(reply: Any) -> Mapping[bytes, bytes]:
    """The hash in a reply: redis-py makes a dict, the protocol has names and values in turn."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def live_command(generation: Generation) -> Command:
    """The command that reads which generation is live for the hash of a generation."""
    return ("HGET", registry_key(generation.view), f"live:{generation.pointer}")


def live_in(reply: bytes | None) -> str:
    """The generation id in the reply to `live_command`, '' for none."""
    return (reply or b"").decode("utf-8", "replace")
