"""Small files: written as a whole or not at all, and read from their end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["last_lines", "tail", "write_whole"]

_TAIL_BYTES = 64 * 1024


def write_whole(path: Path, text: str) -> None:
    """Replace a file so that readers see the old or the new text, never a part; only the owner may read it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def tail(path: Path, begin: int = 0, *, lines: int = 12) -> str:
    """Return the `last_lines` of a log behind `begin`; empty when there are none, or there is no log."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            # A log that is shorter than it was has been started anew.
            file.seek(max(begin if begin <= size else 0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return last_lines(text, lines)


def last_lines(text: str, lines: int = 12) -> str:
    """Return the last lines of a text, without empty lines and the frames of Java stack traces."""
    told = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "... "))]
    return "\n".join(told[-lines:])
