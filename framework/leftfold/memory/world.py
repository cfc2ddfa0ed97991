"""`memory(app, now=...)`: an App in this process, with the same client and views as in production."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from typing_extensions import TypeVar

from leftfold.client import Reader, Views
from leftfold.client.commands import Client, CommandRequest
from leftfold.client.lookup import checked_view
from leftfold.client.packing import CommandPacker
from leftfold.engine.processing.command_wire import to_error
from leftfold.engine.processing.timer_admin import Action, Order, SetTimer, order_record
from leftfold.engine.reactions.pending import PendingDelivery, PendingReader, parked
from leftfold.engine.views.projector import Projector
from leftfold.errors import ConfigurationError, ContractError, LeftfoldError, OutcomeUnknown
from leftfold.memory.event_log import MemoryLog, MemoryLogReader
from leftfold.memory.flow import Flow
from leftfold.memory.views import MemoryViewStore
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.keys import partition_of
from leftfold.model.messages import Event
from leftfold.model.position import Position, Receipt, Recorded
from leftfold.model.reaction import Acts, Delivery, Reaction, check_acts
from leftfold.model.view import View
from leftfold.ports.message_codec import read_recorded, utc_text
from leftfold.ports.outgoing import reason_of
from leftfold.ports.protocols import RawRecord

__all__ = ["World", "memory"]


Answer = Callable[[Iterable[CommandRequest]], list[Receipt | LeftfoldError]]


class MemoryClient(Client):
    """A Client without servers; it answers at once, so `timeout` has no effect.

    Args:
        answer: decides commands and lets their consequences happen, for one thread at a time.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def _send_requests(
        self, requests: Iterable[CommandRequest], timeout: float, window: int | None = None
    ) -> Iterator[Receipt | LeftfoldError]:
        """Decides commands; their consequences happen after each one, or after the last one without a window."""
        for together in [list(requests)] if window is None else ([request] for request in requests):
            yield from self._answer(together)

    async def _asend_request(self, request: CommandRequest, timeout: float) -> Receipt | LeftfoldError:
        (outcome,) = self._answer([request])
        return outcome


Row = TypeVar("Row")
K = TypeVar("K", default=str)


class FoldedViews(Views):
    """The views of a world in memory; for views that it cannot compute, the error names the alternative."""

    def __init__(self, app: App, store: MemoryViewStore) -> None:
        super().__init__(store)
        self._app = app

    def __getitem__(self, view: View[Row, K], /) -> Reader[Row, K]:
        """The reader of a view.

        Raises:
            ConfigurationError: it is none, it is computed by SQL or DataFrames, or the App does not have it.
        """
        if checked_view(view).streamed:
            raise ConfigurationError(f"view {view.name} is kept by a stream of its own, and memory(app) runs none")
        if not view.folded:
            raise ConfigurationError(
                f"view {view.name} is computed by Spark, and memory(app) runs none; in tests: "
                f"from leftfold.spark.queries.testing import rows; rows({view.name}, event, ...)"
            )
        if all(view.name != one.name for one in self._app.views):
            raise ConfigurationError(f"app {self._app.name} does not fold view {view.name}; add it to views=")
        return super().__getitem__(view)


_LOGGER = logging.getLogger(__name__)


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
        check_acts(acts, app.reactions, app.name)
        self._waiting: deque[tuple[Reaction[Any], PendingDelivery]] = deque()
        self._is_running = False
        self._readers: list[tuple[Reaction[Any], MemoryLogReader, PendingReader]] = []
        for reaction in app.reactions:
            log.create(names.dead(reaction.name), app.partitions)
            for category in reaction.categories:
                log.create(names.events(category), app.partitions)
            reader = log.reader(map(names.events, reaction.categories))
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

    def __init__(self, world: World, flow: Flow, lock: threading.RLock) -> None:
        self._world, self._flow, self._lock = world, flow, lock

    def list(self, process: str = "", key: str = "") -> dict[tuple[str, str, str], datetime]:
        """The due time of each timer by process, business key and name; '' = of all.

        Raises:
            ConfigurationError: the App does not have this process.
        """
        if process:
            self._world.app.process(process)
        with self._lock:
            found = list(self._flow.timers())
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
        with self._lock:
            timer = self._timer(process, key, name)
            at = self._flow.time(process, timer.partition) or self._world.now
            order = Order(action, by, reason, at)
            self._flow.give(process, order_record(self._world.app.name, process, timer, order))
            self._world.settle()

    def _timer(self, process: str, key: str, name: str) -> SetTimer:
        for of, timer in self._flow.timers():
            if (of, timer.key, timer.name) == (process, key, name):
                return timer
        known = ", ".join(f"{of} {timer.key} {timer.name}" for of, timer in self._flow.timers())
        raise ConfigurationError(f"no timer {name!r} is set in {process} {key!r}; there are: {known or 'none'}")


E = TypeVar("E", bound=Event)


class World:
    """An App in memory: `client` and `views` as in production, `now` and `advance` for its clock, `timers` to fire.

    After each command all its consequences have happened: processes have reacted, and views are folded. One thread at a
    time decides, and lets the consequences happen; others wait for it.
    """

    def __init__(self, app: App, now: datetime, acts: Acts | None = None) -> None:
        # In UTC: the clock of a zone repeats and omits hours.
        self.app, self.now = app, now.astimezone(UTC)
        # An act of a reaction may send commands.
        self._lock = threading.RLock()
        self.log, self.store = MemoryLog(), MemoryViewStore()
        self._flow = Flow(app, self.log, lambda: self.now)
        for view in app.views:
            for category in view.categories:
                self.log.create(names.events(category), app.partitions)
        self._reactions = MemoryReactions(app, self.log, acts or {})
        self._projector = Projector(app.views, self.log.reader, self.store, look=0.0, report=_report)
        self.settle()
        self.timers = MemoryTimers(self, self._flow, self._lock)
        self._packer = CommandPacker(app.name, lambda: utc_text(self.now).encode())
        self.client = MemoryClient(self._answer)
        self.views = FoldedViews(app, self.store)

    def advance(self, by: timedelta, /) -> None:
        """Advances the clock from one timer to the next: each fires at its due time, as in production.

        Where old events were written (`client.send(..., at=...)`) timers follow event time, until no event has come for
        a minute.

        Raises:
            ValueError: `by` is negative.
        """
        if by < timedelta(0):
            raise ValueError(f"by={by!r} would turn the clock back; log time only advances")
        with self._lock:
            until = self.now + by
            while (wakes := self._flow.wakes()) is not None and wakes <= until:
                self.now = wakes
                self.settle()
            self.now = until
            self.settle()

    def stop(self, name: str, /) -> None:
        """Stops the worker of a decider or process, as in an outage: records for it wait in its topic.

        Raises:
            ConfigurationError: the App has none of that name.
        """
        with self._lock:
            self._flow.stop(name)

    def start(self, name: str, /) -> None:
        """Starts a stopped worker, which continues at its offset."""
        with self._lock:
            self._flow.start(name)
            self.settle()

    def events(self, category: str) -> list[Recorded[Any]]:
        """All events of a category, partition by partition.

        Raises:
            ConfigurationError: the App has no decider of that category.
        """
        codec = self._flow.processors[self.app.decider(category).name].events
        found = (read_recorded(codec, r) for records in self.log.of(names.events(category)) for r in records)
        return [recorded for recorded in found if recorded is not None]

    def stream(self, category: str, key: str) -> list[Recorded[Any]]:
        """The events of one stream, in order.

        Raises:
            ConfigurationError: the App has no decider of that category.
        """
        return [recorded for recorded in self.events(category) if recorded.key == key]

    def log_reader(self) -> MemoryLogReader:
        """A reader of the log."""
        return self.log.reader()

    def deliveries(self, reaction: Reaction[E], /) -> list[tuple[E, Delivery]]:
        """The events delivered to a reaction, each attempt with its delivery.

        Raises:
            ConfigurationError: the App does not have this reaction.
        """
        return self._reactions.of(reaction)

    def dead(self, name: str) -> list[RawRecord]:
        """The dead letters of a decider, process or reaction; the header `dead_reason` holds the reason."""
        return [record for records in self.log.of(names.dead(name)) for record in records]

    def decide(self, request: CommandRequest) -> Receipt | LeftfoldError:
        """Decides one command through the processor and the log, without the reactions of processes and views."""
        command = type(request.command)
        category = command.__leftfold__.category
        processor = self._flow.processors.get(category)
        if processor is None or command not in processor.commands.types:
            raise ConfigurationError(f"app {self.app.name} decides no {command.__name__}; add its decider to the App")
        try:
            topic, id_, key, value, headers, _ = self._packer.pack(request, b"memory")
        except ContractError as error:
            return error
        partition = partition_of(key, self.app.partitions)
        with self._lock:
            record = self.log.append(topic, partition, key, value, headers, time=int(self.now.timestamp() * 1000))
            if self._flow.left(record):
                return OutcomeUnknown(id_.decode())
            (reply,) = self._flow.take(record).replies
            end = processor.held[partition].end
        if reply.error is not None:
            return to_error(reply.error, command)
        return Receipt(Position.at(names.events(category), partition, end), reply.version, reply.events)

    def settle(self) -> None:
        """Runs processes, projector and reactions until all written events are processed."""
        with self._lock:
            self._flow.run()
            if self._projector.views:
                while self._projector.step(0.0) or not self._projector.caught_up():
                    pass
                self._projector.report_parked()  # the last flush landed after the last look around
            self._reactions.run()

    def _answer(self, requests: Iterable[CommandRequest]) -> list[Receipt | LeftfoldError]:
        with self._lock:
            outcomes = [self.decide(request) for request in requests]
            self.settle()
        return outcomes


def _report(what: str, details: Mapping[str, Any]) -> None:
    """Logs what a projector says of views that stop and of rows that are parked; the rest is of no use in tests."""
    if what == "view stopped":
        _LOGGER.warning("%s: view stopped: %s", details["view"], details["why"])
    elif what == "parked":
        _LOGGER.warning("%s: row %s parked: %s", details["view"], details["key"], details["why"])


@contextmanager
def memory(app: App, /, *, now: datetime, acts: Acts | None = None) -> Iterator[World]:
    """A context manager with an App in memory, its clock at `now` (aware).

    Reactions call nothing outside: `world.deliveries` holds the events they got.

    Args:
        acts: functions to call for some of them: a function of the test's own, or `{receipts: receipts.act}`.
    """
    utc_text(now)
    yield World(app, now, acts)
