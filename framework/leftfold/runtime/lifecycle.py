"""What every long-running part does: create topics, stop on signals, report outages once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType

from leftfold.compatibility import lock_of
from leftfold.errors import ConfigurationError, InfrastructureError, LeftfoldError
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.app import App
from leftfold.runtime.logging import Report
from leftfold.runtime.project import INTERRUPTED, for_servers
from leftfold.runtime.supervisor import Backoff

__all__ = ["Outage", "Stopping", "begin_reactions", "ensure_now", "ensure_topics", "folds_of", "setter"]


def folds_of(app: App) -> dict[str, str]:
    """A hash of each view's fold by its name; nothing where the source cannot be read."""
    try:
        return {name: fold.fold for name, fold in lock_of(app).views.items()}
    except ConfigurationError:
        return {}


def setter(event: threading.Event) -> Callable[[], None]:
    """A function that sets the event, for signal handlers.

    A handler runs in the middle of whatever the main thread does. Where that waits for the event it may hold the
    event's lock, for which `set` would wait for ever; so a thread sets it, and a queue that is made for this wakes it.
    """
    asked: SimpleQueue[None] = SimpleQueue()

    def wait() -> None:
        asked.get()
        event.set()

    threading.Thread(target=wait, name="signals", daemon=True).start()
    return lambda: asked.put(None)


class Stopping:
    """Turns signals into an event; a second Ctrl-C does not wait.

    `code` is the exit code that belongs to what came: 130 after Ctrl-C, else 0.
    """

    def __init__(self) -> None:
        self.event, self.code = threading.Event(), 0
        self._set, self._came = setter(self.event), False
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._told)
        signal.signal(signal.SIGINT, self._interrupted)

    def _told(self, number: int, frame: FrameType | None) -> None:
        self._came = True
        self._set()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._came or self.event.is_set():
            raise KeyboardInterrupt
        self.code, self._came = INTERRUPTED, True
        self._set()
        if sys.stderr.isatty():
            # Not by way of print, which this may have interrupted.
            os.write(sys.stderr.fileno(), b"\nstopping in order; Ctrl-C again does not wait\n")


class Outage:
    """What keeps a part from working; repeating it does not repeat the line.

    Args:
        stop: ends a pause early.
    """

    def __init__(self, report: Report, stop: threading.Event) -> None:
        self.report, self._stop = report, stop
        self._told, self._since, self._backoff = "", 0.0, Backoff()

    def met(self, error: LeftfoldError) -> None:
        """Tells of an error and pauses before the next try."""
        self.told(str(error))
        self._stop.wait(self._backoff.pause(0.0))

    def told(self, why: str) -> None:
        """Tells what is wrong, unless that is what was told last; '' = nothing is."""
        if why and not self._told:
            self._since = time.monotonic()
            self.report("waiting", {"why": for_servers(why)})
        elif self._told and not why:
            self.report("going on", {"after": f"{time.monotonic() - self._since:.1f} s"})
            self._backoff = Backoff()
        self._told = why


def ensure_topics(apps: Iterable[App], settings: KafkaSettings, stop: threading.Event, report: Report) -> None:
    """Makes what is missing and checks what is there, however long no broker answers or another App is awaited.

    Each makes its own before it asks for those of others, so that they may be given in any order.

    Raises:
        ConfigurationError: a topic is not as the App says.
    """
    trouble, left = Outage(report, stop), list(apps)
    while left and not stop.is_set():
        refused = _refused(left, settings)
        if len(refused) == len(left):
            trouble.met(next(iter(refused.values())))
        left = [app for app in left if app.name in refused]
    trouble.told("")


def ensure_now(apps: Iterable[App], settings: KafkaSettings) -> None:
    """Makes what is missing and checks what is there, without waiting for a broker or for other Apps.

    Raises:
        ConfigurationError: a topic is not as the App says.
        InfrastructureError: no broker answers, or the App of a topic that is read is none of these and never ran.
    """
    left = list(apps)
    while left:
        refused = _refused(left, settings)
        if len(refused) == len(left):
            raise next(iter(refused.values()))
        left = [app for app in left if app.name in refused]


def _refused(apps: Iterable[App], settings: KafkaSettings) -> dict[str, InfrastructureError]:
    """Why the topics of these Apps are not all there, by App; the others' are."""
    from leftfold.kafka.administration.topics import ensure

    refused: dict[str, InfrastructureError] = {}
    for app in apps:
        try:
            ensure(app, settings)
        except InfrastructureError as error:
            refused[app.name] = error
    return refused


def begin_reactions(app: App, settings: KafkaSettings) -> None:
    """Says of reactions that have never run where they begin, before there is anybody who could write an event.

    What is wrong with one its own part says, again and again, while everything else works.
    """
    from leftfold.kafka.reactions.start_offsets import StartOffsets

    for reaction in app.reactions:
        with suppress(InfrastructureError, ConfigurationError):
            StartOffsets(app, reaction, settings).begin()
