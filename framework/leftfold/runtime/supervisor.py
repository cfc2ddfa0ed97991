"""A process supervisor: it restarts worker processes that end, and none outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from leftfold.errors import ConfigurationError
from leftfold.ports.instruments import RESTARTS
from leftfold.ports.protocols import Report

__all__ = ["Backoff", "Part", "PartProcess", "Supervisor", "end_processes"]

_TICK = 0.05
_FIRST, _LONGEST, _HEALTHY = 0.2, 5.0, 10.0


class Backoff:
    """Exponential backoff between tries; it starts again at 0.2 s after a try that lasted ten seconds."""

    def __init__(self) -> None:
        self._next = _FIRST

    def pause(self, lasted: float) -> float:
        """Seconds to pause after a try that lasted `lasted` seconds."""
        if lasted >= _HEALTHY:
            self._next = _FIRST
        pause, self._next = self._next, min(_LONGEST, 2 * self._next)
        return pause


@dataclass(frozen=True)
class Part:
    """A process to keep running: its name, command line, and additional environment variables."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


class PartProcess:
    """A part and its process.

    Its standard input is a pipe without data; the pipe closes when the supervisor dies, and the process then ends.
    """

    def __init__(self, part: Part) -> None:
        self.part, self._backoff = part, Backoff()
        self.process: subprocess.Popen[bytes] | None = None
        self.due = self._started = 0.0

    def start(self) -> None:
        """Starts the process; where none can be made (OSError), sets the time of the next try."""
        # Its own session: Ctrl-C at the terminal reaches only the supervisor, which then stops its parts in order.
        environment = {**os.environ, **self.part.environment}
        try:
            self.process = subprocess.Popen(
                self.part.command, stdin=subprocess.PIPE, start_new_session=True, env=environment
            )
        except OSError:
            self.due = time.monotonic() + self._backoff.pause(0.0)
            raise
        self._started = time.monotonic()
        RESTARTS.record(0, {"leftfold.part": self.part.name})

    def ended(self) -> int | None:
        """The exit code of a process that has just ended, else None; sets the time of the next start."""
        if self.process is None or (code := self.process.poll()) is None:
            return None
        self._close_input()
        now = time.monotonic()
        self.due = now + self._backoff.pause(now - self._started)
        return code

    def end(self, deadline: float) -> bool:
        """Waits until the deadline, then kills the process; whether it ended by itself."""
        if self.process is None:
            return True
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return False
        finally:
            self._close_input()
        return True

    def _close_input(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None


def end_processes(children: Sequence[PartProcess], grace: float, report: Report = lambda what, details: None) -> None:
    """Terminates processes, waits for `grace` seconds, and kills those still running; a second Ctrl-C ends the wait."""
    deadline = time.monotonic() + grace
    for child in children:
        if child.process is not None:
            child.process.terminate()
    try:
        for child in children:
            if not child.end(deadline):
                report("killed", {"part": child.part.name, "why": f"it did not end in {grace:g} s"})
    finally:
        for child in children:
            child.end(0.0)


class Supervisor:
    """A supervisor that keeps processes running until `stop` is set.

    A part that ends is restarted after a pause of 0.2 s, doubling to 5 s, and 0.2 s again once it has run for ten
    seconds. Exit code 78 (wrong configuration) stops all parts, because a restart would end the same way.

    Args:
        grace: seconds that a part has to end after SIGTERM before it is killed.
        report: called with each log event and its details.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        *,
        stop: threading.Event,
        grace: float = 15.0,
        report: Report = lambda what, details: None,
    ) -> None:
        self._children = [PartProcess(part) for part in parts]
        self._stop, self._grace, self._report = stop, grace, report

    def run(self) -> int:
        """Runs until `stop` is set; returns 0, or 78 when a part's configuration is wrong."""
        code = 0
        try:
            while code == 0 and not self._stop.is_set():
                for child in self._children:
                    code = code or self._tend(child)
                self._stop.wait(_TICK)
        finally:
            end_processes(self._children, self._grace, self._report)
        return code

    def _tend(self, child: PartProcess) -> int:
        ended = child.ended()
        if ended is not None:
            details = {"part": child.part.name, "exit": _named(ended)}
            if ended == ConfigurationError.exit_code:
                self._report("stopping everything", details)
                return ended
            RESTARTS.record(1, {"leftfold.part": child.part.name})
            self._report("restarting", {**details, "in": f"{max(0.0, child.due - time.monotonic()):.1f} s"})
        if child.process is None and time.monotonic() >= child.due and not self._stop.is_set():
            try:
                child.start()
            except OSError as error:  # no process can be made at present
                self._report("not started", {"part": child.part.name, "why": str(error)})
        return 0


def _named(code: int) -> str:
    """An exit code as text: `75`, or the signal that ended the process, such as `SIGKILL`."""
    if code >= 0:
        return str(code)
    return signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
