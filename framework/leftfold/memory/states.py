"""State records of one partition in a dict: the default store of a lane."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["MemoryStates"]


class MemoryStates:
    """A StateStore in memory."""

    def __init__(self) -> None:
        self._records: dict[str, bytes] = {}

    def get(self, key: str) -> bytes | None:
        """The record of a stream, None when it does not exist."""
        return self._records.get(key)

    def put(self, records: Iterable[tuple[str, bytes]]) -> None:
        """Remembers records."""
        self._records.update(records)

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Every record."""
        return iter(self._records.items())

    def __len__(self) -> int:
        """How many streams there are."""
        return len(self._records)
