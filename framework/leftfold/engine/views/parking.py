"""Parking: which event makes a row unfoldable or unstorable; the row is set aside there, and other rows continue.

A projector folds fast and parks rows in live_fold; it folds step by step only when a row could not be stored.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from leftfold.engine.views.decoding import Decoded
from leftfold.model.view import View
from leftfold.ports.flush import Parked
from leftfold.safety import shown

__all__ = ["RowEncodingError", "StepwiseFold", "check_storable", "parked_at"]


class RowEncodingError(Exception):
    """Some rows cannot be encoded for the store.

    Folding them again step by step finds the events that made them so.

    Args:
        rows: their addresses in the fold.
    """

    def __init__(self, rows: Collection[Any], why: Exception) -> None:
        super().__init__(repr(why))
        self.rows = frozenset(rows)


def check_storable(view: View[Any, Any], row: Any) -> None:
    """Encodes the row; raises what the encoding raises."""
    view.rows.encode(row)
    view.rows.index_entries(row)


_LONGEST_ERROR = 500
"""The characters of an error that a checkpoint keeps: every flush writes them, and reads that wait fetch them."""


def parked_at(record: Decoded, error: Exception) -> Parked:
    """A row key that is parked at a record, which it cannot fold."""
    text = f"{type(error).__name__}: {shown(error, str)}"
    return Parked(record.topic, record.partition, record.offset, text[:_LONGEST_ERROR])


class StepwiseFold:
    """Folds one row event by event; only the final row must be storable, so an unstorable step parks nothing.

    `row` is what was folded so far and `good` the last of it that can be stored, behind the event `good_at` (None = the
    initial row). `parked` is the first event behind `good`, why the row cannot be stored since (or was not folded any
    further, if the fold itself failed), and how many events came; None = the row can be stored as it is. `time` is the
    latest event time in `good`.
    """

    def __init__(self, view: View[Any, Any], row: Any = None) -> None:
        self._view, self._evolve = view, view.evolve
        self.row = self.good = row
        self.good_at: Decoded | None = None
        self.parked: Parked | None = None
        self.time = self._latest = ""
        self._failed = False

    @property
    def version(self) -> int | None:
        """The stream's version in `good` where the view is stream-keyed, None otherwise."""
        return self.good_at.version if self.good_at is not None and self._view.stream_keyed else None

    def fold(self, item: Any, at: Decoded) -> None:
        """Folds one more event; `item` is an exception if it cannot be read."""
        if self._failed and self.parked is not None:
            self.parked = self.parked.with_another_event()
            return
        try:
            if isinstance(item, Exception):
                raise item
            row = self._evolve(self.row, item)
        except Exception as error:  # noqa: BLE001  # a fold that fails parks its row, whatever it raises
            self._failed = True
            self._failed_at(error, at)
            return
        self.row, self._latest = row, max(self._latest, at.time)
        try:
            if row is not None:
                check_storable(self._view, row)
        except Exception as error:  # noqa: BLE001  # so does one whose final row cannot be stored
            self._failed_at(error, at)
        else:
            self.good, self.good_at, self.time, self.parked = row, at, self._latest, None

    def _failed_at(self, error: Exception, at: Decoded) -> None:
        self.parked = parked_at(at, error) if self.parked is None else self.parked.with_another_event()
