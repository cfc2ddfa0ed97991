"""The timers of a world's processes, listed, fired and cancelled by hand as `leftfold timers` does (decision 31)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from leftfold.engine.timer_order import Action, Order, SetTimer, order_record
from leftfold.errors import ConfigurationError
from leftfold.memory.flow import Flow

__all__ = ["MemoryTimers"]


class MemoryTimers:
    """What the processes of a world wait for; whatever follows from an order has happened when it returns."""

    def __init__(self, app: str, flow: Flow, clock: Callable[[], datetime], settle: Callable[[], None]) -> None:
        self._app, self._flow, self._clock, self._settle = app, flow, clock, settle

    def list(self, process: str = "", key: str = "") -> dict[tuple[str, str, str], datetime]:
        """When each timer that is set is due, by process, business key and name; '' = of all."""
        found = self._flow.timers()
        return {
            (of, timer.key, timer.name): datetime.fromisoformat(timer.due.at)
            for of, timer in found
            if process in ("", of) and key in ("", timer.key)
        }

    def fire(self, process: str, key: str, name: str, /, *, reason: str = "by hand", by: str = "a test") -> None:
        """Has a timer send its command now, as if its time had come.

        Raises:
            ConfigurationError: it is not set.
        """
        self._order(Action.FIRE, process, key, name, by, reason)

    def cancel(self, process: str, key: str, name: str, /, *, reason: str = "by hand", by: str = "a test") -> None:
        """Ends a timer, so that it never fires.

        Raises:
            ConfigurationError: it is not set.
        """
        self._order(Action.CANCEL, process, key, name, by, reason)

    def _order(self, action: Action, process: str, key: str, name: str, by: str, reason: str) -> None:
        timer = self._timer(process, key, name)
        at = self._flow.time(process, timer.partition) or self._clock()
        self._flow.give(process, order_record(self._app, process, timer, Order(action, by, reason, at)))
        self._settle()

    def _timer(self, process: str, key: str, name: str) -> SetTimer:
        for of, timer in self._flow.timers():
            if (of, timer.key, timer.name) == (process, key, name):
                return timer
        known = ", ".join(f"{of} {timer.key} {timer.name}" for of, timer in self._flow.timers())
        raise ConfigurationError(f"no timer {name!r} is set in {process} {key!r}; there are: {known or 'none'}")
