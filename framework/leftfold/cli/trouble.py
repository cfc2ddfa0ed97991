"""Trouble with servers, told once when it begins and once when it is over."""

from __future__ import annotations

import threading
import time

from leftfold.cli.hints import for_servers
from leftfold.errors import LeftfoldError
from leftfold.logs import Report
from leftfold.supervisor import Backoff

__all__ = ["Trouble"]


class Trouble:
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
