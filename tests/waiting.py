"""Waiting for a condition, or for the end of a log, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

from leftfold.model.position import Position
from leftfold.ports.protocols import LogReader, RawRecord

__all__ = ["WAIT_SECONDS", "read_until", "step_until", "wait_until"]

WAIT_SECONDS = 240.0
"""How long a busy machine may take for what usually takes moments."""


def wait_until(
    condition: Callable[[], object],
    awaited: str | Callable[[], str],
    seconds: float = WAIT_SECONDS,
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


def step_until(step: Callable[[], object], condition: Callable[[], object], awaited: str | Callable[[], str]) -> None:
    """Makes steps until the condition holds, and fails saying what was awaited."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        what = awaited if isinstance(awaited, str) else awaited()
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS:g} s for {what}"
        step()


def read_until(reader: LogReader, ends: Position, limit: int = 100) -> list[RawRecord]:
    """Reads until the reader is at a position, and fails if it does not get there."""
    found: list[RawRecord] = []
    step_until(
        lambda: found.extend(reader.poll(limit, 0.1)),
        lambda: reader.position().covers(ends),
        lambda: f"{ends}; at {reader.position()}",
    )
    return found
