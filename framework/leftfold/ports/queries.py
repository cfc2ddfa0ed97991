"""The queries of readers to a view store, as values, so that one read serves threads and asyncio alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias

from typing_extensions import TypeVar

from leftfold.model.position import Position
from leftfold.ports.flush import Checkpoint, Generation, Registry, Snapshot

__all__ = [
    "Changed", "Changes", "Counting", "Counts", "Entries", "Entry", "GetRow", "IndexRange", "InspectedRow",
    "Inspection", "Listed", "Matches", "Matching", "Query", "Recent", "Registered", "RowResult", "Rows",
]  # fmt: skip

A_co = TypeVar("A_co", covariant=True)


class Query(Generic[A_co]):
    """A query that a store answers in one round trip with an `A_co`."""


@dataclass(frozen=True)
class Registered(Query[Registry]):
    """The registry of a view: its generations, and the live one of each schema hash."""

    view: str


class RowResult(NamedTuple):
    """The live generation ('' = none), whether the bucket has a checkpoint, and the row's fields."""

    live: str
    whole: bool
    fields: Mapping[bytes, bytes] | None


@dataclass(frozen=True)
class GetRow(Query[RowResult]):
    """One row, for readers that do not need its bucket's position: the cheapest query there is."""

    generation: Generation
    bucket: int
    key: str


@dataclass(frozen=True)
class Rows(Query[Snapshot]):
    """The rows named by (bucket, encoded key), the checkpoints of their buckets and of `buckets`, and what is live.

    No row is older than its bucket's checkpoint in the answer.
    """

    generation: Generation
    keys: tuple[tuple[int, str], ...]
    buckets: tuple[int, ...] = ()


@dataclass(frozen=True)
class Listed(Query[list[str]]):
    """Up to `limit` encoded row keys of a bucket behind `after` ('' = from the start), in byte order."""

    generation: Generation
    bucket: int
    after: str
    limit: int


@dataclass(frozen=True)
class IndexRange:
    """A range of values of an indexed field as ordered text, from `low` to `high`.

    None is no bound on that side; it leaves out rows whose field is None, which sort before every value. The range of
    one value begins and ends with it.
    """

    index: str
    low: str | None = None
    high: str | None = None
    above_low: bool = False
    below_high: bool = False

    def includes(self, value: str) -> bool:
        """Whether an ordered value lies in the range."""
        low, high = self.low, self.high
        if low is None and not value.startswith("="):
            return False
        above = low is None or value > low or (value == low and not self.above_low)
        return above and (high is None or value < high or (value == high and not self.below_high))


@dataclass(frozen=True)
class Matches:
    """The live generation ('' = none) and, per range asked for, (ordered value, encoded key) by bucket, in order."""

    live: str
    found: tuple[Mapping[int, tuple[tuple[str, str], ...]], ...]


@dataclass(frozen=True)
class Matching(Query[Matches]):
    """The index entries in each range, per bucket in the order of value and key, or backwards.

    Args:
        limit: at most so many per range and bucket; None = all. buckets: None = all.
    """

    generation: Generation
    ranges: tuple[IndexRange, ...]
    limit: int | None = None
    backwards: bool = False
    buckets: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Counts:
    """The live generation ('' = none) and how many rows each range holds over all buckets."""

    live: str
    totals: tuple[int, ...]


@dataclass(frozen=True)
class Counting(Query[Counts]):
    """The number of rows in each range, counted by the store."""

    generation: Generation
    ranges: tuple[IndexRange, ...]


@dataclass(frozen=True)
class Entries(Query[list[tuple[str, str]]]):
    """Up to `limit` entries (ordered value, encoded key) of a bucket's index, in order, with or without a row.

    They begin at `first`, itself included; ('', '') is before all.
    """

    generation: Generation
    bucket: int
    index: str
    first: tuple[str, str]
    limit: int


Entry: TypeAlias = tuple[str, str]
"""An index of a row and the ordered value in it."""


class InspectedRow(NamedTuple):
    """All that is stored of a row: its fields, whether the key list has it, which queried entries exist.

    None of it is older than the bucket's checkpoint (None = it has none), and none newer if the checkpoint is `still`
    the same after the read.
    """

    checkpoint: Checkpoint | None
    fields: Mapping[bytes, bytes] | None
    listed: bool
    entries: frozenset[Entry]
    still: bool


@dataclass(frozen=True)
class Inspection(Query[InspectedRow]):
    """One row with its entries in the key list and the indexes of its bucket."""

    generation: Generation
    bucket: int
    key: str
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Changed:
    """An entry of a bucket's change stream: the bucket reached `position`, and these row keys changed.

    An entry without keys is the start of a stream (`begins`), or stands before changes that did not move the position.
    """

    id: str
    position: Position
    keys: tuple[str, ...]
    begins: bool = False


@dataclass(frozen=True)
class Recent:
    """The live generation, and per bucket the position of its checkpoint and entries of its change stream.

    A bucket without a checkpoint has no position. The position was read before the entries, so every change up to it is
    in them or before them.
    """

    live: str
    positions: Mapping[int, Position] = field(default_factory=dict)
    entries: Mapping[int, tuple[Changed, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Changes(Query[Recent]):
    """Entries of the change streams of some buckets, from an id on or backwards from it ('' = the end).

    The entry of the id comes first, so that a reader sees whether it still exists; if not, others may be trimmed too.
    """

    generation: Generation
    ids: Mapping[int, str]
    limit: int
    backwards: bool = False
