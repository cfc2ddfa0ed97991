"""Workers as processes of their own, and a supervisor of them: `python -m tests.worker.processes '<Circumstances>'`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from leftfold.errors import LeftfoldError
from leftfold.kafka.worker.worker import Worker
from tests.servers import patient
from tests.threads import Background
from tests.waiting import wait_until
from tests.worker.bank import PARTITIONS, bank
from tests.worker.running import Haste, HastySupplier

__all__ = ["Circumstances", "Start", "Supervisor", "WorkerProcess"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Circumstances:
    """Where a worker works, and at what."""

    kafka: str
    bank: str
    version: int = 1
    partitions: int = PARTITIONS
    batch: int = 200
    haste: Haste = Haste()  # noqa: RUF009  # it is frozen

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        return cls(**fields | {"haste": Haste(**fields["haste"])})


def _tell(what: str, details: Mapping[str, Any]) -> None:
    """One line in one write: a process that is killed leaves whole lines."""
    os.write(sys.stdout.fileno(), (json.dumps({"what": what, **details}) + "\n").encode())


def main(given: Circumstances) -> int:
    """Works until SIGTERM; returns the exit code."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    one = bank(given.bank, version=given.version, partitions=given.partitions)
    shop = HastySupplier(patient(given.kafka), given.haste)
    try:
        worker = Worker(one.app, one.name, shop, stop=stop, batch=given.batch, report=_tell)
        try:
            worker.run()
        finally:
            _tell("counts", worker.counts)
    except LeftfoldError as error:
        _tell("ended", {"error": type(error).__name__, "why": str(error)})
        return error.exit_code
    return 0


class WorkerProcess:
    """One worker process; it is killed when the block ends, whatever became of it.

    Args:
        reported: the file that gets what it reports, a line of JSON each; beside it one with its standard error.
    """

    def __init__(self, given: Circumstances, reported: Path) -> None:
        self._told, self._errors = reported, reported.with_suffix(".err")
        with reported.open("wb") as out, self._errors.open("wb") as err:
            command = [sys.executable, "-m", "tests.worker.processes", given.to_json()]
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

    def reported(self, what: str) -> list[dict[str, Any]]:
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

    def wait_serving(self, partitions: int) -> None:
        """Waits until it serves so many partitions."""
        wait_until(lambda: self._alive() and len(self.serves) >= partitions, lambda: f"serving: {self}")

    def wait_stopped(self) -> None:
        """Waits until it stands still."""
        wait_until(lambda: self._alive() and self.stopped, lambda: f"a stop: {self}")

    def wait_end(self) -> int:
        """Waits for its end and returns the exit code."""
        wait_until(lambda: self.code is not None, lambda: f"the end of {self}")
        return self._process.wait()

    def _lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._told.read_text("utf-8").splitlines()]

    def _alive(self) -> bool:
        assert self.code is None, f"ended: {self}"
        return True

    def __str__(self) -> str:
        reported = "\n".join(self._told.read_text("utf-8").splitlines()[-8:])
        return f"worker {self._process.pid}, code {self.code}\n{reported}\n{self._errors.read_text('utf-8')[-2000:]}"


Start: TypeAlias = Callable[[Circumstances], WorkerProcess]
"""Starts a worker that does not outlive the test."""


class Supervisor(Background):
    """Starts a number of workers, and another one for each that ends, while the block runs."""

    def __init__(self, start: Start, given: Circumstances, number: int) -> None:
        super().__init__(self._supervise)
        self._start, self._given = start, given
        self.lives: list[WorkerProcess] = []
        self.workers = [self._next() for _ in range(number)]

    @property
    def served(self) -> set[int]:
        """The partitions that a worker serves."""
        return {partition for worker in self.workers if worker.code is None for partition in worker.serves}

    def _supervise(self, stop: threading.Event) -> None:
        while not stop.wait(0.1):
            for place, worker in enumerate(self.workers):
                if worker.code is not None:
                    self.workers[place] = self._next()

    def _next(self) -> WorkerProcess:
        self.lives.append(self._start(self._given))
        return self.lives[-1]


if __name__ == "__main__":
    sys.exit(main(Circumstances.from_json(sys.argv[1])))
