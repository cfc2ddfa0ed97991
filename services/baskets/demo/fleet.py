"""Running Apps as a user starts them, `leftfold run`, and the pids of its parts, to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Fleet"]

LEFTFOLD = (sys.executable, "-m", "leftfold.cli")


class Fleet:
    """`leftfold run` of some Apps, or of the project's own, as a child process; its log goes to a file."""

    def __init__(self, log: Path, *apps: str) -> None:
        self.log, self._apps, self._killed = log, apps, set[int]()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.unlink(missing_ok=True)
        self._start(*self._apps)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def restart(self, app: str) -> None:
        """Ends all parts in order and starts those of another App, as a deploy does."""
        self._stop()
        self._start(app)

    def _start(self, *apps: str) -> None:
        with self.log.open("ab") as out:
            command = [*LEFTFOLD, "run", *(f"--app={app}" for app in apps)]
            self._process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)

    def pid(self, part: str, timeout: float = 30.0) -> int:
        """The pid of a part, waited for.

        Raises:
            RuntimeError: there is none in time, or the whole fleet has ended; its log says why.
        """
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"leftfold run has ended; see {self.log}")
            for pid in _children(self._process.pid):
                if pid not in self._killed and f"--name={part}" in _command(pid):
                    return pid
            time.sleep(0.05)
        raise RuntimeError(f"{part} is not running after {timeout:.0f} s; see {self.log}")

    def kill(self, part: str) -> int:
        """SIGKILL, as an out-of-memory killer would; returns the pid it had."""
        pid = self.pid(part)
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)
        return pid


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return []
