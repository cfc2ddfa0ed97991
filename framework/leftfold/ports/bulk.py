"""The ports of rebuilds: the log in whole ranges, the archive behind it, and the buckets they are written to."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol

from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.model.rows import Fields
from leftfold.ports.flush import Checkpoint, Generation, Parked, Phase
from leftfold.ports.protocols import Headers, LogReader, RawRecord, ViewStore

__all__ = [
    "Archive",
    "BucketResult",
    "BulkLog",
    "BulkRecord",
    "BulkRow",
    "BulkSink",
    "BulkStore",
    "OffsetRange",
    "OpenArchive",
    "OpenBulkLog",
    "OpenBulkSink",
    "Owner",
    "ReadRecord",
    "Registries",
    "SteadyLog",
    "Stored",
    "Suspect",
    "ToldRecords",
    "check_owner",
    "raw",
    "raw_all",
    "type_of",
]


_BATCH = 100
_LOG_APPEND_TIME = 2
# The named constructor costs twice as much.
_new: Any = tuple.__new__


class OffsetRange(NamedTuple):
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
        """ce_type, ce_time, ce_sequence, key, value of each record; None for headers of other writers."""


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

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range in order, in batches. Raises InfrastructureError when one of them is gone."""

    def close(self) -> None:
        """Lets go of connections."""


OpenBulkLog = Callable[[], BulkLog]
"""Makes a BulkLog; shipped to where tasks run, so it must be picklable."""


def raw(part: OffsetRange, record: BulkRecord) -> RawRecord:
    """The record with everything in it."""
    return raw_all(part, (record,))[0]


def raw_all(part: OffsetRange, records: Iterable[BulkRecord]) -> list[RawRecord]:
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

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range."""
        self._reader.seek(Position.at(part.topic, part.partition, part.start))
        while self._reader.position().next_offset(part.topic, part.partition) < part.end:
            yield [ReadRecord(r) for r in self._reader.poll(_BATCH, 1.0) if r.offset < part.end]

    def close(self) -> None:
        """Closes the reader."""
        self._reader.close()


class Archive(Protocol):
    """Reads what has been archived; one thread uses it. It is as it was when it was first asked about a topic."""

    @property
    def place(self) -> str:
        """Where it is, as messages call it."""

    def ends(self, topic: str) -> Mapping[int, int]:
        """Per partition the offset up to which everything from 0 is there; a topic it does not know has none."""

    def identity(self, topic: str) -> str:
        """The id of the topic that was archived, as its cluster called it; '' for one that it does not know."""

    def read(self, part: OffsetRange) -> Iterator[Sequence[BulkRecord]]:
        """The records of a range below the end, in order, in batches.

        Raises:
            InfrastructureError: a file is missing, shorter than it was or not what was written; or part of the range
                is not there.
        """

    def since(self, part: OffsetRange, time: int) -> int | None:
        """The offset of the first record of a range at or after a time in ms since 1970, None when all are older.

        Raises:
            InfrastructureError: as `read` does.
        """


class Owner(Protocol):
    """Knows which topic bears a name now."""

    def identity(self, topic: str) -> str:
        """The id that the cluster gave the topic; one that is made anew has another."""


def check_owner(archive: Archive, topic: str, owner: Owner) -> None:
    """Checks that an archive is the topic's own.

    Raises:
        InfrastructureError: it is another topic's of the same name.
    """
    kept = archive.identity(topic)
    if kept and kept != (found := owner.identity(topic)):
        raise InfrastructureError(
            f"the archive {archive.place} is of a topic {topic} with id {kept}, and the one that is there now has "
            f"id {found}: somebody has made the topic anew, and the two are not one log. Name the archive that belongs "
            f"to it with --archive DIR, or begin one: leftfold log archive {topic.removesuffix('.events')} --to DIR"
        )


OpenArchive = Callable[[], Archive]
"""Makes an Archive; shipped to where tasks run, so it must be picklable."""


class Suspect(NamedTuple):
    """A row that is stored otherwise than it is folded, as it seems; or an index entry that it should not have."""

    key: str
    field: str = ""
    value: str = ""


@dataclass(frozen=True)
class BucketResult:
    """Everything of a bucket's checkpoint but its position, which the plan knows.

    `rows` counts parked ones too, `checksum` leaves them out; `time` is the latest event time folded in. `wrong` is
    what seems to be stored otherwise, when rows were compared instead of written.
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
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BucketResult:
        """Reads what `to_json` wrote."""
        told = json.loads(text)
        parked = {key: Parked(**why) for key, why in told["parked"].items()}
        return cls(**{**told, "parked": parked, "wrong": tuple(Suspect(*one) for one in told["wrong"])})


class BulkRow(NamedTuple):
    """A finished row: its encoded key, its fields, its stream's version if stream-keyed, its value per index."""

    key: str
    fields: Fields
    version: int | None = None
    entries: tuple[str, ...] = ()


class BulkSink(Protocol):
    """Writes rows of buckets whose checkpoint says `bulk`; one thread uses it."""

    def write(
        self, generation: Generation, bucket: int, columns: Fields, indexes: tuple[str, ...], rows: Iterable[BulkRow]
    ) -> int:
        """Writes rows of one bucket and returns how many; each key comes once, and writing one again changes nothing.

        Nothing is written any more once `finish` noted that the bucket is whole.

        Raises Fenced when the bucket is sealed or gone.
        """

    def finish(self, generation: Generation, result: BucketResult) -> BucketResult:
        """Notes that a bucket is whole, for a rebuild that goes on where this one ends; returns what is noted of it.

        A task may be attempted several times, even at once: the first result stays, and the others get that one.

        Raises Fenced as `write`.
        """

    def close(self) -> None:
        """Lets go of connections."""


OpenBulkSink = Callable[[], BulkSink]
"""Makes a BulkSink; shipped to where tasks run, so it must be picklable."""


class Stored(NamedTuple):
    """What a look through the keys of a store found, whatever the registries say."""

    buckets: Mapping[tuple[str, str], int]
    """By view and generation id: one more than the highest bucket that something is left of."""
    whole: bool = True
    """Whether the look came to the end in its time."""


class Registries(NamedTuple):
    """The views of which a store has a registry, whoever declares them."""

    views: frozenset[str]
    whole: bool = True
    """Whether the look came to the end in its time."""


class BulkStore(ViewStore, Protocol):
    """A ViewStore whose generations can be filled in bulk, and which can be looked through."""

    def finished(self, generation: Generation) -> dict[int, BucketResult]:
        """The buckets that are whole, while the generation is `bulk`."""

    def seal(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Writes all checkpoints with the phase `sealed`: at once on one server, bucket by bucket on several.

        Raises Fenced when a bucket is not `bulk` any more, InfrastructureError when it holds another number of rows
        than its checkpoint says.
        """

    def stored(self, views: Collection[str], seconds: float = math.inf) -> Stored:
        """Looks through all keys for generations of these views, for so many seconds at most.

        What is made or removed meanwhile may be found or not.
        """

    def registered(self, seconds: float = math.inf) -> Registries:
        """Looks through all keys for registries, for so many seconds at most."""
