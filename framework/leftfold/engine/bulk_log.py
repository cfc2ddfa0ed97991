"""The log as a rebuild reads it: whole ranges of partitions, records opened no further than the fold needs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from leftfold.ports import Headers, LogReader, RawRecord
from leftfold.position import Position

__all__ = [
    "BulkLog",
    "BulkRecord",
    "OpenBulkLog",
    "Range",
    "ReadRecord",
    "SteadyLog",
    "ToldRecords",
    "raw",
    "raw_all",
    "type_of",
]

_BATCH = 100
_LOG_APPEND_TIME = 2
# The named constructor costs twice as much.
_new: Any = tuple.__new__


class Range(NamedTuple):
    """The offsets `start` to `end` (not included) of one partition."""

    topic: str
    partition: int
    start: int
    end: int


class BulkRecord(Protocol):
    """One record; each part is made only when it is asked for, since headers cost more than all the rest."""

    def offset(self) -> int:
        """Its offset."""

    def key(self) -> bytes | None:
        """Its key."""

    def value(self) -> bytes | None:
        """Its value."""

    def headers(self) -> Headers | None:
        """Its headers; None = it has none."""

    def timestamp(self) -> tuple[int, int]:
        """What kind of time it bears, as librdkafka numbers them, and the time in ms since 1970."""


class ToldRecords(Sequence[BulkRecord]):
    """Records of a log that is stored by columns."""

    @abstractmethod
    def told(self) -> Iterable[tuple[Any, ...]] | None:
        """ce_type, ce_time, ce_sequence, key, value of each record; None when headers are not as lanes write them."""


class BulkLog(Protocol):
    """Reads ranges of committed records; one thread uses it."""

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has. Raises InfrastructureError when it does not exist."""

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The end of every partition below which nothing is open: no decision is cut in two there."""

    def starts(self, topics: Iterable[str]) -> Position:
        """The first offset of every partition that can still be read; records before it have been deleted."""

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The id of each topic, '' = it has none; one that was made again has another. An absent one is left out."""

    def read(self, part: Range) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range in order, in batches. Raises InfrastructureError when one of them is gone."""

    def close(self) -> None:
        """Lets go of connections."""


OpenBulkLog = Callable[[], BulkLog]
"""Makes a BulkLog; shipped to where tasks run, so it must be picklable."""


def raw(part: Range, record: BulkRecord) -> RawRecord:
    """The record with everything in it."""
    return raw_all(part, (record,))[0]


def raw_all(part: Range, records: Iterable[BulkRecord]) -> list[RawRecord]:
    """Records of a range with everything in them."""
    topic, partition = part.topic, part.partition
    return [
        _new(RawRecord, (topic, partition, r.offset(), r.key(), r.value(), r.headers() or (), r.timestamp()[1]))
        for r in records
    ]


def type_of(record: RawRecord) -> bytes:
    """The wire type, as `EventDecoder` understands a record: the last one counts if it is said twice."""
    return dict(record.headers).get("ce_type") or b""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as it stands in a topic, as a BulkRecord."""

    record: RawRecord

    def offset(self) -> int:
        """Its offset."""
        return self.record.offset

    def key(self) -> bytes | None:
        """Its key."""
        return self.record.key

    def value(self) -> bytes | None:
        """Its value."""
        return self.record.value

    def headers(self) -> Headers | None:
        """Its headers."""
        return self.record.headers

    def timestamp(self) -> tuple[int, int]:
        """Its time, in ms since 1970, taken for the one at which it was appended."""
        return _LOG_APPEND_TIME, self.record.time


class SteadyLog:
    """A BulkLog on any LogReader of a log whose every record is committed, such as the one in memory."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has."""
        return self._reader.partitions(topic)

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The ends; nothing is ever open here."""
        return self._reader.ends(topics)

    def starts(self, topics: Iterable[str]) -> Position:
        """0 everywhere: nothing is ever deleted here."""
        return Position({topic: dict.fromkeys(range(self.partitions(topic)), 0) for topic in topics})

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The ids that the reader knows."""
        return self._reader.identities(topics)

    def read(self, part: Range) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range."""
        self._reader.seek(Position.at(part.topic, part.partition, part.start))
        while self._reader.position().next_offset(part.topic, part.partition) < part.end:
            yield [ReadRecord(r) for r in self._reader.poll(_BATCH, 1.0) if r.offset < part.end]

    def close(self) -> None:
        """Closes the reader."""
        self._reader.close()
