"""Ends the process when a call outlives its deadline, since some of librdkafka's calls can hang past their own."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Watchdog"]

EXIT_CODE = 75


def _leave(what: str, seconds: float) -> None:
    sys.stderr.write(f"watchdog: {what} did not return within {seconds:.0f} s; this process ends to be restarted\n")
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class Watchdog:
    """Guards calls from outside (librdkafka#5456: `send_offsets_to_transaction` was seen to hang for 240 s).

    Args:
        expired: called with what hung and its deadline in seconds; the default ends the process with exit 75.
    """

    def __init__(self, expired: Callable[[str, float], None] = _leave) -> None:
        self._expired = expired
        self._guarded: dict[int, tuple[float, str, float]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """The block must end within `seconds`."""
        mine = threading.get_ident()
        self._guarded[mine] = (time.monotonic() + seconds, what, seconds)
        try:
            yield
        finally:
            self._guarded.pop(mine, None)

    def close(self) -> None:
        """Stops watching."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.25):
            now = time.monotonic()
            for deadline, what, seconds in list(self._guarded.values()):
                if now > deadline:
                    self._expired(what, seconds)
