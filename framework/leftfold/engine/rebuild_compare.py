"""Two generations of one hash side by side: equal positions must mean equal checksums."""

from __future__ import annotations

from collections.abc import Mapping

from leftfold.engine.rebuild_result import Agreement
from leftfold.flush import Generation, Mark
from leftfold.position import Position
from leftfold.rows import CHECKSUM_MODULUS

__all__ = ["Comparison"]


class Comparison:
    """Compares bucket by bucket, each whenever a look finds both of its marks at one place.

    Generations with different numbers of buckets are compared as a whole, which needs all marks at one place.
    """

    def __init__(self, old: Generation, new: Generation) -> None:
        self._alike = old.buckets == new.buckets
        self._open = set(range(new.buckets)) if self._alike else {0}
        self._sums: dict[int, tuple[int, int]] = {}
        self.why, self._worse = "", False

    def look(self, old: Mapping[int, Mark], new: Mapping[int, Mark]) -> bool:
        """Compares what can be compared now; True when there is nothing left to compare."""
        if not self._alike:
            old, new = _whole(old), _whole(new)
        for bucket in list(self._open):
            one, other = old.get(bucket), new.get(bucket)
            if one is None or other is None or not _same(one.position, other.position):
                continue
            self._open.discard(bucket)
            if one.parked.keys() == other.parked.keys():
                self._sums[bucket] = one.checksum, other.checksum
            else:
                self.why = "other keys are parked than before"
                self._worse = self._worse or not other.parked.keys() <= one.parked.keys()
        return not self._open

    @property
    def sums(self) -> tuple[int, int]:
        """The checksums of all that was compared, old and new."""
        old, new = zip(*self._sums.values(), strict=True) if self._sums else ((), ())
        return sum(old) % CHECKSUM_MODULUS, sum(new) % CHECKSUM_MODULUS

    @property
    def agreement(self) -> Agreement:
        """What came of it so far."""
        if any(one != other for one, other in self._sums.values()):
            return Agreement.DIFFERENT
        if self._worse:
            return Agreement.WORSE
        return Agreement.UNKNOWN if self._open or self.why else Agreement.EQUAL


def _same(one: Position, other: Position) -> bool:
    return one.covers(other) and other.covers(one)


def _whole(marks: Mapping[int, Mark]) -> dict[int, Mark]:
    """All marks as one; none when they are not at one place."""
    first = marks.get(0)
    if first is None or not all(_same(first.position, mark.position) for mark in marks.values()):
        return {}
    parked = {key: why for mark in marks.values() for key, why in mark.parked.items()}
    checksum = sum(mark.checksum for mark in marks.values()) % CHECKSUM_MODULUS
    return {0: Mark(first.position, checksum, parked=parked)}
