"""The second half of a rebuild that must sort: items in order into finished rows, one key in memory at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from leftfold.engine.bulk_evolve import check_storable, evolver
from leftfold.engine.bulk_items import Item, ItemReader
from leftfold.engine.bulk_log import Range
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.bulk_store import BulkRow
from leftfold.engine.tracked import Tracked
from leftfold.flush import Parked
from leftfold.rows import CHECKSUM_MODULUS
from leftfold.view import View

__all__ = ["BucketFold"]

_RUN = 1000


class BucketFold:
    """Folds the sorted items of one bucket: iterate over `rows`, then take `result`.

    Args:
        sources: the partitions that `Item.source` numbers.
        aside: keys that the checksum leaves out, as it does parked ones.
    """

    def __init__(
        self, view: View[Any, Any], bucket: int, sources: Sequence[Range], aside: Collection[str] = ()
    ) -> None:
        self._view, self._bucket, self._sources = view, bucket, sources
        self._evolve = evolver(view)
        self._reader = ItemReader(view)
        self._checksum = self._rows = 0
        self._time = ""
        self.parked: dict[str, Parked] = {}
        self._aside = aside

    def rows(self, items: Iterable[Item]) -> Iterator[BulkRow]:
        """The rows of the bucket, in the order of their keys as the items come."""
        codec = self._view.rows
        for key, group in groupby(items, attrgetter("key")):
            row = self._folded(key, group)
            if row is None:
                continue
            fields = codec.encode(row)
            self._rows += 1
            if key not in self.parked and key not in self._aside:
                self._checksum += codec.digest(key, fields)
            yield BulkRow(key, fields, None, codec.index_entries(row))

    def result(self) -> BucketResult:
        """What the bucket's mark will say."""
        return BucketResult(self._bucket, self._checksum % CHECKSUM_MODULUS, self._rows, self._time, self.parked)

    def _folded(self, key: str, items: Iterator[Item]) -> Any:
        """The row of a key; from a run of its items on that does not end well it is looked at after each one."""
        row: Any = None
        tracked: Tracked[Item] | None = None
        while run := list(islice(items, _RUN)):
            if tracked is None:
                try:
                    row = self._run(row, run)
                    continue
                except Exception:  # noqa: BLE001  # step by step it meets the same trouble, or shows where it began
                    tracked = Tracked(self._view, row)
            for item in run:
                tracked.fold(self._reader.value(item.body), item, item.time)
            self._time = max(self._time, tracked.time)
            if tracked.trouble_at is None:
                row, tracked = tracked.row, None
        if tracked is None:
            return row
        self._park(key, tracked)
        return tracked.good

    def _run(self, row: Any, run: Sequence[Item]) -> Any:
        """The row after a run, which raises if that cannot be folded or stored."""
        evolve, read, time = self._evolve, self._reader.read, self._time
        for item in run:
            row = evolve(row, read(item.body))
            time = max(time, item.time)
        if row is not None:
            check_storable(self._view, row)
        self._time = time
        return row

    def _park(self, key: str, tracked: Tracked[Item]) -> None:
        at = tracked.trouble_at
        if at is not None:
            source = self._sources[at.source]
            self.parked[key] = Parked(source.topic, source.partition, at.offset, tracked.error, tracked.waiting)
