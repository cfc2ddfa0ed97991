"""Runs what users wrote to act outside, on threads, each try with a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from leftfold.engine.pending import Pending
from leftfold.errors import Fenced
from leftfold.reaction import Reaction

__all__ = ["Actors", "Ended"]


class Ended(NamedTuple):
    """A try that is over, and what it failed of; `is_left`: that it failed was told when its deadline passed."""

    pending: Pending
    error: BaseException | None
    is_left: bool = False


class Actors:
    """Starts tries and tells of their ends. A try that outlives its deadline counts as failed, and its thread is left.

    Python cannot end a thread: those that hang are counted, and when there are far more than tries of one event could
    leave, the process ends to be started anew. Until it ends, such a thread may still do what kills the process.
    """

    def __init__(self, reaction: Reaction[Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._reaction, self._clock = reaction, clock
        self._under_way: dict[int, tuple[Pending, float]] = {}
        self._left: dict[int, tuple[Pending, float]] = {}
        self._most_left = max(64, 2 * reaction.at_once * reaction.attempts)
        self._ends: SimpleQueue[tuple[int, BaseException | None]] = SimpleQueue()
        self._number = count()

    @property
    def free(self) -> int:
        """How many more tries may begin."""
        return self._reaction.at_once - len(self._under_way)

    def under_way(self) -> list[Pending]:
        """What is being tried."""
        return [pending for pending, _ in self._under_way.values()]

    def left(self) -> list[Pending]:
        """Whose threads were left and have not ended."""
        return [pending for pending, _ in self._left.values()]

    def near(self) -> list[Pending]:
        """What is being tried, and what was left so lately that a death might well be its own.

        A thread that never ends is near for one `timeout` more: nothing may wait for it for ever.
        """
        now = self._clock()
        return self.under_way() + [pending for pending, until in self._left.values() if now < until]

    def is_acting(self, pending: Pending) -> bool:
        """Whether any thread is at this event, left or not."""
        here = (pending.place, pending.record.offset)
        return any(here == (one.place, one.record.offset) for one in (*self.under_way(), *self.left()))

    def start(self, pending: Pending) -> None:
        """Begins a try."""
        number = next(self._number)
        self._under_way[number] = (pending, self._clock() + self._reaction.timeout)
        threading.Thread(
            target=self._run, args=(number, pending), name=f"{self._reaction.name}-{number}", daemon=True
        ).start()

    def ended(self, wait: float) -> list[Ended]:
        """The tries that have ended, left ones too, waited for when none has yet; and those whose time is over.

        Raises:
            Fenced: too many threads hang.
        """
        found: list[Ended] = []
        try:
            told = self._ends.get(timeout=wait) if wait > 0 else self._ends.get_nowait()
            while True:
                number, error = told
                if number in self._under_way:
                    found.append(Ended(self._under_way.pop(number)[0], error))
                else:
                    found.append(Ended(self._left.pop(number)[0], error, is_left=True))
                told = self._ends.get_nowait()
        except Empty:
            return found + self._overdue()

    def _overdue(self) -> list[Ended]:
        now = self._clock()
        late = [number for number, (_, deadline) in self._under_way.items() if now >= deadline]
        for number in late:
            self._left[number] = (self._under_way.pop(number)[0], now + self._reaction.timeout)
        if len(self._left) > self._most_left:
            raise Fenced(
                f"reaction {self._reaction.name}: {len(self._left)} tries hang beyond their {self._reaction.timeout:g} "
                f"s; this process ends. Give what act() waits for a deadline of its own"
            )
        why = f"no end within {self._reaction.timeout:g} s"
        return [Ended(self._left[number][0], TimeoutError(why)) for number in late]

    def _run(self, number: int, pending: Pending) -> None:
        error: BaseException | None = None
        try:
            self._reaction.call(pending.event, pending.next_delivery())
        except BaseException as failure:  # noqa: BLE001  # SystemExit too: whatever it is, the event is not done
            error = failure
        self._ends.put((number, error))
