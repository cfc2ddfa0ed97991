"""How many records a transaction takes, and deciding them within the time that it may last."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar

from leftfold.engine.processing.partition_processor import PartitionProcessor, StateTooLarge
from leftfold.ports.outgoing import Batch
from leftfold.ports.protocols import RawRecord

__all__ = ["CHUNK", "BatchDecider", "OutOfTime", "Pace"]


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
        """BatchDecider for a transaction begins."""
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


CHUNK = 200
M = TypeVar("M")


class OutOfTime(Exception):
    """BatchDecider used up its share of the time while a transaction was open."""


class Decided(NamedTuple):
    """The first `done` records are decided. `slow`: this one outlived a transaction, and nothing is decided."""

    batch: Batch
    done: int
    slow: RawRecord | None = None


class BatchDecider(Generic[M]):
    """Decides a processor's commands before a transaction opens, or while it is open where they are known to be cheap.

    Args:
        longest: seconds that a transaction may last.
        read: the record in a message.
        guard: a block in it must end within so many seconds, or the process ends.
    """

    def __init__(
        self,
        processor: PartitionProcessor[Any],
        pace: Pace,
        longest: float,
        read: Callable[[M], RawRecord],
        guard: Callable[[float], AbstractContextManager[None]],
    ) -> None:
        self._lane, self._pace, self._longest, self._read = processor, pace, longest, read
        self._guard = guard

    def before(self, messages: Sequence[M]) -> Decided:
        """Decides before a transaction opens, until the share of time is used: however slow, no timeout is met."""
        records, batch = list[RawRecord](), Batch()
        with self._guard(3 * self._longest):
            for record in map(self._read, messages):
                if self._pace.is_over:
                    break
                self._lane.extend(batch, [record])
                if self._pace.took(1) > self._longest:
                    return Decided(Batch(), 0, record)
                records.append(record)
            try:
                self._lane.finish(batch)
            except StateTooLarge:
                return self._weighed(records)
        return Decided(batch, len(records))

    def _weighed(self, records: Sequence[RawRecord]) -> Decided:
        """Decides with a look at the weight of the state after each command, which takes time of its own."""
        batch, count = Batch(), 0
        self._pace.begin()
        for record in records:
            if self._pace.is_over:
                break
            self._lane.extend(batch, [record], careful=True)
            self._pace.took(1)
            count += 1
        self._lane.finish(batch)
        return Decided(batch, count)

    def during(self, batch: Batch, messages: list[M]) -> Iterator[None]:
        """Decides chunks while a transaction is open, so that the broker works on one while the next is decided.

        What is done leaves `messages` at once: a whole batch of messages and events outgrows the processor's cache.

        Raises:
            OutOfTime: the share of time is used.
        """
        # A new producer, if there was one, took its time before this.
        self._pace.begin()
        while messages:
            chunk = messages[:CHUNK]
            self._lane.extend(batch, map(self._read, chunk))
            self._pace.took(len(chunk))
            if self._pace.is_over:
                raise OutOfTime("deciding used up its share of the time of a transaction; it is done before the next")
            del messages[:CHUNK]
            yield
        self._lane.finish(batch)

    def alone(self, record: RawRecord) -> Batch:
        """Decides one command; it is dead-lettered when that takes longer than a transaction may last."""
        self._pace.took(0)
        with self._guard(3 * self._longest):
            batch = self._lane.process([record])
        if (took := self._pace.took(1)) <= self._longest:
            return batch
        limit = f"a transaction may last {self._longest:g} s"
        return self._lane.bury(record, f"deciding took {took:.1f} s, but {limit}; make the decider quicker")
