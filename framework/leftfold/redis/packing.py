"""Commands as bytes, as cheap as Python can make them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice

import hiredis

from leftfold.redis.commands import Part
from leftfold.redis.keys import BucketKeys, entry
from leftfold.rows import Fields

__all__ = ["EXEC", "MULTI", "UNWATCH", "RowPacker", "SortedSets", "packed"]

VERSION = b"@version"
_MEMBERS = 500


def packed(*parts: Part) -> bytes:
    """One command in the Redis protocol."""
    command: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]  # the stub wants a tuple of one
    return command


MULTI, EXEC, UNWATCH = packed(b"MULTI"), packed(b"EXEC"), packed(b"UNWATCH")


class RowPacker:
    """Packs the rows of one bucket: one format string per shape of row, a third of the time of packing anew."""

    __slots__ = ("_keys", "_plain", "_versioned")

    def __init__(self, keys: BucketKeys, columns: Fields) -> None:
        self._keys = keys.rows
        self._plain, self._versioned = _form(columns), _form((*columns, VERSION))

    def put(self, key: str, fields: Fields, version: int | None) -> bytes:
        """Writes every field of a row."""
        name = self._keys + key.encode()
        parts = (name, *fields) if version is None else (name, *fields, b"%d" % version)
        slots: list[int | bytes] = [0] * (2 * len(parts))
        slots[::2] = map(len, parts)
        slots[1::2] = parts
        return (self._plain if version is None else self._versioned) % tuple(slots)

    def drop(self, key: str) -> bytes:
        """Removes a row."""
        return packed(b"UNLINK", self._keys + key.encode())


@lru_cache(maxsize=1024)
def _form(columns: Fields) -> bytes:
    words = [b"*%d\r\n$4\r\nHSET\r\n" % (2 + 2 * len(columns)), b"$%d\r\n%b\r\n"]
    for column in columns:
        words += (b"$%d\r\n%b\r\n" % (len(column), column)).replace(b"%", b"%%"), b"$%d\r\n%b\r\n"
    return b"".join(words)


class SortedSets:
    """Collects who enters and leaves the key list and the indexes of a bucket, the last word on a member counting."""

    __slots__ = ("_indexes", "_keys", "_moves")

    def __init__(self, keys: BucketKeys, indexes: Iterable[str]) -> None:
        self._indexes = tuple(map(keys.index, indexes))
        self._keys = keys.listed
        self._moves: dict[bytes, dict[bytes, bool]] = {name: {} for name in (self._keys, *self._indexes)}

    def list(self, key: str, listed: bool) -> None:
        """The row is there, or no longer."""
        self._moves[self._keys][key.encode()] = listed

    def move(self, key: str, before: tuple[str, ...] | None, after: tuple[str, ...] | None) -> None:
        """The row's index entries change; None = no row."""
        if before == after:
            return
        for entries, present in ((before, False), (after, True)):
            if entries is not None:
                for name, value in zip(self._indexes, entries, strict=True):
                    self._moves[name][entry(value, key)] = present

    def commands(self) -> Iterator[bytes]:
        """Everything collected, packed."""
        for name, members in self._moves.items():
            gone = [member for member, present in members.items() if not present]
            there = [member for member, present in members.items() if present]
            for some in _slices(gone):
                yield packed(b"ZREM", name, *some)
            for some in _slices(there):
                scored = [b"0"] * (2 * len(some))
                scored[1::2] = some
                yield packed(b"ZADD", name, *scored)


def _slices(members: list[bytes]) -> Iterator[list[bytes]]:
    rest = iter(members)
    while some := list(islice(rest, _MEMBERS)):
        yield some
