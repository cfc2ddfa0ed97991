"""Numbers in the text of records: whatever was written there, reading it never fails."""

from __future__ import annotations

__all__ = ["number_in", "version_in"]

_MOST = 1 << 63
_LONGEST = 19


def number_in(text: str | bytes) -> int | None:
    """The number that a text is, None when it is none of 0..2^63-1 in plain digits.

    `isdigit` and `int` alone do not agree: '²' is a digit and no number, and a few thousand digits are none either.
    """
    if len(text) > _LONGEST or not text.isascii() or not text.isdigit():
        return None
    number = int(text)
    return number if number < _MOST else None


def version_in(type_: bytes) -> tuple[str, int | None]:
    """The name in a `ce_type`, and its version, None when that is no number."""
    name, _, version = type_.decode(errors="replace").rpartition(".v")
    return name, number_in(version)
