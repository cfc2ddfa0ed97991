"""A row that is looked at after every event, because it could not be stored where it had to be."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from leftfold.engine.bulk_evolve import check_storable, evolver
from leftfold.printable import shown
from leftfold.view import View

__all__ = ["Tracked"]

At = TypeVar("At")


class Tracked(Generic[At]):
    """A row in the making, which must be storable in the end: what is not so on the way parks nothing.

    `row` is what was folded so far and `good` the last of it that can be stored, behind the event `good_at` (None =
    that with which it began). `trouble_at` is the first event behind `good`, `error` why the row cannot be stored since
    (or was not folded any further, if the fold itself failed), and `waiting` how many events came; None, '' and 0 = the
    row can be stored as it is. `time` is the latest event time in `good`.
    """

    def __init__(self, view: View[Any, Any], row: Any = None) -> None:
        self._view, self._evolve = view, evolver(view)
        self.row = self.good = row
        self.good_at: At | None = None
        self.trouble_at: At | None = None
        self.error, self.waiting, self.time = "", 0, ""
        self._latest, self._failed = "", False

    def fold(self, item: Any, at: At, time: str = "") -> None:
        """Folds one more event in; `item` is an exception if it cannot be read."""
        if self._failed:
            self.waiting += 1
            return
        try:
            if isinstance(item, Exception):
                raise item
            row = self._evolve(self.row, item)
        except Exception as error:  # noqa: BLE001  # a fold that fails parks its row, whatever it raises
            self._failed = True
            self._met(error, at)
            return
        self.row, self._latest = row, max(self._latest, time)
        try:
            if row is not None:
                check_storable(self._view, row)
        except Exception as error:  # noqa: BLE001  # so does one whose row cannot be stored in the end
            self._met(error, at)
        else:
            self.good, self.good_at, self.time = row, at, self._latest
            self.trouble_at, self.error, self.waiting = None, "", 0

    def _met(self, error: Exception, at: At) -> None:
        if self.trouble_at is None:
            self.trouble_at, self.error = at, f"{type(error).__name__}: {shown(error, str)}"
        self.waiting += 1
