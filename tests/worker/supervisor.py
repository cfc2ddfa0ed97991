"""Keeps worker processes alive, as whatever runs them in production does."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from tests.worker.process import Circumstances
from tests.worker.processes import Start, WorkerProcess

__all__ = ["Supervisor"]


class Supervisor:
    """Starts a number of workers, and another one for each that ends, while the block runs."""

    def __init__(self, start: Start, given: Circumstances, number: int) -> None:
        self._start, self._given = start, given
        self.lives: list[WorkerProcess] = []
        self.workers = [self._next() for _ in range(number)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def served(self) -> set[int]:
        """The partitions that somebody serves."""
        return {partition for worker in self.workers if worker.code is None for partition in worker.serves}

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            for place, worker in enumerate(self.workers):
                if worker.code is not None:
                    self.workers[place] = self._next()

    def _next(self) -> WorkerProcess:
        self.lives.append(self._start(self._given))
        return self.lives[-1]
