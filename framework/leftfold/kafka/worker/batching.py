"""Limits the number of commands in a transaction, and decides them within the transaction timeout."""

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
    """Limits the batch size so that deciding takes no longer than a share of the transaction timeout.

    The first batch after a start is small, and each may be twice as large as the one before. A failure halves the
    limit, since a batch that is too heavy fits into a smaller one, and it grows back in steps. The estimated cost of a
    command rises at once to the measured value and falls slowly, since a decider may be slow only at times.

    Args:
        most: maximum number of commands per transaction.
        share: seconds that deciding for one transaction may take.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, most: int, share: float = 1.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._share, self._clock = most, share, clock
        self._fits, self._grown = most, min(most, FIRST)
        self._cost = self._whole = 0.0
        self._began = self._last = self._deciding = 0.0
        self._count = self.failures = 0

    @property
    def limit(self) -> int:
        """The maximum number of commands in the next transaction."""
        limit = float(min(self._fits, self._grown))
        if self._cost:
            limit = min(limit, self._share / self._cost)
        if self._whole:
            # The fixed cost of a transaction makes a few commands look expensive, so this bound is never below FIRST.
            limit = min(limit, max(FIRST, 2 * self._share / self._whole))
        return max(1, int(limit))

    @property
    def is_cheap(self) -> bool:
        """Whether commands are known to be fast enough to be decided while a transaction is open."""
        return 0 < self._cost <= _CHEAP

    @property
    def is_over(self) -> bool:
        """Whether the share of time was used up when the clock was last read."""
        return self._last - self._began > self._share

    def begin(self) -> None:
        """Starts the clock for deciding one transaction."""
        self._began = self._last = self._clock()
        self._count, self._deciding = 0, 0.0

    def took(self, count: int) -> float:
        """Counts decided commands; returns the seconds since the clock was last read."""
        now = self._clock()
        seconds, self._last = now - self._last, now
        if count:
            self._count, self._deciding = self._count + count, self._deciding + seconds
        return seconds

    def committed(self) -> None:
        """Raises the limits after a committed transaction."""
        self.failures, self._fits = 0, min(self._most, self._fits + max(1, self._most // _STEPS))
        self._grown = min(self._most, max(self._grown, 2 * self._count))
        if self._count:
            self._whole = max((self._clock() - self._began) / self._count, _FORGET * self._whole)
        self._learn()

    def failed(self) -> float:
        """Halves the limit after an aborted transaction; returns the seconds to wait."""
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
    """Deciding used up its share of the time while a transaction was open."""


class Decided(NamedTuple):
    """A batch of decided commands: the first `done` records.

    `slow` is a record whose decision took longer than a transaction may last; then nothing is decided.
    """

    batch: Batch
    done: int
    slow: RawRecord | None = None


class BatchDecider(Generic[M]):
    """Decides batches of commands, before a transaction opens or, if they are cheap, while it is open.

    Args:
        longest: seconds that a transaction may last.
        read: reads the record of a message.
        guard: a context manager for a number of seconds; the process ends when its block takes longer.
    """

    def __init__(
        self,
        processor: PartitionProcessor[Any],
        pace: Pace,
        longest: float,
        read: Callable[[M], RawRecord],
        guard: Callable[[float], AbstractContextManager[None]],
    ) -> None:
        self._processor, self._pace, self._longest, self._read = processor, pace, longest, read
        self._guard = guard

    def before(self, messages: Sequence[M]) -> Decided:
        """Decides commands before a transaction opens, until the share of time is used, so none can time out."""
        records, batch = list[RawRecord](), Batch()
        with self._guard(3 * self._longest):
            for record in map(self._read, messages):
                if self._pace.is_over:
                    break
                self._processor.extend(batch, [record])
                if self._pace.took(1) > self._longest:
                    return Decided(Batch(), 0, record)
                records.append(record)
            try:
                self._processor.finish(batch)
            except StateTooLarge:
                return self._decide_carefully(records)
        return Decided(batch, len(records))

    def _decide_carefully(self, records: Sequence[RawRecord]) -> Decided:
        """Decides commands and checks the size of the state after each one, which takes extra time."""
        batch, count = Batch(), 0
        self._pace.begin()
        for record in records:
            if self._pace.is_over:
                break
            self._processor.extend(batch, [record], careful=True)
            self._pace.took(1)
            count += 1
        self._processor.finish(batch)
        return Decided(batch, count)

    def during(self, batch: Batch, messages: list[M]) -> Iterator[None]:
        """Decides chunks of commands while a transaction is open, in parallel with the broker.

        Decided chunks are removed from `messages` at once: a whole batch of messages and events outgrows the CPU cache.

        Raises:
            OutOfTime: the share of time is used up.
        """
        # Starting a new producer, if that was needed, does not count.
        self._pace.begin()
        while messages:
            chunk = messages[:CHUNK]
            self._processor.extend(batch, map(self._read, chunk))
            self._pace.took(len(chunk))
            if self._pace.is_over:
                raise OutOfTime("deciding used up its share of the time of a transaction; it is done before the next")
            del messages[:CHUNK]
            yield
        self._processor.finish(batch)

    def alone(self, record: RawRecord) -> Batch:
        """Decides one command, and dead-letters it if that takes longer than a transaction may last."""
        self._pace.took(0)
        with self._guard(3 * self._longest):
            batch = self._processor.process([record])
        if (took := self._pace.took(1)) <= self._longest:
            return batch
        limit = f"a transaction may last {self._longest:g} s"
        return self._processor.bury(record, f"deciding took {took:.1f} s, but {limit}; make the decider quicker")
