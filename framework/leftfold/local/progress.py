"""Telling a person on standard error what takes a while."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

__all__ = ["Progress", "StderrProgress"]

Progress = Callable[[str], None]
"""Takes lines; `work ... how far` is a step of some work, to be overwritten by the next line."""


class StderrProgress:
    """Overwrites steps on a terminal; elsewhere tells each piece of work once."""

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
