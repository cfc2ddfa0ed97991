"""Reads a category's events for people: all of them, the last few, or one stream, and what comes after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from leftfold.cli.archives import topic_in
from leftfold.cli.console import note
from leftfold.connection import ring
from leftfold.engine.statemark import MARK
from leftfold.kafka.settings import KafkaSettings
from leftfold.partitioner import partition_of
from leftfold.ports import LogReader, RawRecord
from leftfold.position import Position
from leftfold.wholelog import open_reader

__all__ = ["EventLog"]

_BATCH = 1000
_WAIT = 0.2
_PATIENCE = 15.0
_STEP = 4


class EventLog:
    """The events of one category, or of one stream, whose partition alone is then read.

    Args:
        archive: where events are that the topic has lost; '' = nowhere.

    Raises:
        Usage: the cluster has no such category.
    """

    def __init__(self, settings: KafkaSettings, category: str, key: str = "", *, archive: str = "") -> None:
        with ring("leftfold.kafka.cluster").Cluster(settings) as cluster:
            topic, count = topic_in(cluster, category)
            starts: Position = cluster.starts([topic])
        self._topic, self._key = topic, key.encode()
        self._partitions = [partition_of(self._key, count)] if key else list(range(count))
        self._reader: LogReader = open_reader(settings, archive)()
        # The last few events are those that are there; all of them are all that ever were.
        self._floor = {} if archive else starts.offsets[topic]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._reader.close()

    def read(self, last: int | None, *, follow: bool) -> Iterator[list[RawRecord]]:
        """Batches of events, in order of time within a batch: the last few, or all of them, and what comes after."""
        ends = self._ends()
        if last is None:
            self._reader.seek(self._from(dict.fromkeys(self._partitions, 0)))
            yield from self._until(ends)
        else:
            yield self._last(last, ends)
        while follow:
            records = self._reader.poll(_BATCH, _WAIT)
            yield self._sorted(records)

    def _ends(self) -> Position:
        ends = self._reader.ends([self._topic])
        return self._from({p: ends.next_offset(self._topic, p) for p in self._partitions})

    def _last(self, count: int, ends: Position) -> list[RawRecord]:
        """The last few; offsets have gaps, so as many more are read as it takes to find them."""
        reach = max(1, count)
        while True:
            reach *= _STEP
            start = {p: max(self._first(p), ends.next_offset(self._topic, p) - reach) for p in self._partitions}
            self._reader.seek(self._from(start))
            found: list[RawRecord] = []
            for records in self._until(ends):
                found += records
            if len(found) >= count or all(offset <= self._first(p) for p, offset in start.items()):
                return self._sorted(found)[-count:] if count else []

    def _first(self, partition: int) -> int:
        return self._floor.get(partition, 0)

    def _until(self, ends: Position) -> Iterator[list[RawRecord]]:
        """What is there up to the ends; a transaction that stays open in front of them is not waited for for long."""
        deadline = time.monotonic() + _PATIENCE
        while not self._reader.position().covers(ends):
            records = self._reader.poll(_BATCH, _WAIT)
            if records:
                deadline = time.monotonic() + _PATIENCE
                yield self._sorted(records)
            elif time.monotonic() > deadline:
                note(f"nothing more can be read before {ends}: no broker answers, or a transaction is open there")
                return

    def _from(self, offsets: dict[int, int]) -> Position:
        return Position({self._topic: offsets})

    def _sorted(self, records: list[RawRecord]) -> list[RawRecord]:
        # A record with the key of marks ends a transaction that a broker forgot; it is no event.
        mine = [r for r in records if (r.key == self._key if self._key else r.key != MARK)]
        return sorted(mine, key=lambda r: (r.time, r.partition, r.offset))
