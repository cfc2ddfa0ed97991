"""One bucket in memory: rows, index entries, the mark and the stream of changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from leftfold.engine.bulk_result import BucketResult
from leftfold.flush import BucketFlush, Generation, Mark, Phase
from leftfold.questions import Changed, Range
from leftfold.rows import Fields

__all__ = ["Bucket"]


class Bucket:
    """What a store holds of a bucket.

    Args:
        history: how many entries its change stream keeps.
    """

    def __init__(self, mark: Mark, history: int) -> None:
        self.mark = mark
        self.rows: dict[str, dict[bytes, bytes]] = {}
        self.changes: deque[Changed] = deque(maxlen=history)
        self.indexed: dict[str, Mapping[str, str]] = {}
        self.finished: BucketResult | None = None
        self._last = 0
        self._tell(())

    def counts_in(self, generation: Generation) -> bool:
        """Whether the bucket is sealed, if its generation is."""
        return self.mark.phase is not Phase.BULK or generation.phase is Phase.BULK

    def flush(self, flush: BucketFlush) -> None:
        """Applies a flush whose token was checked."""
        self.mark = flush.mark
        for change in flush.changes:
            if change.fields is None or change.after is None:
                self.rows.pop(change.key, None)
                self.indexed.pop(change.key, None)
            else:
                entries = dict(zip(flush.indexes, change.after, strict=True))
                self.put(change.key, flush.columns, change.fields, change.version, entries)
        if flush.changes:
            self._tell(tuple(change.key for change in flush.changes))

    def put(self, key: str, columns: Fields, fields: Fields, version: int | None, entries: Mapping[str, str]) -> None:
        """Writes a row and its index entries."""
        row = dict(zip(columns, fields, strict=True))
        if version is not None:
            row[b"@version"] = b"%d" % version
        self.rows[key], self.indexed[key] = row, entries

    def seal(self, mark: Mark) -> None:
        """Ends a bulk load: the stream of changes begins at the mark."""
        self.mark, self.finished = mark, None
        self.changes.clear()
        self._tell(())

    def within(self, range_: Range) -> list[tuple[str, str]]:
        """(ordered value, key) of the rows in a range, in order."""
        told = ((entries.get(range_.index), key) for key, entries in self.indexed.items())
        return sorted((value, key) for value, key in told if value is not None and _is_within(range_, value))

    def _tell(self, keys: tuple[str, ...]) -> None:
        self._last += 1
        self.changes.append(Changed(str(self._last), self.mark.position, keys))


def _is_within(range_: Range, value: str) -> bool:
    low, high = range_.low, range_.high
    if low is None and not value.startswith("="):
        return False
    above = low is None or value > low or (value == low and not range_.above_low)
    below = high is None or value < high or (value == high and not range_.below_high)
    return above and below
