"""One database: keys with typed values, their expiry, and the commands for keys of any type."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from leftfold.testing.simulation.redis_server.resp import OK, ErrorReply, Reply, SimpleString, number

__all__ = [
    "KEY_COMMANDS",
    "CommandSpec",
    "Keyspace",
    "Parts",
    "integer",
    "is_match",
    "read_cursor",
    "read_scan_options",
    "scan_page",
    "wrong_arguments",
]

V = TypeVar("V")
Parts: TypeAlias = Sequence[bytes]


class CommandSpec(NamedTuple):
    """A command of the server: its function, its number of parts (negative = at least), and whether it writes."""

    run: Callable[[Keyspace, Parts], Reply]
    arity: int
    writes: bool = False


class Keyspace:
    """The keys of one database.

    Args:
        now: seconds since 1970. touched: called with each key that is written, removed or expires.
        expired: called with each key that expires, before `touched`.

    Attributes:
        values: by key; only values that are not empty, and streams. expires: when keys expire, in milliseconds.
        writes: the number of changes; a command without a change does not raise it.
    """

    def __init__(
        self, now: Callable[[], float], touched: Callable[[bytes], None], expired: Callable[[bytes], None]
    ) -> None:
        self._now, self._touched, self._expired = now, touched, expired
        self.values: dict[bytes, Any] = {}
        self.expires: dict[bytes, int] = {}
        self.writes = 0

    def now_ms(self) -> int:
        """The server's time in milliseconds since 1970."""
        return int(self._now() * 1000)

    def is_there(self, key: bytes) -> bool:
        """Whether a key exists; an expired one is removed."""
        ends = self.expires.get(key)
        if ends is not None and self.now_ms() > ends:
            del self.values[key], self.expires[key]
            self._expired(key)
            self._touched(key)
        return key in self.values

    def find(self, key: bytes, kind: type[V]) -> V | None:
        """The value of a key.

        Raises:
            ErrorReply: it is of another type.
        """
        if not self.is_there(key):
            return None
        value = self.values[key]
        if not isinstance(value, kind):
            raise ErrorReply("WRONGTYPE Operation against a key holding the wrong kind of value")
        return value

    def make(self, key: bytes, kind: type[V]) -> V:
        """The value of a key, created when missing."""
        value = self.find(key, kind)
        if value is None:
            value = self.values[key] = kind()
        return value

    def changed(self, key: bytes, count: int = 1) -> None:
        """Records a write to a key; an empty value is removed."""
        value = self.values.get(key)
        if value is not None and not len(value) and value.NAME != b"stream":
            self.values.pop(key)
            self.expires.pop(key, None)
        self.writes += count
        self._touched(key)

    def remove(self, key: bytes) -> bool:
        """Removes a key; returns whether it existed."""
        if not self.is_there(key):
            return False
        self.values.pop(key)
        self.expires.pop(key, None)
        self.writes += 1
        self._touched(key)
        return True

    def put(self, key: bytes, value: Any) -> None:
        """Replaces the value of a key, without expiry."""
        self.values[key] = value
        self.expires.pop(key, None)
        self.changed(key)


def _unlink(space: Keyspace, parts: Parts) -> Reply:
    return sum([space.remove(key) for key in parts])


def _exists(space: Keyspace, parts: Parts) -> Reply:
    return sum([space.is_there(key) for key in parts])


def _type(space: Keyspace, parts: Parts) -> Reply:
    return SimpleString(space.values[parts[0]].NAME) if space.is_there(parts[0]) else SimpleString(b"none")


def _dbsize(space: Keyspace, parts: Parts) -> Reply:
    return len(space.values)


def _keys(space: Keyspace, parts: Parts) -> Reply:
    return [key for key in list(space.values) if is_match(parts[0], key) and space.is_there(key)]


def _flushdb(space: Keyspace, parts: Parts) -> Reply:
    for key in list(space.values):
        space.remove(key)
    return OK


def _expiring(unit: int, absolute: bool) -> Callable[[Keyspace, Parts], Reply]:
    def expire(space: Keyspace, parts: Parts) -> Reply:
        key, ends = parts[0], integer(parts[1]) * unit
        if not absolute:
            ends += space.now_ms()
        if not space.is_there(key):
            return 0
        if ends <= space.now_ms():
            space.remove(key)
        else:
            space.expires[key] = ends
            space.changed(key)
        return 1

    return expire


def _remaining(unit: int) -> Callable[[Keyspace, Parts], Reply]:
    def remaining(space: Keyspace, parts: Parts) -> Reply:
        if not space.is_there(parts[0]):
            return -2
        ends = space.expires.get(parts[0])
        return -1 if ends is None else (ends - space.now_ms() + unit // 2) // unit

    return remaining


def _persist(space: Keyspace, parts: Parts) -> Reply:
    if not space.is_there(parts[0]) or space.expires.pop(parts[0], None) is None:
        return 0
    space.changed(parts[0])
    return 1


def _scan(space: Keyspace, parts: Parts) -> Reply:
    options = read_scan_options(parts[1:], with_type=True)
    next_, page = scan_page(space.values, read_cursor(parts[0]), options)
    kind = options.get(b"TYPE")
    found = [key for key in page if space.is_there(key) and (kind is None or kind.lower() == space.values[key].NAME)]
    return [next_, [*found]]


def scan_page(names: Iterable[bytes], cursor: int, options: dict[bytes, bytes]) -> tuple[bytes, list[bytes]]:
    """The next cursor, and matching names; a name that exists during the whole scan is on one of the pages.

    The order is that of the names' checksums, so that it does not depend on names added or removed meanwhile.
    """
    ranked = sorted((zlib.crc32(name), name) for name in names)
    rest = [entry for entry in ranked if entry[0] >= cursor]
    count = int(options.get(b"COUNT", b"10"))
    page = rest[:count]
    while len(page) < len(rest) and rest[len(page)][0] == page[-1][0]:
        page.append(rest[len(page)])
    pattern = options.get(b"MATCH", b"*")
    next_ = b"0" if len(page) == len(rest) else b"%d" % (page[-1][0] + 1)
    return next_, [name for _, name in page if is_match(pattern, name)]


def integer(text: bytes) -> int:
    """An integer argument of a command.

    Raises:
        ErrorReply: the text is none.
    """
    value = number(text)
    if value is None:
        raise ErrorReply("ERR value is not an integer or out of range")
    return value


def wrong_arguments(name: str) -> ErrorReply:
    """The error for a command with too few parts, or an odd number of them."""
    return ErrorReply(f"ERR wrong number of arguments for '{name}' command")


def read_cursor(text: bytes) -> int:
    """The cursor of a SCAN."""
    if not text.isdigit():
        raise ErrorReply("ERR invalid cursor")
    return int(text)


def read_scan_options(parts: Parts, *, with_type: bool = False) -> dict[bytes, bytes]:
    """The options of a SCAN by name."""
    options: dict[bytes, bytes] = {}
    rest = list(parts)
    while rest:
        name = rest.pop(0).upper()
        if not rest or name not in ((b"COUNT", b"MATCH", b"TYPE") if with_type else (b"COUNT", b"MATCH")):
            raise ErrorReply("ERR syntax error")
        options[name] = rest.pop(0)
        if name == b"COUNT" and integer(options[name]) < 1:
            raise ErrorReply("ERR syntax error")
    return options


def is_match(pattern: bytes, name: bytes) -> bool:
    """Whether a name matches a pattern with * ? [a-z] [^a] and backslashes."""
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    written = re.findall(rb"\\.|\[(?:\\.|[^\]])*\]?|.", pattern, re.DOTALL)
    return re.compile(b"".join(map(_expression, written)), re.DOTALL)


def _expression(token: bytes) -> bytes:
    if token == b"*":
        return b".*"
    if token == b"?":
        return b"."
    if token[:1] == b"[":
        inside = token[1:-1] if token.endswith(b"]") else token[1:]
        body = re.sub(rb"([\[\]&~|])", rb"\\\1", inside)
        return b"[%b]" % body if body.strip(b"^") else b"(?!)"
    return re.escape(token[-1:])


KEY_COMMANDS: dict[bytes, CommandSpec] = {
    b"DEL": CommandSpec(_unlink, -2, True),
    b"UNLINK": CommandSpec(_unlink, -2, True),
    b"EXISTS": CommandSpec(_exists, -2),
    b"TYPE": CommandSpec(_type, 2),
    b"DBSIZE": CommandSpec(_dbsize, 1),
    b"KEYS": CommandSpec(_keys, 2),
    b"FLUSHDB": CommandSpec(_flushdb, -1, True),
    b"EXPIRE": CommandSpec(_expiring(1000, False), 3, True),
    b"PEXPIRE": CommandSpec(_expiring(1, False), 3, True),
    b"EXPIREAT": CommandSpec(_expiring(1000, True), 3, True),
    b"PEXPIREAT": CommandSpec(_expiring(1, True), 3, True),
    b"TTL": CommandSpec(_remaining(1000), 2),
    b"PTTL": CommandSpec(_remaining(1), 2),
    b"PERSIST": CommandSpec(_persist, 2, True),
    b"SCAN": CommandSpec(_scan, -2),
}
