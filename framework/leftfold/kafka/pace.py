"""How many commands a transaction takes, planned from measured time, and how long to wait after one that failed."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Pace"]

FIRST = 250
_STEPS, _FORGET, _CHEAP = 32, 0.75, 1e-4


class Pace:
    """Plans transactions so that deciding takes no longer than a share of the transaction timeout.

    The first after a start is small, and each may be twice as large as the one before. A failure halves the limit,
    since what does not fit by weight fits into a smaller one, and it grows back in steps. What a command costs rises
    at once to what was measured and falls slowly, so a decider that is slow at times is not taken for a quick one.

    Args:
        most: commands per transaction. share: seconds that deciding for one transaction may take.
        clock: seconds that only grow.
    """

    def __init__(self, most: int, share: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._share, self._clock = most, share, clock
        self._fits, self._grown = most, min(most, FIRST)
        self._cost = self._whole = 0.0
        self._began = self._last = self._deciding = 0.0
        self._count = self.failures = 0

    @property
    def limit(self) -> int:
        """How many commands the next transaction takes."""
        limit = float(min(self._fits, self._grown))
        if self._cost:
            limit = min(limit, self._share / self._cost)
        if self._whole:
            # The fixed part of a transaction makes few commands look dear, so this bound never goes below the first.
            limit = min(limit, max(FIRST, 2 * self._share / self._whole))
        return max(1, int(limit))

    @property
    def is_cheap(self) -> bool:
        """Whether commands are known to cost so little that they may be decided while a transaction is open."""
        return 0 < self._cost <= _CHEAP

    @property
    def is_over(self) -> bool:
        """Whether the share of time was used when the clock was last read."""
        return self._last - self._began > self._share

    def begin(self) -> None:
        """Deciding for a transaction begins."""
        self._began = self._last = self._clock()
        self._count, self._deciding = 0, 0.0

    def took(self, count: int) -> float:
        """So many more commands are decided; returns the seconds since the clock was last read."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        if count:
            self._count, self._deciding = self._count + count, self._deciding + seconds
        return seconds

    def committed(self) -> None:
        """A transaction went well."""
        self.failures, self._fits = 0, min(self._most, self._fits + max(1, self._most // _STEPS))
        self._grown = min(self._most, max(self._grown, 2 * self._count))
        if self._count:
            self._whole = max((self._clock() - self._began) / self._count, _FORGET * self._whole)
        self._learn()

    def failed(self) -> float:
        """A transaction was aborted; returns the seconds to wait."""
        self.failures, self._fits = self.failures + 1, max(1, self.limit // 2)
        self._learn()
        return min(1.0, 0.02 * 2.0**self.failures)

    def _learn(self) -> None:
        if self._count:
            self._cost = max(self._deciding / self._count, _FORGET * self._cost)
        self._count, self._deciding = 0, 0.0
