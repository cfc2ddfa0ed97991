"""The second half of a rebuild that must sort: items in order into finished rows, one key in memory at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from leftfold.engine.bulk_evolve import Unstorable, check_storable, evolver
from leftfold.engine.bulk_items import Item, ItemReader
from leftfold.engine.bulk_log import Range
from leftfold.engine.bulk_result import BucketResult
from leftfold.engine.bulk_store import BulkRow
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
        self._evolve, self._evolve_storably = evolver(view), evolver(view, careful=True)
        self._read = ItemReader(view).read
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
        """The row of a key; a run of its items is folded again, with a look at each row, when it ends unstorably."""
        row = None
        while run := list(islice(items, _RUN)):
            try:
                row = self._run(key, row, run, careful=False)
            except Unstorable:
                row = self._run(key, row, run, careful=True)
        return row

    def _run(self, key: str, row: Any, run: Sequence[Item], *, careful: bool) -> Any:
        evolve = self._evolve_storably if careful else self._evolve
        time, parked = self._time, self.parked.get(key)
        for item in run:
            if parked is not None:
                parked = replace(parked, waiting=parked.waiting + 1)
                continue
            try:
                row = evolve(row, self._read(item.body))
            except Exception as error:  # noqa: BLE001  # a fold that fails parks its row, whatever it raises
                source = self._sources[item.source]
                parked = Parked(source.topic, source.partition, item.offset, f"{type(error).__name__}: {error}")
                continue
            time = max(time, item.time)
        if not careful and row is not None:
            self._check(key, row)
        self._time = time
        if parked is not None:
            self.parked[key] = parked
        return row

    def _check(self, key: str, row: Any) -> None:
        try:
            check_storable(self._view, row)
        except Exception as error:
            raise Unstorable(f"{key}: {error!r}") from error
