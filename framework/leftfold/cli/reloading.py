"""Runs `leftfold run` and starts it again whenever a source file changes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from leftfold.cli.watching import changes, scan
from leftfold.logs import Report

__all__ = ["Reloading"]

_TICK = 0.05
_LOOK = 0.3
_GRACE = 20.0


class Reloading:
    """One `leftfold run` at a time. One that cannot run, as after a slip in the code, waits for the next change.

    Args:
        root: whose Python files are watched. arguments, environment: for `leftfold run`.
    """

    def __init__(
        self,
        root: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stop: threading.Event,
        report: Report,
    ) -> None:
        self._root, self._stop, self._report = root, stop, report
        self._command = [sys.executable, "-m", "leftfold.cli", "run", "--with-parent", *arguments]
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Works until told to stop."""
        seen, looked = scan(self._root), time.monotonic()
        try:
            self._start()
            while not self._stop.wait(_TICK):
                self._look_after()
                if time.monotonic() - looked < _LOOK:
                    continue
                now, looked = scan(self._root), time.monotonic()
                if changed := changes(seen, now):
                    self._report("reloading", {"changed": ", ".join(changed[:3]) + (", …" if changed[3:] else "")})
                    self._end()
                    self._start()
                seen = now
        finally:
            self._end()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, start_new_session=True, env=self._environment
        )

    def _look_after(self) -> None:
        if self._process is not None and (code := self._process.poll()) is not None:
            self._process = None
            if not self._stop.is_set():
                self._report("waiting for a change", {"exit": code})

    def _end(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._process.kill()
            self._process.wait()
            self._process = None
