"""How many commands a transaction takes, and how long to wait after one that failed."""

from __future__ import annotations

__all__ = ["Pace"]

_STEPS = 32


class Pace:
    """Halves at each failure, since what does not fit by weight or by time fits into a smaller one, and grows again.

    Args:
        most: commands per transaction.
    """

    def __init__(self, most: int) -> None:
        self._most = self.limit = most
        self.failures = 0

    def committed(self) -> None:
        """A transaction went well."""
        self.failures, self.limit = 0, min(self._most, self.limit + max(1, self._most // _STEPS))

    def failed(self) -> float:
        """A transaction was aborted; returns the seconds to wait."""
        self.failures, self.limit = self.failures + 1, max(1, self.limit // 2)
        return min(1.0, 0.02 * 2.0**self.failures)
