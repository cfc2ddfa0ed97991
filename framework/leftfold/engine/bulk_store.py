"""What a rebuild writes to: rows of buckets while they are `bulk`, then every mark."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from leftfold.engine.bulk_result import BucketResult
from leftfold.flush import Generation, Mark
from leftfold.ports import ViewStore
from leftfold.rows import Fields

__all__ = ["BulkRow", "BulkSink", "BulkStore", "OpenBulkSink", "Registries", "Stored"]


class BulkRow(NamedTuple):
    """A finished row: its encoded key, its fields, its stream's version if stream-keyed, its value per index."""

    key: str
    fields: Fields
    version: int | None = None
    entries: tuple[str, ...] = ()


class BulkSink(Protocol):
    """Writes rows of buckets whose mark says `bulk`; one thread uses it."""

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

    def seal(self, generation: Generation, marks: Mapping[int, Mark]) -> None:
        """Writes all marks with the phase `sealed`: at once on one server, bucket by bucket on several.

        Raises Fenced when a bucket is not `bulk` any more, InfrastructureError when it holds another number of rows
        than its mark says.
        """

    def stored(self, views: Collection[str], seconds: float = math.inf) -> Stored:
        """Looks through all keys for generations of these views, for so many seconds at most.

        What is made or removed meanwhile may be found or not.
        """

    def registered(self, seconds: float = math.inf) -> Registries:
        """Looks through all keys for registries, for so many seconds at most."""
