"""The ports of rebuilds: log readers by offset range, archives of the log, and writers of buckets."""

from __future__ import annotations

import json
import math
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Protocol

from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.model.row_codec import Fields
from leftfold.ports.flush import Checkpoint, Generation, Parked, Phase
from leftfold.ports.protocols import Headers, LogReader, RawRecord, ViewStore

__all__ = [
    "Archive", "BucketResult", "BulkLog", "BulkRecord", "BulkRow", "BulkSink", "BulkStore", "ColumnarRecords",
    "OffsetRange", "OpenArchive", "OpenBulkLog", "OpenBulkSink", "Owner", "ReadRecord", "Registries",
    "Stored", "Suspect", "check_owner", "raw", "raw_all", "read_range", "read_to", "read_whole", "type_of",
]  # fmt: skip


_LOG_APPEND_TIME = 2
# `OffsetRange._make` costs twice as much.
_new: Any = tuple.__new__


class OffsetRange(NamedTuple):
    """A range of offsets of one partition, from `start` to `end` (not included)."""

    topic: str
    partition: int
    start: int
    end: int


class BulkRecord(Protocol):
    """One record of a log; each part is decoded when it is read, since headers cost more than the rest."""

    def offset(self) -> int:
        """The record's offset."""

    def key(self) -> bytes | None:
        """The record's key."""

    def value(self) -> bytes | None:
        """The record's value."""

    def headers(self) -> Headers | None:
        """The headers; None = the record has none."""

    def timestamp(self) -> tuple[int, int]:
        """The kind of the timestamp, as librdkafka numbers them, and the timestamp in ms since 1970."""


class ColumnarRecords(Sequence[BulkRecord]):
    """A batch of records of a log that is stored in columns."""

    @abstractmethod
    def header_columns(self) -> Iterable[tuple[Any, ...]] | None:
        """ce_type, ce_time, ce_sequence, key, value of each record; None for headers of another producer."""


class BulkLog(Protocol):
    """Reads ranges of committed records of a log; one thread uses it."""

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has. Raises InfrastructureError when it does not exist."""

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The last stable offset of every partition: below it no transaction is open, so no decision is split there."""

    def starts(self, topics: Iterable[str]) -> Position:
        """The first readable offset of every partition; records before it have been deleted."""

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The id of each topic, '' = it has none; a recreated topic has another. Absent topics are left out."""

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range in order, in batches. Raises InfrastructureError when one of them is missing."""

    def close(self) -> None:
        """Closes connections."""


OpenBulkLog = Callable[[], BulkLog]
"""Opens a BulkLog; it is shipped to the tasks, so it must be picklable."""


def raw(part: OffsetRange, record: BulkRecord) -> RawRecord:
    """The RawRecord of a BulkRecord, with all parts decoded."""
    return raw_all(part, (record,))[0]


def raw_all(part: OffsetRange, given: Iterable[BulkRecord]) -> list[RawRecord]:
    """The RawRecords of a range, with all parts decoded; without headers where a name of one is not UTF-8."""
    topic, partition, records = part.topic, part.partition, list(given)
    try:
        return [
            _new(RawRecord, (topic, partition, r.offset(), r.key(), r.value(), r.headers() or (), r.timestamp()[1]))
            for r in records
        ]
    except (SystemError, UnicodeDecodeError):
        if len(records) > 1:
            return [raw(part, record) for record in records]
        (one,) = records
        return [RawRecord(topic, partition, one.offset(), one.key(), one.value(), ())]


def type_of(record: RawRecord) -> bytes:
    """The wire type in the `ce_type` header, as `EventDecoder` reads it: the last one counts if there are two."""
    return dict(record.headers).get("ce_type") or b""


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A RawRecord as a BulkRecord."""

    record: RawRecord

    def offset(self) -> int:
        """The record's offset."""
        return self.record.offset

    def key(self) -> bytes | None:
        """The record's key."""
        return self.record.key

    def value(self) -> bytes | None:
        """The record's value."""
        return self.record.value

    def headers(self) -> Headers | None:
        """The record's headers."""
        return self.record.headers

    def timestamp(self) -> tuple[int, int]:
        """The timestamp in ms since 1970; its kind is taken as the append time."""
        return _LOG_APPEND_TIME, self.record.time


def read_to(
    reader: LogReader,
    start: Position,
    ends: Position,
    *,
    patience: float = math.inf,
    limit: int = 500,
    wait: float = 0.1,
) -> Iterator[list[RawRecord]]:
    """Reads a log from some offsets up to known ends, in batches; the last one may hold records behind an end.

    Args:
        patience: seconds without any record after which it stops early; `reader.position()` does not cover the ends
            then, because no broker answers or a transaction is open before them.
        limit, wait: of each poll.
    """
    reader.seek(start)
    last_progress = time.monotonic()
    while not reader.position().covers(ends):
        if records := reader.poll(limit, wait):
            yield records
            last_progress = time.monotonic()
        elif time.monotonic() - last_progress > patience:
            return


def read_whole(reader: LogReader, start: Position, ends: Position, *, patience: float = 15.0) -> Iterator[RawRecord]:
    """Reads a log from some offsets up to known ends, record by record.

    Raises:
        InfrastructureError: nothing could be read for `patience` seconds, and the ends are not reached.
    """
    for record in chain.from_iterable(read_to(reader, start, ends, patience=patience)):
        if record.offset < ends.next_offset(record.topic, record.partition):
            yield record
    if not reader.position().covers(ends):
        raise InfrastructureError(
            f"nothing could be read for {patience:g} s before {ends}: no broker answers, or a transaction is open "
            f"there; see: leftfold doctor"
        )


class Archive(Protocol):
    """Reads archived records; one thread uses it. It shows a topic as it was at the first request for it."""

    @property
    def place(self) -> str:
        """The location of the archive, for messages."""

    def ends(self, topic: str) -> Mapping[int, int]:
        """Per partition the offset up to which every record from 0 is archived; empty for an unknown topic."""

    def identity(self, topic: str) -> str:
        """The id that the cluster gave to the archived topic; '' for an unknown topic."""

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range below the end, in order, in batches.

        Raises:
            InfrastructureError: a file is missing, shorter than it was or not what was written; or part of the range
                is not archived.
        """

    def since(self, part: OffsetRange, time: int) -> int | None:
        """The offset of the first record of a range at or after a time (ms since 1970), None without one.

        Raises:
            InfrastructureError: as `read` does.
        """


class Owner(Protocol):
    """Looks up the ids of the topics that have some names now."""

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The id of each topic, '' = it has none; a recreated topic has another. Absent topics are left out."""


def read_range(
    log: BulkLog | Archive, part: OffsetRange, tell: Callable[[int], None] = lambda count: None
) -> Iterator[RawRecord]:
    """The records of a range one by one, with all parts decoded; `tell` gets the number in each batch that was taken.

    Raises:
        InfrastructureError: as `read` of the log or archive does.
    """
    for records in log.read(part):
        yield from raw_all(part, records)
        tell(len(records))


def check_owner(archive: Archive, topic: str, owner: Owner) -> None:
    """Checks that an archive belongs to the topic of this cluster.

    Raises:
        InfrastructureError: it belongs to another topic of the same name.
    """
    archived = archive.identity(topic)
    if archived and archived != (found := owner.identities([topic]).get(topic, "")):
        raise InfrastructureError(
            f"the archive {archive.place} is of a topic {topic} with id {archived}, but the topic has id {found}: it "
            f"was deleted and created again, so the two are not one log. Name the archive that belongs to it with "
            f"--archive DIR, or begin one: leftfold log archive {topic.removesuffix('.events')} --to DIR"
        )


OpenArchive = Callable[[], Archive]
"""Opens an Archive; it is shipped to the tasks, so it must be picklable."""


class Suspect(NamedTuple):
    """A row that seems to be stored differently from its fold, or an index entry that should not exist."""

    key: str
    field: str = ""
    value: str = ""


@dataclass(frozen=True)
class BucketResult:
    """The checkpoint of a bucket after a bulk load, without its position, which the plan has.

    `rows` counts parked ones too, `checksum` leaves them out; `time` is the latest event time folded in. `wrong` holds
    the suspected differences when rows were compared instead of written.
    """

    bucket: int
    checksum: int = 0
    rows: int = 0
    time: str = ""
    parked: Mapping[str, Parked] = field(default_factory=dict)
    wrong: tuple[Suspect, ...] = ()

    def checkpoint(self, position: Position, token: str) -> Checkpoint:
        """The sealed checkpoint of the bucket at a position."""
        return Checkpoint(position, self.checksum, token, Phase.SEALED, self.rows, self.parked, self.time)

    def to_json(self) -> str:
        """The result as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BucketResult:
        """The result from the JSON of `to_json`."""
        content = json.loads(text)
        parked = {key: Parked(**why) for key, why in content["parked"].items()}
        return cls(**{**content, "parked": parked, "wrong": tuple(Suspect(*one) for one in content["wrong"])})


class BulkRow(NamedTuple):
    """A finished row: its encoded key, its fields, its stream's version if stream-keyed, its value per index."""

    key: str
    fields: Fields
    version: int | None = None
    entries: tuple[str, ...] = ()


class BulkSink(Protocol):
    """Writes rows of buckets in the phase `bulk`; one thread uses it."""

    def write(
        self, generation: Generation, bucket: int, columns: Fields, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Writes rows of one bucket and returns how many; each key comes once, and rewriting a row changes nothing.

        It writes nothing after `finish` has recorded that the bucket is complete.

        Raises Fenced when the bucket is sealed or removed.
        """

    def finish(self, generation: Generation, result: BucketResult) -> BucketResult:
        """Records that a bucket is complete, for a rebuild that continues this one; returns the recorded result.

        A task may be attempted several times, even at once: the first result stays, and later attempts get that one.

        Raises Fenced as `write`.
        """

    def close(self) -> None:
        """Closes connections."""


OpenBulkSink = Callable[[], BulkSink]
"""Opens a BulkSink; it is shipped to the tasks, so it must be picklable."""


class Stored(NamedTuple):
    """The generations that a scan of a store's keys found, registered or not."""

    buckets: Mapping[tuple[str, str], int]
    """By view and generation id: one more than the highest bucket that still has keys."""
    whole: bool = True
    """Whether the scan finished within its time."""


class Registries(NamedTuple):
    """The views that have a registry in a store, whether or not this App declares them."""

    views: frozenset[str]
    whole: bool = True
    """Whether the scan finished within its time."""


class BulkStore(ViewStore, Protocol):
    """A ViewStore whose generations can be filled in bulk, and whose keys can be scanned."""

    def finished(self, generation: Generation) -> dict[int, BucketResult]:
        """The results of the buckets that are complete, while the generation is `bulk`."""

    def seal(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Writes all checkpoints with the phase `sealed`: at once on one server, bucket by bucket on several.

        Raises Fenced when a bucket is not `bulk` any more, InfrastructureError when it holds another number of rows
        than its checkpoint says.
        """

    def stored(self, views: Collection[str], seconds: float = math.inf) -> Stored:
        """Scans all keys for generations of these views, for so many seconds at most.

        Generations that are created or removed meanwhile may be found or not.
        """

    def registered(self, seconds: float = math.inf) -> Registries:
        """Scans all keys for registries, for so many seconds at most."""
