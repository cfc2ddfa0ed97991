"""Reports of what may happen a thousand times a second: each kind at once, then once in a while with its count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Seldom"]

AGAIN, MOST = 30.0, 1000


class Seldom:
    """Passes on the first report of a kind, and its next one after 30 s with how often it happened since.

    Args:
        report: is given (what, details), where `times` is added. clock: seconds that only grow.
    """

    def __init__(self, report: Callable[[str, Mapping[str, Any]], None], clock: Callable[[], float]) -> None:
        self._report, self._clock = report, clock
        self._seen: dict[str, tuple[float, int]] = {}

    def report(self, what: str, details: Mapping[str, Any], *, kind: str = "", times: int = 1) -> None:
        """Reports, or counts for the next report of this kind."""
        now, kind = self._clock(), kind or what
        at, count = self._seen.get(kind, (now - AGAIN, 0))
        if now - at < AGAIN:
            self._seen[kind] = at, count + times
            return
        if len(self._seen) >= MOST:
            self._seen.clear()
        self._seen[kind] = now, 0
        self._report(what, {**details, "times": count + times})
