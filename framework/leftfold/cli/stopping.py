"""Being told to stop: by Ctrl-C, by a signal, or by the death of whoever started us."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

from leftfold.cli.failures import INTERRUPTED

__all__ = ["Stopping"]


class Stopping:
    """Turns signals into an event; a second Ctrl-C does not wait.

    `code` is the exit code that belongs to what came: 130 after Ctrl-C, else 0.
    """

    def __init__(self) -> None:
        self.event, self.code = threading.Event(), 0
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._told)
        signal.signal(signal.SIGINT, self._interrupted)

    def _told(self, number: int, frame: FrameType | None) -> None:
        self.event.set()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self.event.is_set():
            raise KeyboardInterrupt
        self.code = INTERRUPTED
        self.event.set()
        if sys.stderr.isatty():
            # Not by way of print, which this may have interrupted.
            os.write(sys.stderr.fileno(), b"\nstopping in order; Ctrl-C again does not wait\n")
