"""Decides commands within the time that a transaction may last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar

from leftfold.engine.batch import Batch
from leftfold.engine.batch_lane import BatchLane, HeavyState
from leftfold.kafka.pace import Pace
from leftfold.ports import RawRecord

__all__ = ["CHUNK", "Decided", "Deciding", "OutOfTime"]

CHUNK = 200
M = TypeVar("M")


class OutOfTime(Exception):
    """Deciding used up its share of the time while a transaction was open."""


class Decided(NamedTuple):
    """The first `done` records are decided. `slow`: this one outlived a transaction, and nothing is decided."""

    batch: Batch
    done: int
    slow: RawRecord | None = None


class Deciding(Generic[M]):
    """Decides a lane's commands before a transaction opens, or while it is open where they are known to be cheap.

    Args:
        longest: seconds that a transaction may last.
        read: the record in a message.
        guard: a block in it must end within so many seconds, or the process ends.
    """

    def __init__(
        self,
        lane: BatchLane[Any],
        pace: Pace,
        longest: float,
        read: Callable[[M], RawRecord],
        guard: Callable[[float], AbstractContextManager[None]],
    ) -> None:
        self._lane, self._pace, self._longest, self._read = lane, pace, longest, read
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
            except HeavyState:
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
