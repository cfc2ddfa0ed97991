"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(condition: Callable[[], object], awaited: str | Callable[[], str], seconds: float = 240.0) -> None:
    """Polls until the condition holds, and fails saying what was awaited.

    It looks less and less often: looks take time of the machine, which what is awaited needs.
    """
    deadline, pause = time.monotonic() + seconds, 0.005
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {awaited if isinstance(awaited, str) else awaited()}")
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)
