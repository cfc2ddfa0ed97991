"""Parts of the trade in processes of their own, as a test holds them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from tests.process.child import Child
from tests.worker.processes import ROOT, WorkerProcess

__all__ = ["ChildProcess", "StartChild"]


class ChildProcess(WorkerProcess):
    """One part; it is killed when the block ends, whatever became of it."""

    def __init__(self, child: Child, told: Path) -> None:
        self.child, self._told, self._errors = child, told, told.with_suffix(".err")
        with told.open("wb") as out, self._errors.open("wb") as err:
            command = [sys.executable, "-m", "tests.process.child", child.to_json()]
            self._process = subprocess.Popen(command, stdout=out, stderr=err, cwd=ROOT)

    def __str__(self) -> str:
        return f"{self.child}: {super().__str__()}"


StartChild: TypeAlias = Callable[[Child], ChildProcess]
"""Starts a part that does not outlive the test."""
