"""Events as they stand in the log: of a category or of one stream, the last few or all, and what comes after."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from leftfold.engine.processing.stream_state import MARK
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import partition_of
from leftfold.model.position import Position
from leftfold.model.state_codec import number_in
from leftfold.ports.bulk import read_to
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import Closing, LogReader, RawRecord
from leftfold.runtime.connect import open_reader
from leftfold.runtime.console import note
from leftfold.runtime.servers import topic_in

__all__ = ["EventLog", "fields_of", "key_in", "value_in"]


def fields_of(record: RawRecord) -> Mapping[str, Any]:
    """A record as a JSON object; one that is no event is shown as far as it can be read."""

    def text(name: str) -> str:
        return header(record.headers, f"ce_{name}").decode(errors="replace")

    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "key": key_in(record),
        "type": text("type"),
        "id": text("id"),
        "time": text("time"),
        "version": number_in(text("sequence")),
        "decision": text("decision"),
        "correlation_id": text("correlationid"),
        "causation_id": text("causationid"),
        "principal": text("authid"),
        "event": value_in(record),
    }


def key_in(record: RawRecord) -> str | None:
    """The key of a record as text."""
    return None if record.key is None else record.key.decode(errors="replace")


def value_in(record: RawRecord) -> Any:
    """The value of a record as JSON, or as text where it is none."""
    try:
        return json.loads(record.value or b"null")
    except (ValueError, RecursionError):
        return (record.value or b"").decode(errors="replace")


_BATCH = 1000
_WAIT = 0.2
_PATIENCE = 15.0
_STEP = 4


class EventLog(Closing):
    """The events of one category, or of one stream, for which only its partition is read.

    Args:
        archive: the archive with events that the topic has lost; '' = none.
        warn: called with a message about events that could not be read.

    Raises:
        Usage: the cluster has no such category.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        category: str,
        key: str = "",
        *,
        archive: str = "",
        warn: Callable[[str], None] = note,
    ) -> None:
        self._warn = warn
        with ClusterAdmin(settings) as cluster:
            topic, count = topic_in(cluster, category)
            starts: Position = cluster.starts([topic])
        self._topic, self._key = topic, key.encode()
        self._partitions = [partition_of(self._key, count)] if key else list(range(count))
        self._reader: LogReader = open_reader(settings, archive)()
        # The last N events are taken from the topic alone; all events may start in the archive.
        self._floor = {} if archive else starts.offsets[topic]

    def close(self) -> None:
        """Closes the reader."""
        self._reader.close()

    def read(self, last: int | None, *, follow: bool) -> Iterator[list[RawRecord]]:
        """Batches of events, sorted by time within a batch: the last few or all, then, with `follow`, new ones."""
        ends = self._ends()
        if last is None:
            yield from self._read(self._from(dict.fromkeys(self._partitions, 0)), ends)
        else:
            yield self._last(last, ends)
        while follow:
            records = self._reader.poll(_BATCH, _WAIT)
            yield self._sorted(records)

    def _ends(self) -> Position:
        ends = self._reader.ends([self._topic])
        return self._from({p: ends.next_offset(self._topic, p) for p in self._partitions})

    def _last(self, count: int, ends: Position) -> list[RawRecord]:
        """The last few events; offsets have gaps, so more and more offsets are read until enough events are found."""
        reach = max(1, count)
        while True:
            reach *= _STEP
            start = {p: max(self._first(p), ends.next_offset(self._topic, p) - reach) for p in self._partitions}
            found = list(chain.from_iterable(self._read(self._from(start), ends)))
            if len(found) >= count or all(offset <= self._first(p) for p, offset in start.items()):
                return self._sorted(found)[-count:] if count else []

    def _first(self, partition: int) -> int:
        return self._floor.get(partition, 0)

    def _read(self, start: Position, ends: Position) -> Iterator[list[RawRecord]]:
        """Batches up to the ends; the wait for a transaction that stays open before them is limited."""
        yield from map(self._sorted, read_to(self._reader, start, ends, patience=_PATIENCE, limit=_BATCH, wait=_WAIT))
        if not self._reader.position().covers(ends):
            self._warn(f"nothing more can be read before {ends}: no broker answers, or a transaction is open there")

    def _from(self, offsets: dict[int, int]) -> Position:
        return Position({self._topic: offsets})

    def _sorted(self, records: list[RawRecord]) -> list[RawRecord]:
        # A record with the key of the changelog checkpoint ends a transaction that a broker forgot; it is no event.
        mine = [r for r in records if (r.key == self._key if self._key else r.key != MARK)]
        return sorted(mine, key=lambda r: (r.time, r.partition, r.offset))
