"""Being told to stop: by Ctrl-C, by a signal, or by the death of whoever started us."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType

from leftfold.cli.failures import INTERRUPTED

__all__ = ["Stopping", "setter"]


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
