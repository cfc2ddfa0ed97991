"""The reactions and timers of a world in memory, for tests to run, fire and cancel."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

from leftfold.engine.processing.timer_admin import Action, Order, SetTimer, order_record
from leftfold.engine.reactions.pending import PendingDelivery, PendingReader, parked
from leftfold.errors import ConfigurationError
from leftfold.memory.event_log import MemoryLog, MemoryLogReader
from leftfold.memory.flow import Flow
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.keys import partition_of
from leftfold.model.position import Position
from leftfold.model.reaction import Delivery, Reaction
from leftfold.ports.outgoing import reason_of

__all__ = ["Acts", "MemoryReactions", "MemoryTimers"]


_LOGGER = logging.getLogger(__name__)

Acts: TypeAlias = Mapping[Reaction[Any], Callable[[Any, Delivery], None]]
"""Functions to call in place of the `act` of reactions."""


class MemoryReactions:
    """The deliveries of an App's reactions, in order.

    Args:
        acts: functions to call; they are attempted as often as the reaction says, without pauses.

    Raises:
        ConfigurationError: one of them is for a reaction that the App does not have.
    """

    def __init__(self, app: App, log: MemoryLog, acts: Acts) -> None:
        self._app, self._log, self._acts = app, log, acts
        self._deliveries: dict[str, list[tuple[Any, Delivery]]] = {r.name: [] for r in app.reactions}
        for reaction in acts:
            if reaction not in app.reactions:
                raise ConfigurationError(f"app {app.name} has no reaction {reaction.name!r}; add it: reactions=[...]")
        self._waiting: deque[tuple[Reaction[Any], PendingDelivery]] = deque()
        self._is_running = False
        self._readers: list[tuple[Reaction[Any], MemoryLogReader, PendingReader]] = []
        for reaction in app.reactions:
            log.create(names.dead(reaction.name), app.partitions)
            for category in reaction.categories:
                log.create(names.events(category), app.partitions)
            reader = log.reader()
            topics = [names.events(category) for category in reaction.categories]
            reader.seek(Position({topic: dict.fromkeys(range(app.partitions), 0) for topic in topics}))
            self._readers.append((reaction, reader, PendingReader(reaction)))

    def of(self, reaction: Reaction[Any]) -> list[tuple[Any, Delivery]]:
        """The events that were delivered to a reaction, each attempt with its delivery.

        Raises:
            ConfigurationError: the App does not have it.
        """
        return list(self._deliveries[self._app.reaction(reaction.name).name])

    def run(self) -> None:
        """Delivers the events written since the last call; events that an act causes are delivered last."""
        for reaction, reader, pendings in self._readers:
            while records := reader.poll(1000, 0.0):
                found = (pendings.read(record) for record in records)
                self._waiting.extend((reaction, pending) for pending in found if pending is not None)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._waiting:
                self._deliver(*self._waiting.popleft())
        finally:
            self._is_running = False

    def _deliver(self, reaction: Reaction[Any], pending: PendingDelivery) -> None:
        failure: Exception | None = pending.error
        while pending.error is None:
            delivery = pending.next_delivery()
            self._deliveries[reaction.name].append((pending.event, delivery))
            if reaction not in self._acts:
                return
            try:
                reaction.call(pending.event, delivery, self._acts[reaction])
                return
            except Exception as error:  # noqa: BLE001  # whatever user code raises, the event is not handled
                failure, pending.tries = error, pending.tries + 1
            if pending.tries >= reaction.attempts or isinstance(failure, reaction.gives_up):
                break
        if failure is not None:
            home = partition_of(pending.record.key or b"", self._app.partitions)
            out = parked(pending, failure, home)
            _LOGGER.warning("%s: parked after %d tries: %s", reaction.name, pending.tries, reason_of(failure))
            self._log.append(names.dead(reaction.name), out.partition, out.key, out.value, out.headers)


class MemoryTimers:
    """The timers of the processes of a world; `fire` and `cancel` return when all that follows has happened."""

    def __init__(self, app: str, flow: Flow, clock: Callable[[], datetime], settle: Callable[[], None]) -> None:
        self._app, self._flow, self._clock, self._settle = app, flow, clock, settle

    def list(self, process: str = "", key: str = "") -> dict[tuple[str, str, str], datetime]:
        """The due time of each timer by process, business key and name; '' = of all."""
        found = self._flow.timers()
        return {
            (of, timer.key, timer.name): datetime.fromisoformat(timer.due.at)
            for of, timer in found
            if process in ("", of) and key in ("", timer.key)
        }

    def fire(self, process: str, key: str, name: str, /, *, reason: str = "manual", by: str = "a test") -> None:
        """Fires a timer: it sends its command now, as if it were due.

        Raises:
            ConfigurationError: it is not set.
        """
        self._order(Action.FIRE, process, key, name, by, reason)

    def cancel(self, process: str, key: str, name: str, /, *, reason: str = "manual", by: str = "a test") -> None:
        """Cancels a timer, so that it never fires.

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
