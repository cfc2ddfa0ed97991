"""Stand-ins for `threading` and `queue`: locks, events and threads over tasks of the simulated process."""

from __future__ import annotations

import queue as real_queue
import threading as real_threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

from leftfold.testing.simulation.environment import active, is_simulated
from leftfold.testing.simulation.scheduler import Task

__all__ = [
    "Module",
    "SimpleQueue",
    "SimulatedCondition",
    "SimulatedEvent",
    "SimulatedLock",
    "SimulatedRLock",
    "SimulatedThread",
    "SimulatedTimer",
    "get_ident",
    "queue",
    "simulated_function",
    "threading",
]

_OUTSIDE = object()


def _here() -> Any:
    """The running task, or a constant for code outside all tasks."""
    return active().scheduler.current or _OUTSIDE


class _Waiting:
    """Tasks that wait for one object, first come first served."""

    def __init__(self) -> None:
        self._tasks: deque[tuple[Task, int]] = deque()

    def wait(self, timeout: float | None) -> bool:
        """Waits for a wake-up; False at the timeout."""
        scheduler = active().scheduler
        task = scheduler.current
        if task is None:
            raise RuntimeError("code outside a simulated process would wait for ever")
        entry = task, task.turn
        self._tasks.append(entry)
        woken = scheduler.wait(timeout)
        if not woken and entry in self._tasks:
            self._tasks.remove(entry)
        return bool(woken)

    def wake(self, count: int = 1) -> None:
        """Wakes so many waiting tasks."""
        while self._tasks and count:
            task, turn = self._tasks.popleft()
            if task.turn == turn and not task.is_done and task.process.code is None:
                active().scheduler.wake_later(task, turn)
                count -= 1

    def __len__(self) -> int:
        return len(self._tasks)


class SimulatedLock:
    """`threading.Lock`."""

    def __init__(self) -> None:
        self._owner: Any = None
        self._depth = 0
        self._waiting = _Waiting()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of `threading.Lock`."""
        scheduler = active().scheduler
        end = None if timeout < 0 else scheduler.now + timeout
        while self._owner is not None and not self._is_dead():
            if not blocking:
                return False
            left = None if end is None else end - scheduler.now
            if left is not None and left <= 0:
                return False
            self._waiting.wait(left)
        self._owner, self._depth = _here(), 1
        return True

    def release(self) -> None:
        """As of `threading.Lock`."""
        if self._owner is None:
            raise RuntimeError("release unlocked lock")
        self._owner, self._depth = None, 0
        self._waiting.wake()

    def locked(self) -> bool:
        """As of `threading.Lock`."""
        return self._owner is not None and not self._is_dead()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            self.release()

    def _is_dead(self) -> bool:
        """Whether the owner's process has ended: its memory ends with it."""
        return isinstance(self._owner, Task) and self._owner.process.code is not None


class SimulatedRLock(SimulatedLock):
    """`threading.RLock`."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As of `threading.RLock`."""
        if self._owner is not None and self._owner is _here():
            self._depth += 1
            return True
        return super().acquire(blocking, timeout)

    def release(self) -> None:
        """As of `threading.RLock`."""
        if self._depth > 1:
            self._depth -= 1
        else:
            super().release()


class SimulatedCondition:
    """`threading.Condition`."""

    def __init__(self, lock: SimulatedLock | None = None) -> None:
        self._lock = SimulatedRLock() if lock is None else lock
        self._waiting = _Waiting()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def wait(self, timeout: float | None = None) -> bool:
        """As of `threading.Condition`."""
        self._lock.release()
        try:
            return self._waiting.wait(timeout)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """As of `threading.Condition`."""
        scheduler = active().scheduler
        end = None if timeout is None else scheduler.now + timeout
        while not (found := predicate()):
            left = None if end is None else end - scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        """As of `threading.Condition`."""
        self._waiting.wake(n)

    def notify_all(self) -> None:
        """As of `threading.Condition`."""
        self._waiting.wake(len(self._waiting))


class SimulatedEvent:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting = _Waiting()

    def is_set(self) -> bool:
        """As of `threading.Event`."""
        return self._is_set

    def set(self) -> None:
        """As of `threading.Event`."""
        self._is_set = True
        self._waiting.wake(len(self._waiting))

    def clear(self) -> None:
        """As of `threading.Event`."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """As of `threading.Event`; it takes a moment even when it need not wait, so that loops of it end."""
        if not self._is_set:
            self._waiting.wait(timeout if timeout is None else max(timeout, 1e-6))
        return self._is_set


class SimulatedThread:
    """`threading.Thread`, as a task of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self.name, self.daemon = name or "thread", bool(daemon)
        self._task: Task | None = None
        self._ended = _Waiting()

    def start(self) -> None:
        """As of `threading.Thread`."""
        world = active()
        self._task = world.scheduler.spawn(world.process, self.run, self.name)
        self._task.ended.append(lambda: self._ended.wake(len(self._ended)))

    def run(self) -> None:
        """As of `threading.Thread`."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        """As of `threading.Thread`."""
        if self.is_alive():
            self._ended.wait(timeout)

    def is_alive(self) -> bool:
        """As of `threading.Thread`."""
        return self._task is not None and not self._task.is_done

    @property
    def ident(self) -> int | None:
        """As of `threading.Thread`."""
        return None if self._task is None else id(self._task)


class SimulatedTimer(SimulatedThread):
    """`threading.Timer`."""

    def __init__(self, interval: float, function: Callable[..., Any], args: Any = None, kwargs: Any = None) -> None:
        super().__init__(target=function, args=args or (), kwargs=kwargs)
        self._interval, self._cancelled = interval, SimulatedEvent()

    def run(self) -> None:
        """As of `threading.Timer`."""
        if not self._cancelled.wait(self._interval):
            super().run()

    def cancel(self) -> None:
        """As of `threading.Timer`."""
        self._cancelled.set()


def get_ident() -> int:
    """As of `threading`: one number for each task."""
    return id(_here())


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting = _Waiting()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """As of `queue.SimpleQueue`."""
        self._items.append(item)
        self._waiting.wake()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """As of `queue.SimpleQueue`."""
        scheduler = active().scheduler
        end = None if timeout is None else scheduler.now + timeout
        while not self._items:
            left = None if end is None else end - scheduler.now
            if not block or (left is not None and left <= 0):
                raise real_queue.Empty
            self._waiting.wait(left)
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """As of `queue.SimpleQueue`."""
        return self.get(block=False)

    def empty(self) -> bool:
        """As of `queue.SimpleQueue`."""
        return not self._items

    def qsize(self) -> int:
        """As of `queue.SimpleQueue`."""
        return len(self._items)


class Module:
    """A module with some simulated names; threads outside the world get the real ones."""

    def __init__(self, real: Any, **names: Any) -> None:
        self._real, self._names = real, names
        # Functions are called all the time: an attribute of the instance is found without `__getattr__`.
        functions = {name: one for name, one in names.items() if isinstance(one, FunctionType)}
        vars(self).update({name: simulated_function(getattr(real, name), one) for name, one in functions.items()})

    def __getattr__(self, name: str) -> Any:
        found = self._names.get(name, _OUTSIDE)
        return found if found is not _OUTSIDE and is_simulated() else getattr(self._real, name)


def simulated_function(real: Any, stand_in: Any) -> Any:
    """A function that calls the stand-in within the world, and the real one elsewhere; a module is one already."""
    if isinstance(stand_in, Module):
        return stand_in

    def chosen(*args: Any, **more: Any) -> Any:
        return (stand_in if is_simulated() else real)(*args, **more)

    return chosen


threading = Module(
    real_threading,
    Thread=SimulatedThread,
    Timer=SimulatedTimer,
    Lock=SimulatedLock,
    RLock=SimulatedRLock,
    Condition=SimulatedCondition,
    Event=SimulatedEvent,
    get_ident=get_ident,
)
queue = Module(real_queue, SimpleQueue=SimpleQueue)
