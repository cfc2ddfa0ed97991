"""One row folded step by step, parked where its fold fails or where it cannot be stored any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leftfold.engine.bulk_log import BulkLog
from leftfold.engine.history import History, Touch
from leftfold.engine.tracked import Tracked
from leftfold.flush import Generation
from leftfold.position import Position
from leftfold.view import View

__all__ = ["Refolded", "RowsFold", "Step"]


@dataclass(frozen=True)
class Step:
    """What one event did to a row; `error` says why it could not be folded in, or what it waits for.

    After an event that leaves a row which cannot be stored another one may make up for both.
    """

    touch: Touch
    before: Any
    after: Any
    error: str = ""


class Refolded:
    """A row as it is folded: the last one that can be stored."""

    def __init__(self, view: View[Any, Any]) -> None:
        self._tracked: Tracked[Touch] = Tracked(view)
        self._stream_keyed = view.stream_keyed

    @property
    def row(self) -> Any:
        """The row, None where there is none."""
        return self._tracked.good

    @property
    def version(self) -> int | None:
        """Its stream's version where the view is stream-keyed, None else."""
        at = self._tracked.good_at
        return at.decoded.version if at is not None and self._stream_keyed else None

    @property
    def parked(self) -> Touch | None:
        """The event that parks it here, if any does."""
        return self._tracked.trouble_at

    @property
    def error(self) -> str:
        """Why that parks it."""
        return self._tracked.error

    def step(self, touch: Touch) -> Step:
        """Folds one more event in, unless the fold has failed."""
        before = self.row
        self._tracked.fold(touch.item, touch)
        if self.parked is None:
            return Step(touch, before, self.row)
        first = self.parked is touch
        return Step(touch, before, before, self.error if first else "waits behind the event that cannot be folded")


class RowsFold:
    """Some rows folded from the whole log up to a place, and on from there.

    Args:
        wanted: for each encoded key where it is folded to.
    """

    def __init__(
        self, view: View[Any, Any], generation: Generation, log: BulkLog, wanted: Mapping[str, Position]
    ) -> None:
        self._view, self._generation, self._log = view, generation, log
        self.rows = {key: Refolded(view) for key in wanted}
        self._reached: Mapping[str, Position] = dict.fromkeys(wanted, Position())
        self._fold(wanted)

    def go_on(self, position: Position) -> None:
        """Folds every row on to a position, or anew where the store went back behind what is folded."""
        if not all(position.covers(reached) for reached in self._reached.values()):
            self.rows = {key: Refolded(self._view) for key in self.rows}
            self._reached = dict.fromkeys(self.rows, Position())
        self._fold(dict.fromkeys(self.rows, position))

    def _fold(self, wanted: Mapping[str, Position]) -> None:
        history = History(self._view, self._generation, wanted, since=self._reached)
        for part in history.ranges:
            for touch in history.of(self._log, part):
                self.rows[touch.key].step(touch)
        self._reached = wanted
