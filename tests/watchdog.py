"""Ends a run in which a test has hung, and says last, where it is read, which test and where."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

__all__ = ["Watchdog"]

_FRAMES = 12
_PYTEST = {"_pytest", "pluggy", "pytest"}


class Watchdog:
    """Bounds the time of one test after another; a slow machine is no hang, so the bound is wide."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # The descriptor itself: while a test runs, the one called 2 belongs to pytest's capturing.
        self._out = os.fdopen(os.dup(2), "w", buffering=1)
        self._main = threading.get_ident()

    @contextmanager
    def over(self, test: str) -> Iterator[None]:
        """Ends this process unless the block ends in time."""
        timer = threading.Timer(self._seconds, self._end, [test])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self, test: str) -> None:
        phase = os.environ.get("PYTEST_CURRENT_TEST", test).rpartition(" ")[2]
        out: TextIO = self._out
        faulthandler.dump_traceback(out)
        frames = traceback.extract_stack(sys._current_frames()[self._main])
        stack = [frame for frame in frames if not _PYTEST & set(Path(frame.filename).parts)]
        print(f"\n{test} {phase} has taken {self._seconds:g} s; it stands here:", file=out)
        for frame in stack[-_FRAMES:]:
            print(f"  {frame.filename}:{frame.lineno} {frame.name}: {frame.line}", file=out)
        out.flush()
        os._exit(1)
