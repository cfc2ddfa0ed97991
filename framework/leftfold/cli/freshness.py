"""How many seconds a view is behind: the age of the first event that it has not folded."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from leftfold.connection import kafka_settings
from leftfold.engine.bulk_log import BulkLog, Range
from leftfold.errors import LogHole
from leftfold.position import Position
from leftfold.wholelog import open_bulk

__all__ = ["Freshness"]


class Freshness:
    """Looks at the log behind positions; an archive is opened only for what a topic has lost.

    Args:
        archive: where events are that the topics have lost; '' = nowhere.
    """

    def __init__(self, kafka: str | None, archive: str) -> None:
        self._kafka, self._archive = kafka, archive
        self._logs: dict[str, BulkLog] = {}
        self._ends: dict[str, Mapping[int, int]] = {}
        self._found: dict[Range, int | None] = {}

    def seconds(self, position: Position) -> float:
        """The age of the oldest event behind a position; 0 when there is none.

        What ends a transaction is no event, and events of one that is open are not there yet, so a position short of
        a topic's end need not miss any.

        Raises:
            LogHole: the next event is neither in its topic nor in the archive.
            InfrastructureError: the log cannot be read, or the archive is broken or another topic's.
        """
        times = [
            found
            for topic in position.offsets
            for partition, end in self._stable_ends(topic).items()
            if (found := self._first(Range(topic, partition, position.next_offset(topic, partition), end))) is not None
        ]
        return max(0.0, time.time() - min(times) / 1000) if times else 0.0

    def _stable_ends(self, topic: str) -> Mapping[int, int]:
        if topic not in self._ends:
            self._ends[topic] = self._log().stable_ends([topic]).offsets.get(topic, {})
        return self._ends[topic]

    def _first(self, part: Range) -> int | None:
        """When the first event of a range was appended, in ms since 1970; None = there is none."""
        if part.start >= part.end:
            return None
        if part not in self._found:
            try:
                self._found[part] = _first_time(self._log(), part)
            except LogHole:
                if not self._archive:
                    raise
                self._found[part] = _first_time(self._log(self._archive), part)
        return self._found[part]

    def _log(self, archive: str = "") -> BulkLog:
        if archive not in self._logs:
            self._logs[archive] = open_bulk(kafka_settings(self._kafka), archive)()
        return self._logs[archive]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for log in self._logs.values():
            log.close()


def _first_time(log: BulkLog, part: Range) -> int | None:
    first = next((records[0] for records in log.read(part) if records), None)
    return first.timestamp()[1] if first is not None else None
