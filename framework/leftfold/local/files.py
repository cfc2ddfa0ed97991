"""Files of the embedded servers: atomic writes, locks between processes, and progress lines for people."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO

from leftfold.errors import InfrastructureError

__all__ = ["Progress", "StderrProgress", "held", "is_held", "last_lines", "tail", "wheel_path", "write_whole"]


_TAIL_BYTES = 64 * 1024


def write_whole(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old or the new text; only the owner may read it."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def tail(path: Path, begin: int = 0, *, lines: int = 12) -> str:
    """Return the `last_lines` of a log after the byte `begin`; empty when there are none, or there is no log."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            # A log that is shorter than before was started again.
            file.seek(max(begin if begin <= size else 0, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return last_lines(text, lines)


def last_lines(text: str, lines: int = 12) -> str:
    """Return the last lines of a text, without empty lines and the frames of Java stack traces."""
    shown = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "... "))]
    return "\n".join(shown[-lines:])


_POLL_SECONDS = 0.02


@contextmanager
def held(path: Path, *, seconds: float, busy: str) -> Iterator[None]:
    """Hold the lock file while the block runs.

    Raises:
        InfrastructureError: with the message `busy`, when another process held it for that many seconds.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + seconds
    try:
        while not _taken(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise InfrastructureError(busy)
            time.sleep(_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Return whether a live process holds the lock file; callers of this function do not see each other's locks."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return not _taken(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _taken(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


Progress = Callable[[str], None]
"""Takes progress lines; a line `work ... step` is overwritten by the next one."""


class StderrProgress:
    """Overwrites steps on a terminal; elsewhere prints each piece of work once."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._work = ""

    def __call__(self, line: str) -> None:
        """Show one line."""
        work, step, _ = line.partition(" ... ")
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[2K{line}" if step else f"\r\x1b[2K{line}\n")
        elif work != self._work:
            self._stream.write(f"{work}\n")
        self._work = work
        self._stream.flush()


def wheel_path(package: str, *parts: str) -> Path | None:
    """Return a path inside an installed package, or None when the package or the path is missing."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent.joinpath(*parts)
    return path if path.exists() else None
