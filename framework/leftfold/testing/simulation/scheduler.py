"""The scheduler of a simulation: runs tasks one at a time, in seeded order and virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Any

import greenlet

__all__ = ["Killed", "ScheduledCall", "Scheduler", "SimulatedProcess", "Stuck", "Task"]

JITTER = 2e-5
"""The longest delay in seconds between a wake-up and running: the seed chooses which task runs first."""


class Killed(BaseException):
    """Unwinds a task whose process has ended; every simulated call on the way raises it again."""


class Stuck(Exception):
    """A task waits for something that can never happen."""


class ScheduledCall(list[Any]):
    """An action at a point in time, unless it is cancelled before: [seconds, number, action], as the heap orders it."""

    __slots__ = ()

    def cancel(self) -> None:
        """Cancels the action."""
        self[2] = None


class SimulatedProcess:
    """A simulated process: tasks that share memory and a clock, and are killed, stopped and started together.

    Attributes:
        role: the kind of process, such as "worker". number: its process id. skew: seconds that its wall clock is ahead.
        drift: seconds that it has worked so far, without waits.
        code: its exit code once it has ended; -9 = killed.
        calls: how many simulated calls it has made. strike: called before each of them with its name.
        terminate: asks it to end in order, as SIGTERM does; None = it ignores that.
    """

    def __init__(self, name: str, scheduler: Scheduler, role: str = "", number: int = 1000) -> None:
        self.name, self._scheduler, self.role, self.number = name, scheduler, role or name, number
        self.skew, self.drift, self.calls = 0.0, 0.0, 0
        self.code: int | None = None
        self.is_stopped = False
        self.tasks: list[Task] = []
        self.at_end: list[Callable[[], None]] = []
        self.strike: Callable[[SimulatedProcess, str], None] | None = None
        self.terminate: Callable[[], None] | None = None
        self._deferred: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def step(self, what: str) -> None:
        """Begins a simulated call, at which a fault may occur.

        Raises:
            Killed: the process has ended.
        """
        if self.code is not None:
            raise Killed
        self.calls += 1
        if self.strike is not None:
            self.strike(self, what)

    def end(self, code: int) -> None:
        """Ends the process at once: no task continues, but requests that its clients have sent still arrive."""
        if self.code is not None:
            return
        self.code = code
        for action in self.at_end:
            action()
        self._deferred.clear()
        current = self._scheduler.current
        for task in self.tasks:
            if task is not current:
                task.unwind()
        if current is not None and current.process is self:
            raise Killed

    def stop(self) -> None:
        """Stops the process as SIGSTOP does: nothing of it runs, while its connections stay."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Continues the process as SIGCONT does."""
        self.is_stopped = False
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            self._scheduler.call_later(0.0, action)

    def do(self, action: Callable[..., None], *arguments: Any) -> None:
        """Runs an action in the process, now or when it continues; never once it has ended."""
        if self.code is not None:
            return
        if self.is_stopped:
            self._deferred.append(partial(action, *arguments))
        else:
            action(*arguments)


class Task:
    """A thread of a process; only one task of the world runs at a time.

    Attributes:
        turn: the number of the current wait, by which a wake-up names the wait that it ends.
    """

    def __init__(self, process: SimulatedProcess, function: Callable[[], Any], name: str, scheduler: Scheduler) -> None:
        self.process, self.name = process, name
        self.error: BaseException | None = None
        self.is_done = False
        self.ended: list[Callable[[], None]] = []
        self._function, self._scheduler = function, scheduler
        self._greenlet = greenlet.greenlet(self._run, scheduler.hub)
        self.turn = 0

    def __repr__(self) -> str:
        return f"<{self.process.name}/{self.name}>"

    def wake(self, turn: int, reason: Any = True) -> None:
        """Ends the wait of this turn; later waits are not affected."""
        if turn != self.turn or self.is_done:
            return
        if self._scheduler.current is not None:
            # Another task runs, or this one has not begun to wait.
            self._scheduler.call_later(0.0, partial(self.wake, turn, reason))
        elif self.process.is_stopped or self.process.code is not None:
            self.process.do(self._resume, turn, reason)
        else:
            self._resume(turn, reason)

    def unwind(self) -> None:
        """Ends the task where it waits."""
        if self.is_done or not self._greenlet:
            self.is_done = True
            return
        self.turn += 1
        before, self._scheduler.current = self._scheduler.current, self
        # When the task has ended, the calling task continues.
        self._greenlet.parent = greenlet.getcurrent()
        try:
            self._greenlet.throw(Killed)
        finally:
            self._scheduler.current = before

    def _resume(self, turn: int, reason: Any) -> None:
        if turn != self.turn or self.is_done:
            return
        self.turn += 1
        scheduler = self._scheduler
        scheduler.current = self
        try:
            self._greenlet.switch(reason)
        finally:
            scheduler.current = None

    def _run(self, _: Any) -> None:
        try:
            self._function()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  # any error; it is reported through `error`
            self.error = error
        finally:
            self.is_done = True
            if self.process.code is None:
                for action in self.ended:
                    action()


class Scheduler:
    """The scheduler: runs tasks one at a time, in virtual time.

    Args:
        seed: decides every order and every duration; the same seed gives the same run.

    Attributes:
        now: seconds since the run began. current: the running task, None between two.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # not for secrets
        self.now = 0.0
        self.events = 0
        self.current: Task | None = None
        self.hub = greenlet.getcurrent()
        self._heap: list[ScheduledCall] = []
        self._number = 0

    def call_later(self, seconds: float, action: Callable[[], None]) -> ScheduledCall:
        """Schedules an action in so many seconds, between two tasks."""
        self._number += 1
        call = ScheduledCall((self.now + seconds, self._number, action))
        heappush(self._heap, call)
        return call

    def spawn(self, process: SimulatedProcess, function: Callable[[], Any], name: str = "main") -> Task:
        """Starts a new task of a process."""
        task = Task(process, function, name, self)
        process.tasks.append(task)
        self.wake_later(task, task.turn)
        return task

    def jitter(self) -> float:
        """A short random delay in seconds."""
        return self.random.random() * JITTER

    def wait(self, seconds: float | None = None) -> Any:
        """Waits in the current task for a `wake`; returns its reason, or False after so many seconds.

        Raises:
            Killed: its process has ended.
        """
        task = self.current
        if task is None:
            raise Stuck("a wait outside a task")
        if task.process.code is not None:
            raise Killed
        timer = None if seconds is None else self.call_later(max(0.0, seconds), partial(task.wake, task.turn, False))
        reason = self.hub.switch()
        if timer is not None:
            timer.cancel()
        if task.process.code is not None:
            raise Killed
        return reason

    def wake_later(self, task: Task, turn: int) -> None:
        """Wakes a task after a short delay."""
        self.call_later(self.random.random() * JITTER, partial(task.wake, turn))

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Advances time until a condition holds, at most so many seconds; returns whether it holds.

        Raises:
            Stuck: no further action is scheduled.
        """
        end = self.now + seconds
        heap = self._heap
        while not until():
            if not heap:
                raise Stuck("nothing can happen any more")
            if heap[0][0] > end:
                self.now = end
                return until()
            call = heappop(heap)
            self.now, _, action = call
            if action is not None:
                self.events += 1
                call[2] = None
                action()
        return True
