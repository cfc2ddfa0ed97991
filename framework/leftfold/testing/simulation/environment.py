"""One simulated world: its time, its brokers, and which process runs."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from leftfold.testing.simulation.kafka.brokers import Cluster
from leftfold.testing.simulation.scheduler import Killed, Scheduler, SimulatedProcess, Task

__all__ = ["SimulatedWorld", "active", "is_simulated"]

_active: list[SimulatedWorld] = []


class SimulatedWorld:
    """Everything of one run. Only one world is active at a time.

    Args:
        seed: decides everything that is left open. brokers: how many there are.
    """

    def __init__(self, seed: int, brokers: int = 2) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.random = random.Random(seed ^ 0x5EED)  # what the simulated code draws; nothing secret
        self.cluster = Cluster(self.scheduler, brokers)
        self.processes: list[SimulatedProcess] = []
        self.thread = threading.get_ident()
        self.parts: dict[str, Any] = {}
        """What other parts of the simulation keep here, such as the network of sockets."""

    @contextmanager
    def activated(self) -> Iterator[SimulatedWorld]:
        """The world in which clients are made within the block."""
        _active.append(self)
        before = sys.unraisablehook
        # What a killed process has left is finalized by whoever comes next, and cannot say goodbye to its servers.
        sys.unraisablehook = lambda about: None if about.exc_type is Killed else before(about)
        try:
            yield self
        finally:
            sys.unraisablehook = before
            _active.pop()

    @property
    def process(self) -> SimulatedProcess:
        """Whose code runs."""
        task = self.scheduler.current
        if task is None:
            raise RuntimeError("a simulated client is used outside a simulated process")
        return task.process

    def start(self, name: str, function: Callable[[], Any], role: str = "") -> Task:
        """A new process with its first task; one that is started again has the name of the one before."""
        process = SimulatedProcess(name, self.scheduler, role)
        self.processes.append(process)
        return self.scheduler.spawn(process, function)

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Lets virtual time pass until something is so; whether it is so after so many seconds at most."""
        return self.scheduler.run(until, seconds)

    def close(self) -> None:
        """Ends what still runs."""
        for process in self.processes:
            process.end(-9)


def active() -> SimulatedWorld:
    """The world whose code runs."""
    if not _active:
        raise RuntimeError("no simulated world is active")
    return _active[-1]


def is_simulated() -> bool:
    """Whether the code that asks runs in the active world; other threads of the test's process do not."""
    return bool(_active) and threading.get_ident() == _active[-1].thread
