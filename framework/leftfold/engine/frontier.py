"""How far partitions are done, when later records may be done before earlier ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from leftfold.engine.pending import Place

__all__ = ["Frontier"]


class Frontier:
    """Of each partition the oldest offset that is not done, behind which nothing is forgotten.

    Args:
        most_open: how many records of a partition may wait. most_ahead: how many may have been taken since the oldest
            that is not done: whoever takes over does those again.
    """

    def __init__(self, *, most_open: int = 1000, most_ahead: int = 10_000) -> None:
        self._most_open, self._most_ahead = most_open, most_ahead
        self._reached: dict[Place, int] = {}
        self._taken: dict[Place, deque[int]] = {}
        self._done: dict[Place, set[int]] = {}

    def hold(self, place: Place, offset: int) -> None:
        """A partition is read from here on."""
        self._reached[place], self._taken[place], self._done[place] = offset, deque(), set()

    def drop(self, places: Iterable[Place]) -> None:
        """These are somebody else's now."""
        for place in places:
            for known in (self._reached, self._taken, self._done):
                known.pop(place, None)

    def take(self, place: Place, offset: int, *, is_open: bool) -> None:
        """A record was read; one that is not open needs nothing to be done."""
        self._reached[place] = offset + 1
        if is_open:
            self._taken[place].append(offset)

    def reach(self, place: Place, offset: int) -> None:
        """Nothing lies before this offset that is not taken."""
        self._reached[place] = max(offset, self._reached[place])

    def done(self, place: Place, offset: int) -> None:
        """A record is done; of a partition that is no longer held nothing is known."""
        if place not in self._taken:
            return
        taken, done = self._taken[place], self._done[place]
        done.add(offset)
        while taken and taken[0] in done:
            done.remove(taken.popleft())

    @property
    def open(self) -> int:
        """How many records were taken and are not done."""
        return sum(len(taken) - len(self._done[place]) for place, taken in self._taken.items())

    def holds(self, place: Place) -> bool:
        """Whether the partition is held."""
        return place in self._reached

    def reached(self, place: Place) -> int:
        """The next offset to be read."""
        return self._reached[place]

    def is_full(self, place: Place) -> bool:
        """Whether no more of the partition is to be read for now."""
        taken = len(self._taken[place])
        return taken >= self._most_ahead or taken - len(self._done[place]) >= self._most_open

    def offsets(self) -> dict[Place, int]:
        """Where each partition goes on if all ends now."""
        return {place: taken[0] if taken else self._reached[place] for place, taken in self._taken.items()}
