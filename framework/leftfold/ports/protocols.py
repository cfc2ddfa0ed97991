"""The protocols of logs and view stores. The engine uses only these; adapters live in kafka/, redis/ and memory/."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from leftfold.model.position import Position, RecordAddress
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Registry, Snapshot, While
from leftfold.ports.notifications import AsyncWaiter, Waiter
from leftfold.ports.queries import Listed, Query, Registered, Rows

__all__ = ["Flushing", "Headers", "LogReader", "PartitionId", "RawRecord", "Report", "ViewStore"]

A = TypeVar("A")

Headers: TypeAlias = Sequence[tuple[str, bytes]]
PartitionId: TypeAlias = tuple[str, int]
"""A topic and a partition."""
Report: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Called with messages for the operator: (what, details)."""


class Closing(ABC):
    """A resource that is closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Closes connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RawRecord(NamedTuple):
    """One record of a topic. `time` is the broker's or sender's timestamp in ms since 1970."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    time: int = 0

    @property
    def place(self) -> PartitionId:
        """Its topic and partition."""
        return self.topic, self.partition

    @property
    def address(self) -> RecordAddress:
        """Where it stands in the log; as text `topic[partition]@offset`."""
        return RecordAddress(self.topic, self.partition, self.offset)


class LogReader(Protocol):
    """Reads committed records of event topics from given offsets; one thread uses it."""

    def partitions(self, topic: str) -> int:
        """How many partitions the topic has. Raises InfrastructureError when it does not exist."""

    def ends(self, topics: Iterable[str]) -> Position:
        """The high watermark of every partition: the next offset, stable or not; partitions at 0 included."""

    def stable_ends(self, topics: Iterable[str]) -> Position:
        """The last stable offset of every partition: records of open transactions come behind it."""

    def identities(self, topics: Iterable[str]) -> Mapping[str, str]:
        """The id of each topic, '' = it has none; a recreated topic has another. Absent topics are left out."""

    def check(self, position: Position) -> None:
        """Raises LogGap when a reader that continued at these offsets would miss deleted records."""

    def seek(self, position: Position) -> None:
        """Continues at these offsets; only the partitions named here are read."""

    def poll(self, limit: int, timeout: float) -> list[RawRecord]:
        """Waits up to `timeout` seconds for the first record, then returns the available ones, `limit` at most."""

    def position(self) -> Position:
        """The next offset of each partition: past the last record, and past markers and aborted records at an end."""

    def close(self) -> None:
        """Closes connections."""


class Flushing(Protocol):
    """A flush that has begun."""

    def landed(self) -> bool:
        """Waits for the outcome of the flush: True when everything is written.

        False when a bucket's token is not the one the flush expects, or the outcome is unknown because a connection was
        lost. The checkpoints show what is written then: one bucket's rows and checkpoint are written all or none, and
        so are all buckets of a flush where the store is one server. A store of several servers writes each bucket by
        itself. After False, or an error, the caller reads the checkpoints again and continues at the lowest of them.
        """


class ViewStore(Protocol):
    """Rows, indexes, checkpoints and the registry of views, under the bucket protocol."""

    def registry(self, view: str) -> Registry:
        """The generations of a view and which is live for each hash."""
        return self.ask(Registered(view))

    def change_registry(self, view: str, before: Registry, after: Registry, while_: While | None = None) -> bool:
        """Replaces the registry if it is still `before`; False when another process changed it first.

        Args:
            while_: a further condition that must hold when the change is written.
        """

    def checkpoints(self, generation: Generation) -> dict[int, Checkpoint]:
        """The checkpoints of a generation's buckets, without those that are missing.

        A checkpoint in the phase `bulk` in a generation that is past it has lost its seal, and its bucket maybe rows:
        it counts as missing, too. Snapshots leave such checkpoints out as well.
        """
        return dict(self.ask(Rows(generation, (), tuple(range(generation.buckets)))).checkpoints)

    def create_marks(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> bool:
        """Writes the checkpoints of a new generation if it has none; False when it has one."""

    def read(self, generation: Generation, keys: Sequence[tuple[int, str]]) -> Snapshot:
        """The rows named by (bucket, encoded key), their buckets' checkpoints and the live generation.

        It takes one round trip.
        """
        return self.ask(Rows(generation, tuple(keys)))

    def read_all(self, asked: Sequence[tuple[Generation, Sequence[tuple[int, str]]]]) -> list[Snapshot]:
        """`read` of several generations, in one round trip."""

    def ask(self, question: Query[A], /) -> A:
        """The answer to a reader's query, in one round trip."""

    async def aask(self, question: Query[A], /) -> A:
        """`ask` for asyncio."""

    def listen(self, generation: Generation, wanted: Position | None, /) -> Waiter:
        """A waiter, from now on, for the flush that brings the generation to `wanted`; None = for every flush.

        It is also notified, within 50 ms, of a flush whose notice was lost, and when another generation goes live.
        """

    async def alisten(self, generation: Generation, wanted: Position | None, /) -> AsyncWaiter:
        """`listen` for asyncio."""

    def begin_flush(self, flushes: Sequence[BucketFlush]) -> Flushing:
        """Sends rows, index changes and checkpoints of many buckets of one generation.

        Each bucket is written all or none. Nothing is sent when a token is known not to be the expected one. The next
        flush of the same generation waits for this one.
        """

    def flush(self, flushes: Sequence[BucketFlush]) -> bool:
        """`begin_flush`, and its outcome."""
        return self.begin_flush(flushes).landed()

    def keys(self, generation: Generation, bucket: int, after: str, limit: int) -> list[str]:
        """Up to `limit` encoded row keys of a bucket behind `after` ('' = from the start), in byte order."""
        return self.ask(Listed(generation, bucket, after, limit))

    def unlink(self, generation: Generation) -> None:
        """Removes every key of a generation."""

    def heartbeat(self, groups: Sequence[str], member: str, seconds: float) -> dict[str, tuple[str, ...]]:
        """Renews the membership of some groups for so many seconds; returns each group's members, sorted.

        0 seconds ends the membership. Membership decides which process works, never where a fold continues: the
        checkpoints do.
        """

    def close(self) -> None:
        """Closes connections."""
