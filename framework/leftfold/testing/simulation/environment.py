"""The simulated world of one run: its time, its brokers and its processes."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from leftfold.testing.simulation.kafka.brokers import Cluster
from leftfold.testing.simulation.scheduler import Killed, Scheduler, SimulatedProcess, Task

__all__ = ["SimulatedWorld", "active", "is_simulated"]

_active: list[SimulatedWorld] = []


class SimulatedWorld:
    """A simulated world: scheduler, brokers and processes of one run. Only one world is active at a time.

    Args:
        seed: decides every free choice. brokers: how many there are.
    """

    def __init__(self, seed: int, brokers: int = 2) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.random = random.Random(seed ^ 0x5EED)  # for the simulated code; not for secrets
        self.cluster = Cluster(self.scheduler, brokers)
        self.processes: list[SimulatedProcess] = []
        self.thread = get_ident()
        self.parts: dict[str, Any] = {}
        """Further parts of the simulation, such as the network of sockets."""

    @contextmanager
    def activated(self) -> Iterator[SimulatedWorld]:
        """Activates the world, in which clients are made within the block."""
        _active.append(self)
        before = sys.unraisablehook
        # Objects of a killed process are finalized in another process, and cannot close their connections.
        sys.unraisablehook = lambda about: None if about.exc_type is Killed else before(about)
        try:
            yield self
        finally:
            sys.unraisablehook = before
            _active.pop()

    @property
    def process(self) -> SimulatedProcess:
        """The process whose code runs."""
        task = self.scheduler.current
        if task is None:
            raise RuntimeError("a simulated client is used outside a simulated process")
        return task.process

    def start(self, name: str, function: Callable[[], Any], role: str = "") -> Task:
        """Starts a new process with its first task; a restarted process has the name of the one before."""
        process = SimulatedProcess(name, self.scheduler, role, 1000 + len(self.processes))
        self.processes.append(process)
        return self.scheduler.spawn(process, function)

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Advances virtual time until a condition holds, for so many seconds at most; returns whether it holds."""
        return self.scheduler.run(until, seconds)

    def close(self) -> None:
        """Ends all processes that still run."""
        for process in self.processes:
            process.end(-9)


def active() -> SimulatedWorld:
    """The active world."""
    if not _active:
        raise RuntimeError("no simulated world is active")
    return _active[-1]


def is_simulated() -> bool:
    """Whether the calling code runs in the active world; other threads of the test's process do not."""
    return bool(_active) and get_ident() == _active[-1].thread
