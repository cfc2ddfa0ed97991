"""Runs tasks one at a time, in an order that a seed decides and in time that is a number."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

import greenlet

__all__ = ["Killed", "ScheduledCall", "Scheduler", "SimulatedProcess", "Stuck", "Task"]

JITTER = 2e-5
"""Seconds at most between a reason to go on and going on: who goes on first is the seed's choice."""


class Killed(BaseException):
    """Unwinds a task whose process is no more; whatever it calls on the way out raises this again."""


class Stuck(Exception):
    """Something is awaited that can never happen."""


class ScheduledCall:
    """Something that happens at a point in time, unless it is cancelled before."""

    __slots__ = ("action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Nothing happens then."""
        self.action = None


class SimulatedProcess:
    """What is killed, stopped and started as one: tasks that share a memory, with a clock of their own.

    Attributes:
        role: what it is one of, such as "worker". skew: seconds that its wall clock is ahead.
        drift: seconds that it has worked so far, which no wait counts.
        code: its exit code once it has ended; -9 = killed.
        calls: how many simulated calls it has made. strike: called before each of them with its name.
        terminate: asks it to end in order, as SIGTERM does; None = it does not listen.
    """

    def __init__(self, name: str, scheduler: Scheduler, role: str = "") -> None:
        self.name, self._scheduler, self.role = name, scheduler, role or name
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
        """A simulated call begins: the place where a plan may strike.

        Raises:
            Killed: the process has ended.
        """
        if self.code is not None:
            raise Killed
        self.calls += 1
        if self.strike is not None:
            self.strike(self, what)

    def end(self, code: int) -> None:
        """Ends it at once: no task runs on, and what its clients had under way is on its way."""
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
        """As SIGSTOP does: nothing of it runs, while its connections stay."""
        self.is_stopped = True

    def go_on(self) -> None:
        """As SIGCONT does."""
        self.is_stopped = False
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            self._scheduler.call_later(0.0, action)

    def do(self, action: Callable[[], None]) -> None:
        """Does something in its name, now or when it goes on; never once it has ended."""
        if self.code is not None:
            return
        if self.is_stopped:
            self._deferred.append(action)
        else:
            action()


class Task:
    """A thread of a process; it runs only while it holds the baton."""

    def __init__(self, process: SimulatedProcess, function: Callable[[], Any], name: str, scheduler: Scheduler) -> None:
        self.process, self.name = process, name
        self.error: BaseException | None = None
        self.is_done = False
        self.ended: list[Callable[[], None]] = []
        self._function, self._scheduler = function, scheduler
        self._greenlet = greenlet.greenlet(self._run, scheduler.hub)
        self._turn = 0

    def __repr__(self) -> str:
        return f"<{self.process.name}/{self.name}>"

    @property
    def turn(self) -> int:
        """Grows whenever it goes on: who wakes it says which wait is meant."""
        return self._turn

    def wake(self, turn: int, reason: Any = True) -> None:
        """Ends the wait that began at this turn; later ones are left alone."""
        if turn != self._turn or self.is_done:
            return
        if self._scheduler.current is None:
            self.process.do(lambda: self._resume(turn, reason))
        else:
            # Another task holds the baton, or it has not begun to wait.
            self._scheduler.call_later(0.0, lambda: self.wake(turn, reason))

    def unwind(self) -> None:
        """Ends it where it stands."""
        if self.is_done or not self._greenlet:
            self.is_done = True
            return
        self._turn += 1
        before, self._scheduler.current = self._scheduler.current, self
        # When it has ended, whoever ends it goes on.
        self._greenlet.parent = greenlet.getcurrent()
        try:
            self._greenlet.throw(Killed)
        finally:
            self._scheduler.current = before

    def _resume(self, turn: int, reason: Any) -> None:
        if turn != self._turn or self.is_done:
            return
        self._turn += 1
        self._scheduler.current = self
        try:
            self._greenlet.switch(reason)
        finally:
            self._scheduler.current = None

    def _run(self, _: Any) -> None:
        try:
            self._function()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001  # whatever it is, whoever looks at the task is told
            self.error = error
        finally:
            self.is_done = True
            if self.process.code is None:
                for action in self.ended:
                    action()


class Scheduler:
    """Runs tasks one at a time, in virtual time.

    Args:
        seed: decides every order and every length of time; the same seed gives the same run.

    Attributes:
        now: seconds since the run began. current: the task that holds the baton, None between two.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # nothing secret
        self.now = 0.0
        self.events = 0
        self.current: Task | None = None
        self.hub = greenlet.getcurrent()
        self._heap: list[tuple[float, int, ScheduledCall]] = []
        self._number = 0

    def call_later(self, seconds: float, action: Callable[[], None]) -> ScheduledCall:
        """Has something happen in so many seconds, between two tasks."""
        timer = ScheduledCall(action)
        self._number += 1
        heapq.heappush(self._heap, (self.now + seconds, self._number, timer))
        return timer

    def spawn(self, process: SimulatedProcess, function: Callable[[], Any], name: str = "main") -> Task:
        """A new task of a process; it begins soon."""
        task = Task(process, function, name, self)
        process.tasks.append(task)
        turn = task.turn
        self.call_later(self.jitter(), lambda: task.wake(turn))
        return task

    def jitter(self) -> float:
        """A moment."""
        return self.random.random() * JITTER

    def wait(self, seconds: float | None = None) -> Any:
        """The current task waits for a `wake`; returns its reason, or False after so many seconds.

        Raises:
            Killed: its process has ended.
        """
        task = self.current
        if task is None:
            raise Stuck("nobody waits outside a task")
        if task.process.code is not None:
            raise Killed
        turn = task.turn
        timer = None if seconds is None else self.call_later(max(0.0, seconds), lambda: task.wake(turn, False))
        reason = self.hub.switch()
        if timer is not None:
            timer.cancel()
        if task.process.code is not None:
            raise Killed
        return reason

    def wake_later(self, task: Task, turn: int) -> None:
        """Wakes a task in a moment."""
        self.call_later(self.jitter(), lambda: task.wake(turn))

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Lets time pass until something is so, at most so many seconds; whether it is so.

        Raises:
            Stuck: nothing can ever happen any more.
        """
        end = self.now + seconds
        heap = self._heap
        while not until():
            if not heap:
                raise Stuck("nothing can happen any more")
            if heap[0][0] > end:
                self.now = end
                return until()
            self.now, _, timer = heapq.heappop(heap)
            if timer.action is not None:
                self.events += 1
                action, timer.action = timer.action, None
                action()
        return True
