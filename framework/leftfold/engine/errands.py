"""Which event is acted on next: one at a time per stream, in order, and failed ones again after a pause."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Collection
from itertools import count
from typing import Any

from leftfold.engine.pending import Pending, Place
from leftfold.reaction import Reaction

__all__ = ["Errands"]

_Stream = tuple[str, int, bytes]


class Errands:
    """Queues of events by stream. It starts nothing and knows no clock.

    Args:
        chance: 0..1, to spread what failed together.
    """

    def __init__(self, reaction: Reaction[Any], chance: Callable[[], float] = random.random) -> None:
        self._reaction, self._chance = reaction, chance
        self._queues: dict[_Stream, deque[Pending]] = {}
        self._ready: deque[_Stream] = deque()
        self._later: list[tuple[float, int, _Stream]] = []
        self._number = count()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, pending: Pending) -> None:
        """An event behind those of its stream."""
        queue = self._queues.get(pending.stream)
        if queue is None:
            self._queues[pending.stream] = deque([pending])
            self._ready.append(pending.stream)
        else:
            queue.append(pending)

    def next(self, now: float) -> Pending | None:
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

    def put_back(self, pending: Pending) -> None:
        """It did not begin; it is the next one again."""
        if pending.stream in self._queues:
            self._ready.appendleft(pending.stream)

    def wait(self, now: float, most: float) -> float:
        """Seconds until something is to be tried again, `most` at the most."""
        return min(most, max(0.0, self._later[0][0] - now)) if self._later else most

    def done(self, pending: Pending) -> bool:
        """The event needs no more tries, so the next one of its stream is ready; False when it was dropped."""
        queue = self._queues.get(pending.stream)
        if queue is None or queue[0] is not pending:
            return False
        queue.popleft()
        if queue:
            self._ready.append(pending.stream)
        else:
            del self._queues[pending.stream]
        return True

    def failed(self, pending: Pending, error: BaseException, now: float) -> bool:
        """Whether it is tried again later; if not, it is to be parked, and its stream waits until it is."""
        pending.tries += 1
        queue = self._queues.get(pending.stream)
        if queue is None or queue[0] is not pending:
            return True
        if pending.tries >= self._reaction.attempts or isinstance(error, self._reaction.gives_up):
            return False
        due = now + self._reaction.pause(pending.tries, self._chance())
        heapq.heappush(self._later, (due, next(self._number), pending.stream))
        return True

    def drop(self, places: Collection[Place]) -> None:
        """Forgets the events of partitions that are somebody else's now."""
        for stream in [stream for stream in self._queues if stream[:2] in places]:
            del self._queues[stream]
