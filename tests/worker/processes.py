"""Worker processes as a test holds them: started, stopped, continued, killed, and waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from tests.waiting import wait_until
from tests.worker.process import Circumstances

__all__ = ["Start", "WorkerProcess"]

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """One worker process; it is killed when the block ends, whatever became of it.

    Args:
        told: the file that gets what it reports, a line of JSON each; beside it one with its standard error.
    """

    def __init__(self, given: Circumstances, told: Path) -> None:
        self._told, self._errors = told, told.with_suffix(".err")
        with told.open("wb") as out, self._errors.open("wb") as err:
            command = [sys.executable, "-m", "tests.worker.process", given.to_json()]
            self._process = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal, None while it runs."""
        return self._process.poll()

    @property
    def stopped(self) -> bool:
        """Whether it has been stopped by SIGSTOP."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return fields[0] == "T"

    def told(self, what: str) -> list[dict[str, Any]]:
        """What it has reported so far under this name."""
        return [line for line in self._lines() if line["what"] == what]

    @property
    def serves(self) -> list[int]:
        """The partitions it said it serves."""
        partitions: list[int] = []
        for line in self._lines():
            if line["what"] == "serving":
                partitions = line["partitions"]
            elif line["what"] == "left":
                partitions = [partition for partition in partitions if partition not in line["partitions"]]
        return partitions

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless it has ended."""
        if self.code is None:
            os.kill(self._process.pid, number)

    def kill(self) -> None:
        """Ends it as a crash would, and reaps it."""
        self._process.kill()
        self._process.wait()

    def wait_serving(self, partitions: int, seconds: float = 240.0) -> None:
        """Waits until it serves so many partitions."""
        wait_until(lambda: self._alive() and len(self.serves) >= partitions, lambda: f"serving: {self}", seconds)

    def wait_point(self, seconds: float = 240.0) -> None:
        """Waits until it has met its fate at a point."""
        wait_until(
            lambda: bool(self.told("point")) or self.code is not None, lambda: f"a point to be reached: {self}", seconds
        )
        assert self.told("point"), f"ended before its point: {self}"

    def wait_stopped(self, seconds: float = 240.0) -> None:
        """Waits until it has stopped itself."""
        wait_until(lambda: self._alive() and self.stopped, lambda: f"a stop: {self}", seconds)

    def wait_end(self, seconds: float = 240.0) -> int:
        """Waits for its end and returns the exit code."""
        wait_until(lambda: self.code is not None, lambda: f"the end of {self}", seconds)
        return self._process.wait()

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._told.read_text("utf-8").splitlines()]

    def _alive(self) -> bool:
        assert self.code is None, f"ended: {self}"
        return True

    def __str__(self) -> str:
        told = "\n".join(self._told.read_text("utf-8").splitlines()[-8:])
        return f"worker {self._process.pid}, code {self.code}\n{told}\n{self._errors.read_text('utf-8')[-2000:]}"


Start: TypeAlias = Callable[[Circumstances], WorkerProcess]
"""Starts a worker that does not outlive the test."""
