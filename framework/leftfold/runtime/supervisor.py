"""Keeps processes running: one that dies is started again, and none outlives the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from leftfold.errors import ConfigurationError

__all__ = ["Backoff", "Part", "Supervisor"]

Report = Callable[[str, Mapping[str, Any]], None]

_TICK = 0.05
_FIRST, _MOST, _HEALTHY = 0.2, 5.0, 10.0


class Backoff:
    """How long to pause before the next try: twice as long each time, from the start again after ten good seconds."""

    def __init__(self) -> None:
        self._next = _FIRST

    def pause(self, lasted: float) -> float:
        """Seconds to pause after a try that lasted so many seconds."""
        if lasted >= _HEALTHY:
            self._next = _FIRST
        pause, self._next = self._next, min(_MOST, 2 * self._next)
        return pause


@dataclass(frozen=True)
class Part:
    """A process to keep running: what it is called, how it is started, and what its environment has besides ours."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


class _Child:
    """One part with its process. Its standard input is a pipe that nobody writes to: it ends when we do."""

    def __init__(self, part: Part) -> None:
        self.part, self._backoff = part, Backoff()
        self.process: subprocess.Popen[bytes] | None = None
        self.due = self._started = 0.0

    def start(self) -> None:
        # A session of its own: Ctrl-C at the terminal is for the supervisor, which then stops its parts in order.
        environment = {**os.environ, **self.part.environment}
        self.process = subprocess.Popen(
            self.part.command, stdin=subprocess.PIPE, start_new_session=True, env=environment
        )
        self._started = time.monotonic()

    def ended(self) -> int | None:
        """The exit code of a process that has just ended; the next start is then put off."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        self._let_go()
        now = time.monotonic()
        self.due = now + self._backoff.pause(now - self._started)
        return code

    def end(self, deadline: float) -> bool:
        """Waits until the process has ended and says whether it did so by itself."""
        if self.process is None:
            return True
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        finally:
            self._let_go()
        return True

    def _let_go(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None


class Supervisor:
    """Runs parts until `stop` is set.

    A part that ends is started again after a pause of 0.2 s, doubling to 5 s, and 0.2 s again once it has run for
    ten. One that says its configuration is wrong (exit 78) would only say so again: everything stops.

    Args:
        grace: seconds a part has to end by itself once told to.
        report: told what happens: (what, details).
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        stop: threading.Event,
        grace: float = 15.0,
        report: Report = lambda what, details: None,
    ) -> None:
        self._children = [_Child(part) for part in parts]
        self._stop, self._grace, self._report = stop, grace, report

    def run(self) -> int:
        """Works until told to stop; 0, or 78 when a part's configuration is wrong."""
        code = 0
        try:
            while code == 0 and not self._stop.is_set():
                for child in self._children:
                    code = code or self._tend(child)
                self._stop.wait(_TICK)
        finally:
            self._end()
        return code

    def pids(self) -> dict[str, int]:
        """The process of each part that runs."""
        return {child.part.name: child.process.pid for child in self._children if child.process is not None}

    def _tend(self, child: _Child) -> int:
        ended = child.ended()
        if ended is not None:
            details = {"part": child.part.name, "exit": _named(ended)}
            if ended == ConfigurationError.exit_code:
                self._report("stopping everything", details)
                return ended
            self._report("restarting", {**details, "in": f"{max(0.0, child.due - time.monotonic()):.1f} s"})
        if child.process is None and time.monotonic() >= child.due and not self._stop.is_set():
            child.start()
        return 0

    def _end(self) -> None:
        """Tells every part to end, waits, and kills what does not; a second Ctrl-C cuts the waiting short."""
        deadline = time.monotonic() + self._grace
        for child in self._children:
            if child.process is not None:
                child.process.terminate()
        try:
            for child in self._children:
                if not child.end(deadline):
                    self._report("killed", {"part": child.part.name, "why": f"it did not end in {self._grace:g} s"})
        finally:
            for child in self._children:
                child.end(0.0)


def _named(code: int) -> str:
    """An exit code as people say it: `75`, or `SIGKILL` for the death by a signal."""
    if code >= 0:
        return str(code)
    return signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
