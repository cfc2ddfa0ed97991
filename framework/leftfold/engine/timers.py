"""The timers of a lane's instances, by when they are due."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from heapq import heappop, heappush

from leftfold.engine.instance import Due

__all__ = ["Timers"]


class Timers:
    """Tells which timers of one partition's instances are due; one that was fired is not told again."""

    def __init__(self) -> None:
        self._set: dict[str, dict[str, Due]] = {}
        self._heap: list[tuple[datetime, str, str, str]] = []
        self._fired: set[tuple[str, str, str]] = set()

    def set(self, key: str, timers: Mapping[str, Due]) -> None:
        """Takes over the timers of an instance as they are now."""
        before = self._set.pop(key, {})
        if timers:
            self._set[key] = dict(timers)
        for name, timer in before.items():
            if timers.get(name) != timer:
                self._fired.discard((key, name, timer.at))
        for name, timer in timers.items():
            if before.get(name) != timer:
                heappush(self._heap, (datetime.fromisoformat(timer.at), key, name, timer.at))

    def due(self, now: datetime, most: int) -> list[tuple[str, str, Due]]:
        """Up to `most` timers, by key and name, that are due and not fired yet, the earliest first."""
        found: list[tuple[str, str, Due]] = []
        again: list[tuple[datetime, str, str, str]] = []
        while self._heap and self._heap[0][0] <= now and len(found) < most:
            entry = heappop(self._heap)
            _, key, name, at = entry
            timer = self._set.get(key, {}).get(name)
            if timer is not None and timer.at == at and (key, name, at) not in self._fired:
                found.append((key, name, timer))
                again.append(entry)
        for entry in again:
            heappush(self._heap, entry)
        return found

    def fired(self, key: str, name: str, at: str) -> None:
        """What says that this timer is due stands in the log."""
        self._fired.add((key, name, at))

    def next(self) -> datetime | None:
        """When the earliest timer is due, None when there is none; it may be one that was cancelled."""
        return self._heap[0][0] if self._heap else None

    def items(self) -> Iterator[tuple[str, str, Due]]:
        """Every timer that is set, by key and name."""
        for key, timers in self._set.items():
            for name, timer in timers.items():
                yield key, name, timer

    def __len__(self) -> int:
        return sum(map(len, self._set.values()))
