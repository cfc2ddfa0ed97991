"""The timers of process instances, ordered by the time at which they are due."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from heapq import heapify, heappop, heappush

from leftfold.engine.processing.process_instance import Due

__all__ = ["Timers"]

_STALE = 1000


class Timers:
    """The timers of one partition's instances, by due time; one that has fired is not returned again."""

    def __init__(self) -> None:
        self._set: dict[str, dict[str, Due]] = {}
        self._heap: list[tuple[datetime, str, str, str]] = []
        self._fired: set[tuple[str, str, str]] = set()
        self._count = 0

    def set(self, key: str, timers: Mapping[str, Due]) -> None:
        """Replaces the timers of an instance."""
        before = self._set.pop(key, {})
        self._count += len(timers) - len(before)
        if timers:
            self._set[key] = dict(timers)
        for name, timer in before.items():
            if timers.get(name) != timer:
                self._fired.discard((key, name, timer.by))
        for name, timer in timers.items():
            if before.get(name) != timer:
                heappush(self._heap, (datetime.fromisoformat(timer.at), key, name, timer.by))
        if len(self._heap) > 2 * self._count + _STALE:
            self._heap = [entry for entry in self._heap if self._is_set(*entry[1:])]
            heapify(self._heap)

    def due(self, now: datetime, most: int) -> list[tuple[str, str, Due]]:
        """Up to `most` timers, by key and name, that are due and have not fired, the earliest first."""
        found: list[tuple[str, str, Due]] = []
        again: list[tuple[datetime, str, str, str]] = []
        while self._heap and self._heap[0][0] <= now and len(found) < most:
            entry = heappop(self._heap)
            _, key, name, by = entry
            if self._is_set(key, name, by):
                found.append((key, name, self._set[key][name]))
                again.append(entry)
        for entry in again:
            heappush(self._heap, entry)
        return found

    def fired(self, key: str, name: str, by: str) -> None:
        """Records that the log holds the due record of this timer, as the input `by` set it."""
        if self._is_set(key, name, by):
            self._fired.add((key, name, by))

    def next(self) -> datetime | None:
        """When the earliest timer that has not fired is due; None when there is none."""
        while self._heap and not self._is_set(*self._heap[0][1:]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def _is_set(self, key: str, name: str, by: str) -> bool:
        timer = self._set.get(key, {}).get(name)
        return timer is not None and timer.by == by and (key, name, by) not in self._fired

    def items(self) -> Iterator[tuple[str, str, Due]]:
        """Every timer that is set, by key and name."""
        for key, timers in self._set.items():
            for name, timer in timers.items():
                yield key, name, timer

    def __len__(self) -> int:
        return self._count
