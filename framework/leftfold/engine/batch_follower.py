"""Folds one micro-batch into some buckets whose marks and rows came together, in one round trip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from leftfold.engine.bulk_items import Item, ItemReader
from leftfold.engine.bulk_log import Range
from leftfold.engine.decoded import Decoded
from leftfold.engine.follower import Follower, Kept
from leftfold.engine.touches import Place, Touches
from leftfold.flush import BucketFlush, Generation, Snapshot
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
        self._given, self._token = read, token
        super().__init__(view, generation, store, most=len(places), max_parked=max_parked)
        for place, fields in zip(places, read.rows, strict=True):
            self._kept[place] = Kept(None) if fields is None else self._read(place[1], fields)

    def reread(self) -> None:
        """Takes the marks that it was given."""
        self.marks = dict(self._given.marks)

    def _of_bucket(self, *told: Any) -> tuple[BucketFlush, dict[Place, Kept]]:
        flush, kept = super()._of_bucket(*told)
        return replace(flush, mark=replace(flush.mark, token=self._token)), kept


class ItemFollower(BatchFollower):
    """Folds items, which say themselves what touches which row, instead of records.

    Args:
        sources: the topic-partitions that `Item.source` numbers.
    """

    def __init__(self, *told: Any, sources: Sequence[Range], **options: Any) -> None:
        super().__init__(*told, **options)
        self._sources, self._value = sources, ItemReader(self.view).read

    def _touched(self, records: Sequence[Any]) -> Touches:
        touched: Touches = {}
        items: Sequence[Item] = records
        for item in items:
            source = self._sources[item.source]
            if not _folded(self.marks, source, item):
                pair = self._value(item.body), _stub(source, item)
                touched.setdefault((item.bucket, item.key), []).append(pair)
        return touched


def _folded(marks: Mapping[int, Any], source: Range, item: Item) -> bool:
    at: int = marks[item.bucket].position.next_offset(source.topic, source.partition)
    return item.offset < at


def _stub(source: Range, item: Item) -> Decoded:
    """What a fold's trouble is told of: where the event stands, and its time."""
    return Decoded(source.topic, source.partition, item.offset, item.key, None, None, 0, True, item.time)
