"""Acts on the events of a reaction: what is taken, tried, tried again, parked and done."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from leftfold.engine.actors import Actors
from leftfold.engine.errands import Errands
from leftfold.engine.frontier import Frontier
from leftfold.engine.pending import Pending, PendingReader, Place
from leftfold.ports import RawRecord
from leftfold.reaction import Reaction

__all__ = ["Acting", "Park"]

Park = Callable[[Pending, BaseException], None]
"""Writes to where parked events are; it is written when this returns."""


class Acting:
    """The loop of a reaction without its log; one thread calls it.

    Args:
        park: called for events that nobody can act on; if it raises, they are not done.
        told: called with each failed try, and whether that was the last one.
    """

    def __init__(
        self,
        reaction: Reaction[Any],
        park: Park,
        *,
        told: Callable[[Pending, BaseException, bool], None] = lambda pending, error, parked: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._park, self._told, self._clock = park, told, clock
        self.frontier = Frontier()
        self._reader, self._errands, self._actors = PendingReader(reaction), Errands(reaction), Actors(reaction, clock)

    def take(self, record: RawRecord) -> None:
        """A record that comes next in its partition.

        Raises:
            ContractError: it is of a newer version than this code knows.
        """
        pending = self._reader.read(record)
        self.frontier.take((record.topic, record.partition), record.offset, is_open=pending is not None)
        if pending is not None:
            self._errands.add(pending)

    def step(self, most: float) -> bool:
        """Starts what may start, and waits up to `most` seconds for something to end; whether anything is under way."""
        while self._actors.free > 0 and (pending := self._errands.next(self._clock())) is not None:
            if pending.error is not None:
                self._parked(pending, pending.error)
            else:
                self._actors.start(pending)
        busy = bool(self._actors.under_way())
        self._end(self._errands.wait(self._clock(), most) if busy else 0.0)
        return busy

    def settle(self, places: Collection[Place] | None, seconds: float) -> bool:
        """Starts nothing, and waits for what is under way in some partitions, or in all; whether it has all ended."""
        deadline = self._clock() + seconds
        while any(places is None or pending.place in places for pending in self._actors.under_way()):
            if (left := deadline - self._clock()) <= 0:
                return False
            self._end(min(left, 0.1))
        return True

    def drop(self, places: Collection[Place]) -> None:
        """Lets go of partitions; what is still under way there ends unheard."""
        self._errands.drop(places)
        self.frontier.drop(places)

    def _end(self, wait: float) -> None:
        for pending, error in self._actors.ended(wait):
            if error is None:
                self._done(pending)
            elif self._errands.failed(pending, error, self._clock()):
                self._told(pending, error, False)
            else:
                self._parked(pending, error)

    def _parked(self, pending: Pending, error: BaseException) -> None:
        self._park(pending, error)
        self._told(pending, error, True)
        self._done(pending)

    def _done(self, pending: Pending) -> None:
        if self._errands.done(pending):
            self.frontier.done(pending.place, pending.record.offset)
