"""Shared code of long-running processes: create topics, stop on signals, report each outage once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any

from leftfold.compatibility import lock_of
from leftfold.errors import ConfigurationError, ContractError, Fenced, InfrastructureError, LeftfoldError
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.ports.protocols import Report
from leftfold.runtime.project import INTERRUPTED
from leftfold.runtime.supervisor import Backoff

__all__ = [
    "Outage", "Stopping", "begin_reactions", "end_all", "ensure_topics", "folds_of", "refuse_foreign_workers", "setter",
]  # fmt: skip


def folds_of(app: App) -> dict[str, str]:
    """The hash of each view's fold by view name; empty when the source cannot be read."""
    try:
        return {name: fold.fold for name, fold in lock_of(app).views.items()}
    except ConfigurationError:
        return {}


def setter(event: threading.Event) -> Callable[[], None]:
    """A function that sets the event and is safe to call in a signal handler.

    A handler interrupts the main thread. If that thread waits for the event, it may hold the event's lock, and `set`
    in the handler would deadlock. A thread sets the event instead; a `SimpleQueue`, which is reentrant, wakes it.
    """
    asked: SimpleQueue[None] = SimpleQueue()

    def wait() -> None:
        asked.get()
        event.set()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    return lambda: asked.put(None)


def end_all(seconds: float, actions: Iterable[Callable[[], object]]) -> None:
    """Does these at once, each on a thread of its own, and waits for them; what takes longer dies with the process."""
    threads = [threading.Thread(target=action, name="last", daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


class Stopping:
    """Signal handlers that set a stop event; a second Ctrl-C ends the process at once.

    `code` is the exit code for the signal that arrived: 130 after Ctrl-C, else 0. `is_signalled` is true once one has
    arrived; a thread sets the event a moment later.
    """

    def __init__(self) -> None:
        self.event, self.code = threading.Event(), 0
        self._set, self.is_signalled = setter(self.event), False
        signal.signal(signal.SIGTERM, self._terminated)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, self._terminated)
        signal.signal(signal.SIGINT, self._interrupted)

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        self.is_signalled = True
        self._set()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self.is_signalled or self.event.is_set():
            raise KeyboardInterrupt
        self.code, self.is_signalled = INTERRUPTED, True
        self._set()
        if sys.stderr.isatty():
            # os.write: the handler may have interrupted a print, which is not reentrant.
            os.write(sys.stderr.fileno(), b"\nstopping in order; Ctrl-C again does not wait\n")


class Outage:
    """Reports the cause of an outage of a server once, and its end once.

    Args:
        stop: ends a pause early when it is set.
    """

    def __init__(self, report: Report, stop: threading.Event) -> None:
        self.report, self._stop = report, stop
        self._cause, self._since, self._backoff = "", 0.0, Backoff()

    @property
    def is_stopping(self) -> bool:
        """Whether the process has been asked to stop."""
        return self._stop.is_set()

    def reconnecting(self, work: Callable[[], None]) -> None:
        """Runs `work` until the stop event is set, again after each failure of a server.

        Raises:
            Fenced: this process must end and be restarted.
        """
        while not self.is_stopping:
            try:
                work()
            except Fenced:
                raise
            except InfrastructureError as error:
                self.pause_after(error)

    def ended_by(self, what: str) -> Report:
        """A report function that also ends the outage when `what` is reported."""

        def forward(happened: str, details: Mapping[str, Any]) -> None:
            if happened == what:
                self.report_cause("")
            self.report(happened, details)

        return forward

    def pause_after(self, error: LeftfoldError) -> None:
        """Reports an error and pauses before the next try."""
        self._stop.wait(self.pause_for(error))

    def pause_for(self, error: LeftfoldError) -> float:
        """Reports an error; returns the seconds to pause before the next try."""
        self.report_cause(str(error))
        return self._backoff.pause(0.0)

    def report_cause(self, why: str) -> None:
        """Reports the first cause of an outage; '' ends the outage, which is reported too."""
        if why and not self._cause:
            self._since = time.monotonic()
            self.report("waiting", {"why": why})
        elif self._cause and not why:
            self.report("going on", {"after": f"{time.monotonic() - self._since:.1f} s"})
            self._backoff = Backoff()
        self._cause = why


def ensure_topics(apps: Iterable[App], settings: KafkaSettings, trouble: Outage | None = None) -> None:
    """Creates missing topics and checks existing ones.

    Each App creates its own topics before it looks for those of other Apps, so the order of the Apps is free.

    Args:
        trouble: waits for brokers and for topics of other Apps; None = the error is raised.

    Raises:
        ConfigurationError: a topic's settings differ from what the App requires.
        InfrastructureError: no broker answers, or an App reads a topic of another App that is not given and never ran.
    """
    from leftfold.kafka.administration.topics import ensure

    left = list(apps)
    while left and not (trouble and trouble.is_stopping):
        refused: dict[str, InfrastructureError] = {}
        for app in left:
            try:
                ensure(app, settings)
            except InfrastructureError as error:
                refused[app.name] = error
        if len(refused) == len(left):
            first = next(iter(refused.values()))
            if trouble is None:
                raise first
            trouble.pause_after(first)
        left = [app for app in left if app.name in refused]
    if trouble and not left:
        trouble.report_cause("")


def refuse_foreign_workers(app: App, settings: KafkaSettings) -> None:
    """Refuses to run beside workers of another App name, or of the App that had a decider before: both would decide.

    Raises:
        ConfigurationError: members of another group serve one of its categories or processes.
    """
    from leftfold.kafka.administration.cluster import ClusterAdmin

    with suppress(InfrastructureError), ClusterAdmin(settings) as cluster:  # a part says it better
        groups = cluster.groups()
        for name in [*(decider.name for decider in app.deciders), *(process.name for process in app.processes)]:
            for other, members in groups.items():
                if members and other != names.group(app.name, name) and names.is_group_of(other, name):
                    raise ConfigurationError(
                        f"{name} is served by the group {other} too, which has members: a group is named after its "
                        f"App, and both would decide every command; stop those workers first, then start this again"
                    )


def begin_reactions(app: App, settings: KafkaSettings, trouble: Outage) -> None:
    """Sets the start offsets of reactions that have never run, before the workers can write an event.

    It waits for brokers that do not answer. Other errors are ignored here: the reaction's own process meets the same
    one and reports it, and all others work.
    """
    from leftfold.kafka.errors import Unreachable
    from leftfold.kafka.reactions.start_offsets import StartOffsets

    left = list(app.reactions)
    while left and not trouble.is_stopping:
        try:
            StartOffsets(app, left[0], settings).begin()
        except Unreachable as error:
            trouble.pause_after(error)
            continue
        except (InfrastructureError, ConfigurationError, ContractError):
            pass
        del left[0]
    trouble.report_cause("")
