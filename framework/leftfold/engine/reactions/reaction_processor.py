"""The reaction processor: delivers events one at a time per stream, in order, with retries, then parks them."""

from __future__ import annotations

import heapq
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import Any, NamedTuple

from leftfold.engine.reactions.deadline_executor import DEATHS, DeadlineExecutor, PoisonPillTracker
from leftfold.engine.reactions.pending import Frontier, PendingDelivery, PendingReader
from leftfold.errors import InfrastructureError
from leftfold.model.reaction import Reaction
from leftfold.ports.protocols import PartitionId, RawRecord

__all__ = ["Handoff", "ReactionProcessor"]


_Stream = tuple[str, int, bytes]


class DeliveryQueue:
    """Queues of pending deliveries by stream. It starts no thread and reads no clock."""

    def __init__(self, reaction: Reaction[Any]) -> None:
        self._reaction = reaction
        self._queues: dict[_Stream, deque[PendingDelivery]] = {}
        self._ready: deque[_Stream] = deque()
        self._later: list[tuple[float, int, _Stream]] = []
        self._number = count()

    def add(self, pending: PendingDelivery) -> None:
        """Adds an event behind those of its stream."""
        queue = self._queues.get(pending.stream)
        if queue is None:
            self._queues[pending.stream] = deque([pending])
            self._ready.append(pending.stream)
        else:
            queue.append(pending)

    def next(self, now: float) -> PendingDelivery | None:
        """The event to act on now, None when there is none; its stream waits until `done` or `failed`."""
        while self._later and self._later[0][0] <= now:
            stream = heapq.heappop(self._later)[2]
            if stream in self._queues:
                self._ready.append(stream)
        while self._ready:
            queue = self._queues.get(self._ready.popleft())
            if queue is not None:
                return queue[0]
        return None

    def put_back(self, pending: PendingDelivery) -> None:
        """Returns an event that did not start; it is the next one again."""
        if pending.stream in self._queues:
            self._ready.appendleft(pending.stream)

    def wait(self, now: float, most: float) -> float:
        """Seconds until the next retry, at most `most`."""
        return min(most, max(0.0, self._later[0][0] - now)) if self._later else most

    def done(self, pending: PendingDelivery) -> bool:
        """Removes a finished event, so that the next one of its stream is ready; False when it was dropped."""
        queue = self._queues.get(pending.stream)
        if queue is None or queue[0] is not pending:
            return False
        queue.popleft()
        if queue:
            self._ready.append(pending.stream)
        else:
            del self._queues[pending.stream]
        return True

    def failed(self, pending: PendingDelivery, error: BaseException, now: float) -> bool:
        """Schedules a retry; False when the event is to be parked, and its stream waits until it is."""
        pending.tries += 1
        queue = self._queues.get(pending.stream)
        if queue is None or queue[0] is not pending:
            return True
        if pending.tries >= self._reaction.attempts or isinstance(error, self._reaction.gives_up):
            return False
        due = now + self._reaction.pause(pending.tries, random.random())
        heapq.heappush(self._later, (due, next(self._number), pending.stream))
        return True

    def drop(self, places: Collection[PartitionId]) -> None:
        """Drops the events of partitions that are assigned to another member."""
        for stream in [stream for stream in self._queues if stream[:2] in places]:
            del self._queues[stream]
        # A stream that comes back must be there once: two entries would act on one event at once.
        self._ready = deque(stream for stream in self._ready if stream[:2] not in places)
        self._later = [entry for entry in self._later if entry[2][:2] not in places]
        heapq.heapify(self._later)


Park = Callable[[PendingDelivery, BaseException], None]
"""Writes an event to the topic of parked events; it is written when this returns."""


class Handoff(NamedTuple):
    """The handoff of a partition: the offset to continue at, and a note about possible poison pills."""

    offset: int
    note: str


class ReactionProcessor:
    """The loop of a reaction without its log; one thread calls it.

    Args:
        park: called for events that failed for good; if it raises, they are not done.
        note: called before a try starts: whether the metadata that `left` returns is stored for a successor.

    The callback for failures gets each failed try, and whether it was the last one.
    """

    def __init__(
        self,
        reaction: Reaction[Any],
        park: Park,
        *,
        note: Callable[[], bool] = lambda: True,
        report_failure: Callable[[PendingDelivery, BaseException, bool], None] = lambda pending, error, parked: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._park, self._note, self._report_failure, self._clock = park, note, report_failure, clock
        self.frontier, self._poison_pills = Frontier(), PoisonPillTracker()
        self._starting: list[PendingDelivery] = []
        self._alone: deque[PendingDelivery] = deque()
        self._reader, self._queue = PendingReader(reaction), DeliveryQueue(reaction)
        self._executor = DeadlineExecutor(reaction, clock)

    def hold(self, place: PartitionId, left: Handoff) -> None:
        """Takes a partition from the offset of its handoff."""
        self.frontier.hold(place, left.offset)
        self._poison_pills.hold(place, left.note)

    def left(self) -> dict[PartitionId, Handoff]:
        """The handoff of each partition for a successor if this process dies now."""
        at, hanging = _offsets((*self._executor.under_way(), *self._starting)), _offsets(self._executor.left())
        return {
            place: Handoff(
                offset, self._poison_pills.note(place, offset, at.get(place, set()), hanging.get(place, set()))
            )
            for place, offset in self.frontier.offsets().items()
        }

    def handoff_metadata(self, places: Collection[PartitionId]) -> dict[PartitionId, Handoff]:
        """The handoff of partitions that are given up in order."""
        offsets = {place: offset for place, offset in self.frontier.offsets().items() if place in places}
        return {
            place: Handoff(offset, self._poison_pills.handoff_metadata(place, offset))
            for place, offset in offsets.items()
        }

    def take(self, record: RawRecord, taken: tuple[PartitionId, int] | None = None) -> bool:
        """Takes the next record of a partition; returns whether it is an event of this reaction.

        Args:
            taken: where it was read, if that is not its place in the log.

        Raises:
            ContractError: it is of a newer version than this code knows.
        """
        pending = self._reader.read(record)
        if pending is None and taken is not None:
            return False  # the caller decides what becomes of it
        place, offset = taken or (record.place, record.offset)
        self.frontier.take(place, offset, is_open=pending is not None)
        if pending is not None:
            pending.taken = place, offset
            self._poison_pills.took(pending.place)
            self._queue.add(pending)
        return pending is not None

    def step(self, most: float) -> bool:
        """Starts the next tries, and waits up to `most` seconds for one to end; returns whether any is under way."""
        self._starting = self._chosen()
        if self._starting:
            if self._note():
                for pending in self._starting:
                    self._executor.start(pending)
            else:
                for pending in reversed(self._starting):
                    self._queue.put_back(pending)
            self._starting = []
        busy = bool(self._executor.under_way())
        # A retry that is due and was not started can only start once a try has ended.
        self._end((self._queue.wait(self._clock(), most) or most) if busy else 0.0)
        return busy

    def settle(self, places: Collection[PartitionId] | None, seconds: float) -> bool:
        """Waits for the tries in some partitions, or in all, and starts none; returns whether all have ended."""
        deadline = self._clock() + seconds
        while any(places is None or pending.place in places for pending in self._executor.under_way()):
            if (left := deadline - self._clock()) <= 0:
                return False
            self._end(min(left, 0.1))
        return True

    def drop(self, places: Collection[PartitionId]) -> None:
        """Drops partitions; tries under way there end without effect."""
        self._queue.drop(places)
        self._poison_pills.drop(places)
        self._alone = deque(pending for pending in self._alone if pending.place not in places)
        self.frontier.drop(places)

    def _chosen(self) -> list[PendingDelivery]:
        """The deliveries to start now; a suspect starts alone, so that no other is blamed for its death."""
        near = self._executor.near()
        if any(map(self._poison_pills.deaths, near)):
            return []
        if self._alone:
            return [] if near else [self._alone.popleft()]
        chosen: list[PendingDelivery] = []
        room = min(self._executor.free, self._poison_pills.room(len(self._executor.under_way())))
        while len(chosen) < room and (pending := self._queue.next(self._clock())) is not None:
            deaths = self._poison_pills.deaths(pending)
            if pending.error is not None:
                self._parked(pending, pending.error)
            elif deaths >= DEATHS:
                pending.tries = deaths
                self._parked(pending, InfrastructureError(f"the process died {deaths} times in a row while it acted"))
            elif deaths:
                self._alone.append(pending)
                break
            else:
                chosen.append(pending)
        return chosen

    def _end(self, wait: float) -> None:
        for pending, error, is_left in self._executor.ended(wait):
            if not self._executor.is_acting(pending):
                self._poison_pills.cleared(pending)
            if is_left:
                continue
            if error is None:
                self._done(pending)
            elif self._queue.failed(pending, error, self._clock()):
                self._report_failure(pending, error, False)
            else:
                self._parked(pending, error)

    def _parked(self, pending: PendingDelivery, error: BaseException) -> None:
        self._park(pending, error)
        self._report_failure(pending, error, True)
        self._done(pending)

    def _done(self, pending: PendingDelivery) -> None:
        if self._queue.done(pending):
            self.frontier.done(*pending.taken)


def _offsets(pendings: Iterable[PendingDelivery]) -> dict[PartitionId, set[int]]:
    """The offsets of deliveries, by partition."""
    found: dict[PartitionId, set[int]] = {}
    for pending in pendings:
        found.setdefault(pending.place, set()).add(pending.record.offset)
    return found
