"""Folds one micro-batch into some buckets whose marks and rows came together, in one round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from leftfold.engine.bulk_items import Item, ItemReader
from leftfold.engine.bulk_log import Range
from leftfold.engine.decoded import Decoded
from leftfold.engine.follower import Follower
from leftfold.engine.places import Place
from leftfold.flush import Generation, Snapshot
from leftfold.ports import ViewStore
from leftfold.view import View

__all__ = ["BatchFollower", "ItemFollower"]


class BatchFollower(Follower):
    """A Follower that lives for one batch and knows only what `read` says.

    Args:
        places, read: the rows that the batch touches, and what the store says of them and of their buckets.
        token: of the marks that it writes.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generation: Generation,
        store: ViewStore,
        places: Sequence[Place],
        read: Snapshot,
        *,
        token: str,
        max_parked: int,
    ) -> None:
        self._given, self._named = read, token
        self._fields = dict(zip(places, read.rows, strict=True))
        super().__init__(view, generation, store, most=len(places), max_parked=max_parked)

    def reread(self) -> None:
        """Takes the marks that it was given."""
        self._begin_at(dict(self._given.marks))

    def _read(self, places: Sequence[Place]) -> Snapshot:
        return replace(self._given, rows=tuple(self._fields[place] for place in places))

    def _token(self) -> str:
        return self._named


class ItemFollower(BatchFollower):
    """Folds items, which say themselves what touches which row, instead of records.

    Args:
        sources: the topic-partitions that `Item.source` numbers.
    """

    def __init__(self, *told: Any, sources: Sequence[Range], **options: Any) -> None:
        super().__init__(*told, **options)
        self._sources, self._value = sources, ItemReader(self.view).value

    def _take(self, records: Sequence[Item]) -> list[Place]:
        for item in records:
            source = self._sources[item.source]
            if not _folded(self.marks, source, item):
                self._fold.give((item.bucket, item.key), item.key, self._value(item.body), _stub(source, item))
        return self._fold.missing()


def _folded(marks: Mapping[int, Any], source: Range, item: Item) -> bool:
    at: int = marks[item.bucket].position.next_offset(source.topic, source.partition)
    return item.offset < at


def _stub(source: Range, item: Item) -> Decoded:
    """What a fold's trouble is told of: where the event stands, and its time."""
    return Decoded(source.topic, source.partition, item.offset, item.key, None, None, 0, True, item.time)
