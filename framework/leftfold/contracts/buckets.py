"""Small generations, marks and flushes for contract tests."""

from __future__ import annotations

from itertools import count
from uuid import uuid4

from leftfold.flush import BucketFlush, Generation, Mark, RowChange
from leftfold.ordered import ordered
from leftfold.position import Position

__all__ = ["COLUMNS", "changed", "deleted", "flush_of", "mark", "new_generation", "row"]

COLUMNS = (b"color", b"size")
_numbers = count(1)


def new_generation(buckets: int = 4) -> Generation:
    """A generation of a view that no other test uses."""
    return Generation(
        view=f"things_{uuid4().hex[:8]}",
        id=f"{next(_numbers)}-ab12",
        hash="0123456789ab",
        stream_keyed=True,
        buckets=buckets,
        topics={"shop.events": buckets},
        created="2017-01-01T00:00:00Z",
    )


def mark(token: str, at: int) -> Mark:
    """A mark at an offset of one partition."""
    return Mark(Position.at("shop.events", 0, at), token=token)


def row(key: str, color: bytes = b"red", *, version: int | None = None) -> RowChange:
    """A new row."""
    return RowChange(key, (color, b"S"), version, None, _entries(color))


def changed(key: str, before: bytes, after: bytes) -> RowChange:
    """A row whose color changes."""
    return RowChange(key, (after, b"S"), None, _entries(before), _entries(after))


def deleted(key: str, color: bytes | None = b"red") -> RowChange:
    """A row that goes; None = there was none."""
    return RowChange(key, None, None, None if color is None else _entries(color), None)


def flush_of(
    generation: Generation, bucket: int, expected: str, token: str, *changes: RowChange, at: int = 1
) -> BucketFlush:
    """A flush that moves the mark to an offset and from one token to another."""
    return BucketFlush(generation, bucket, expected, mark(token, at), COLUMNS, ("color", "size"), changes)


def _entries(color: bytes) -> tuple[str, ...]:
    return ordered(color.decode()), ordered("S")
