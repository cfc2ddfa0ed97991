"""Redis streams: entries in the order of their ids, trimmed when entries are added, and read by ranges of ids."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import TypeAlias

from leftfold.testing.simulation.redis_server.keyspace import CommandSpec, Keyspace, Parts, integer
from leftfold.testing.simulation.redis_server.resp import NULL_ARRAY, ErrorReply, Reply

__all__ = ["STREAM_COMMANDS", "RedisStream"]

_Id: TypeAlias = tuple[int, int]
_MOST = (1 << 64) - 1
_NODE_ENTRIES, _NODE_BYTES = 100, 4096
"""The entries per node of the real server's tree; `MAXLEN ~` removes whole nodes."""


class RedisStream:
    """A Redis stream: entries by id; `last` stays when they are trimmed."""

    NAME = b"stream"

    def __init__(self) -> None:
        self.ids: list[_Id] = []
        self.fields: dict[_Id, list[bytes]] = {}
        self.last: _Id = (0, 0)
        self._nodes: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, id_: _Id, fields: list[bytes]) -> None:
        """Adds an entry behind all others."""
        size = sum(map(len, fields))
        if not self._nodes or self._nodes[-1][0] >= _NODE_ENTRIES or self._nodes[-1][1] + size >= _NODE_BYTES:
            self._nodes.append([0, 0])
        self._nodes[-1][0] += 1
        self._nodes[-1][1] += size
        self.ids.append(id_)
        self.fields[id_] = fields
        self.last = id_

    def trim(self, length: int, *, is_exact: bool) -> int:
        """Removes entries from the beginning until so many are left, or nearly; returns how many it removed."""
        count = 0
        while self._nodes and len(self.ids) - count > length:
            spare, node = len(self.ids) - count - length, self._nodes[0]
            if node[0] <= spare:
                count += node[0]
                self._nodes.pop(0)
            elif is_exact:
                count += spare
                node[0] -= spare
            else:
                break
        for id_ in self.ids[:count]:
            del self.fields[id_]
        del self.ids[:count]
        return count


def _xadd(space: Keyspace, parts: Parts) -> Reply:
    rest, key = list(parts[1:]), parts[0]
    length, is_exact, makes = None, True, True
    while rest and rest[0].upper() in (b"MAXLEN", b"NOMKSTREAM"):
        if rest.pop(0).upper() == b"NOMKSTREAM":
            makes = False
            continue
        if rest and rest[0] in (b"~", b"="):
            is_exact = rest.pop(0) == b"="
        length = integer(rest.pop(0) if rest else b"")
        if length < 0:
            raise ErrorReply("ERR The MAXLEN argument must be >= 0.")
    if not rest:
        raise ErrorReply("ERR wrong number of arguments for XADD")
    wanted = None if rest[0] == b"*" else _id(rest[0], 0)
    if len(rest) < 3 or len(rest) % 2 == 0:
        raise ErrorReply("ERR wrong number of arguments for XADD")
    if wanted == (0, 0):
        raise ErrorReply("ERR The ID specified in XADD must be greater than 0-0")
    stream = space.find(key, RedisStream)
    if stream is None and not makes:
        return None
    stream = stream if stream is not None else space.make(key, RedisStream)
    id_ = wanted or max((space.now_ms(), 0), (stream.last[0], stream.last[1] + 1))
    if id_ <= stream.last:
        raise ErrorReply("ERR The ID specified in XADD is equal or smaller than the target stream top item")
    stream.add(id_, rest[1:])
    if length is not None:
        stream.trim(length, is_exact=is_exact)
    space.changed(key)
    return _name(id_)


def _xlen(space: Keyspace, parts: Parts) -> Reply:
    return len(space.find(parts[0], RedisStream) or ())


def _ranging(*, backwards: bool) -> Callable[[Keyspace, Parts], Reply]:
    def ranged(space: Keyspace, parts: Parts) -> Reply:
        low, high = (parts[2], parts[1]) if backwards else (parts[1], parts[2])
        first, last = _end(low, 0), _end(high, _MOST)
        count = _count(parts[3:])
        stream = space.find(parts[0], RedisStream)
        if stream is None:
            return []
        if count == 0:
            return NULL_ARRAY
        start = (bisect_right if low[:1] == b"(" else bisect_left)(stream.ids, first)
        stop = (bisect_left if high[:1] == b"(" else bisect_right)(stream.ids, last)
        ids = stream.ids[start:stop]
        if backwards:
            ids.reverse()
        chosen = ids if count < 0 else ids[:count]
        return [[_name(id_), [*stream.fields[id_]]] for id_ in chosen]

    return ranged


def _count(parts: Parts) -> int:
    """The maximum number of entries; -1 = all."""
    rest, count = list(parts), -1
    while rest:
        if rest.pop(0).upper() != b"COUNT" or not rest:
            raise ErrorReply("ERR syntax error")
        count = max(0, integer(rest.pop(0)))
    return count


def _end(text: bytes, missing: int) -> _Id:
    """An end of a range; `missing` is the sequence number when the id has none."""
    if text in (b"-", b"+"):
        return (0, 0) if text == b"-" else (_MOST, _MOST)
    return _id(text.removeprefix(b"("), missing)


def _id(text: bytes, missing: int) -> _Id:
    parts = text.split(b"-")
    if len(parts) > 2 or not all(part.isdigit() and int(part) <= _MOST for part in parts):
        raise ErrorReply("ERR Invalid stream ID specified as stream command argument")
    return int(parts[0]), int(parts[1]) if len(parts) == 2 else missing


def _name(id_: _Id) -> bytes:
    return b"%d-%d" % id_


STREAM_COMMANDS: dict[bytes, CommandSpec] = {
    b"XADD": CommandSpec(_xadd, -5, True),
    b"XLEN": CommandSpec(_xlen, 2),
    b"XRANGE": CommandSpec(_ranging(backwards=False), -4),
    b"XREVRANGE": CommandSpec(_ranging(backwards=True), -4),
}
