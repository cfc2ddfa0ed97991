"""Text of others as it may be printed: nothing in it steers a terminal, hides, turns around or begins a line."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["printable", "printable_json", "shown"]

# C0, DEL and C1; the marks and controls of writing directions; what separates lines and paragraphs; lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BYTE = 0x100


def printable(text: str) -> str:
    r"""The text with `\xNN` or `\uNNNN` for every character that is not to be printed, newlines included."""
    return _UNSAFE.sub(_named, text)


def printable_json(text: str) -> str:
    r"""JSON of one line with `\uNNNN` for the same characters: it says exactly the same."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shown(value: object, form: Callable[[object], str] = repr) -> str:
    """What `repr` or `str` says of an object of user code, which may raise: it must not where an error is told."""
    try:
        return form(value)
    except Exception as error:  # noqa: BLE001  # whatever it raises
        return f"<{type(value).__name__}, of which {form.__name__}() raises {type(error).__name__}>"


def _named(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < _BYTE else f"\\u{code:04x}"
