"""Redis keys, commands and replies as bytes, and a bare connection. Key names are part of the wire format."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Protocol, TypeAlias

import hiredis
from typing_extensions import TypeVar

from leftfold.model.keys import is_view_name
from leftfold.model.rows import Fields
from leftfold.ports.flush import Generation
from leftfold.redis.connection.errors import Part, refuse_errors
from leftfold.redis.connection.settings import RedisSettings

__all__ = [
    "EXEC",
    "FINISHED",
    "MULTI",
    "OF_BUCKETS",
    "REGISTRIES",
    "UNWATCH",
    "Asker",
    "BucketKeys",
    "Command",
    "Dial",
    "RedisQuery",
    "RowPacker",
    "SortedSets",
    "Wire",
    "ask_live",
    "bucket_of",
    "channel",
    "dial",
    "entry",
    "escaped",
    "hash_of",
    "live_in",
    "login_commands",
    "members_key",
    "packed",
    "registered_view",
    "registry_key",
    "split_entry",
]


# Within an ordered value a NUL is followed by a DEL, which sorts behind every row key: a NUL alone ends the value.
ESCAPED_NUL = b"\0\x7f"
OF_BUCKETS = b"v:{*}[@#~]"
"""SCAN pattern that finds at least one key of every bucket: checkpoint, row list or changes."""
_OF_BUCKET = re.compile(rb"v:\{([^:{}]+):([^:{}]+):(\d+)\}[@#~]")
REGISTRIES = b"view:*"
"""SCAN pattern that finds the registry of every view."""
FINISHED = b"finished"
"""The field of a bulk bucket's checkpoint with its result, written once the bucket is complete."""


def registry_key(view: str) -> bytes:
    """The key of the hash with a view's generations and live pointers."""
    return b"view:" + view.encode()


def registered_view(key: bytes) -> str | None:
    """The view of a key that `REGISTRIES` found; None when the key is not Leftfold's."""
    name = key.removeprefix(b"view:").decode(errors="replace")
    return name if is_view_name(name) else None


def members_key(group: str) -> bytes:
    """The key of the sorted set with the members of a group."""
    return b"members:" + group.encode()


class BucketKeys:
    """The keys of one bucket; they share a hash tag, so a cluster keeps them in one slot."""

    __slots__ = ("changes", "checkpoint", "listed", "rows")

    def __init__(self, generation: Generation, bucket: int) -> None:
        base = f"v:{{{generation.view}:{generation.id}:{bucket}}}".encode()
        self.checkpoint, self.listed, self.rows, self.changes = base + b"@", base + b"#", base + b":", base + b"~"

    def row(self, key: str) -> bytes:
        """The key of a row's hash, by its encoded row key."""
        return self.rows + key.encode()

    def index(self, field: str) -> bytes:
        """The key of an index, a sorted set with members made by `entry`."""
        return self.listed + field.encode()


def bucket_of(key: bytes) -> tuple[str, str, int] | None:
    """The view, generation id and bucket of a key that `OF_BUCKETS` found; None when the key is not Leftfold's."""
    found = _OF_BUCKET.fullmatch(key)
    return None if found is None else (found[1].decode(), found[2].decode(), int(found[3]))


def channel(view: str, generation_id: str) -> bytes:
    """The pub/sub channel that announces the flushes of a generation."""
    return f"v:{{{view}:{generation_id}}}!".encode()


def escaped(value: str) -> bytes:
    """An ordered value in the form that index entries hold."""
    return value.encode().replace(b"\0", ESCAPED_NUL)


def entry(value: str, key: str) -> bytes:
    """A member of an index: the ordered value, a NUL, then the row key, which never holds a NUL."""
    return b"%b\0%b" % (escaped(value), key.encode())


def split_entry(member: bytes) -> tuple[str, str]:
    """The ordered value and the row key of a member of an index."""
    value, _, key = member.rpartition(b"\0")
    return value.replace(ESCAPED_NUL, b"\0").decode(), key.decode()


VERSION = b"@version"
_MEMBERS = 500


def packed(*parts: Part) -> bytes:
    """One command in the Redis protocol (RESP)."""
    command: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # the stub wants a tuple of one
    return command


MULTI, EXEC, UNWATCH = packed(b"MULTI"), packed(b"EXEC"), packed(b"UNWATCH")


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


Dial: TypeAlias = Callable[[RedisSettings], socket.socket]

CHUNK_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024


def dial(settings: RedisSettings) -> socket.socket:
    """Opens a socket to the server, without logging in."""
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
    """One Redis connection, logged in; for one thread.

    Every method raises OSError when the connection is lost, times out or receives something other than RESP: the
    commands sent may or may not have run, and the connection cannot be used again.

    Raises:
        ConfigurationError: the server refuses the login. InfrastructureError: it refuses the database.
    """

    def __init__(self, settings: RedisSettings, dial: Dial = dial) -> None:
        self._reader = hiredis.Reader(protocolError=ConnectionError)
        self._owed, self._timeout = 0, settings.timeout
        self._socket = dial(settings)
        try:
            self._socket.settimeout(self._timeout)
            hello = login_commands(settings)
            refuse_errors(settings, self.exchange(hello), hello)
        except BaseException:
            self.close()
            raise

    def send(self, commands: Sequence[bytes]) -> None:
        """Writes packed commands at once."""
        self._socket.sendall(b"".join(commands))
        self._owed += len(commands)

    def receive(self, count: int | None = None, *, within: float | None = None) -> list[Any]:
        """Waits for replies, `count` or all that are due; error replies are among them.

        Args:
            within: seconds for each read, instead of the timeout in the settings.
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
        """Sends all commands and returns every reply."""
        return self.begin(commands) + self.receive()

    def begin(self, commands: Sequence[bytes]) -> list[Any]:
        """Sends all commands and returns the replies so far; `receive` gives the rest.

        A long list is sent in chunks, and the replies to each are read after the next is sent, so that neither side
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


def login_commands(settings: RedisSettings) -> list[bytes]:
    """The first commands of a new connection: the login and the database."""
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


A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
Command: TypeAlias = tuple[Part, ...]


class RedisQuery(Protocol[A_co]):
    """A query compiled to commands, for any client, threaded or not; each command's second word is its only key."""

    @property
    def commands(self) -> Sequence[Command]:
        """The commands to send, in this order."""

    def answer(self, replies: Sequence[Any], /) -> A_co:
        """The answer in the replies, one per command; error replies were raised before."""


class Asker(Protocol):
    """A client that runs queries for the coroutines of one event loop."""

    async def ask(self, query: RedisQuery[A]) -> A:
        """The answer to a query; raises InfrastructureError when a server cannot be reached or refuses."""

    async def aclose(self) -> None:
        """Closes every connection."""


def hash_of(reply: Any) -> Mapping[bytes, bytes]:
    """The hash in a reply: redis-py makes a dict, the protocol has names and values in turn."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def ask_live(generation: Generation) -> Command:
    """The command that reads which generation is live for the hash of a generation."""
    return ("HGET", registry_key(generation.view), f"live:{generation.pointer}")


def live_in(reply: bytes | None) -> str:
    """The generation id in the reply to `ask_live`, '' for none."""
    return (reply or b"").decode()
