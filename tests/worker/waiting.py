"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(condition: Callable[[], bool], awaited: str | Callable[[], str], seconds: float = 240.0) -> None:
    """Polls until the condition holds, and fails saying what was awaited."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {awaited if isinstance(awaited, str) else awaited()}")
        time.sleep(0.01)
