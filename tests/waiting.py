"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["wait_until"]


def wait_until(
    condition: Callable[[], object],
    awaited: str | Callable[[], str],
    seconds: float = 240.0,
    running: Callable[[], object] = lambda: True,
) -> None:
    """Polls until the condition holds, and fails saying what was awaited.

    It polls less and less often, because polling takes processor time from what is awaited.

    Args:
        running: False when what should fulfil the condition has ended: no use to wait any longer.
    """
    deadline, pause = time.monotonic() + seconds, 0.005
    while not condition():
        has_ended = not running()
        if has_ended or time.monotonic() > deadline:
            what = awaited if isinstance(awaited, str) else awaited()
            raise AssertionError(f"it ended, awaited was {what}" if has_ended else f"waited {seconds:g} s for {what}")
        time.sleep(pause)
        pause = min(1.5 * pause, 0.1)
