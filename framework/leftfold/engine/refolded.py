"""One row folded step by step, parked where its fold fails, as every engine does it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leftfold.engine.bulk_evolve import evolver
from leftfold.engine.bulk_log import BulkLog
from leftfold.engine.history import History, Touch
from leftfold.flush import Generation
from leftfold.position import Position
from leftfold.view import View

__all__ = ["Refolded", "RowsFold", "Step"]


@dataclass(frozen=True)
class Step:
    """What one event did to a row; `error` says why it could not be folded in, and nothing after it was."""

    touch: Touch
    before: Any
    after: Any
    error: str = ""


class Refolded:
    """A row as it is folded; `version` is its stream's where the view is stream-keyed, None else."""

    def __init__(self, view: View[Any, Any]) -> None:
        self._evolve, self._stream_keyed = evolver(view, careful=True), view.stream_keyed
        self.row: Any = None
        self.version: int | None = None
        self.parked: Touch | None = None
        self.error = ""

    def step(self, touch: Touch) -> Step:
        """Folds one more event in, unless the row is parked."""
        before = self.row
        if self.parked is not None:
            return Step(touch, before, before, "waits behind the event that cannot be folded")
        try:
            if isinstance(touch.item, Exception):
                raise touch.item
            self.row = self._evolve(before, touch.item)
        except Exception as error:  # noqa: BLE001  # a fold that fails parks its row, whatever it raises
            self.parked, self.error = touch, f"{type(error).__name__}: {error}"
            return Step(touch, before, before, self.error)
        self.version = touch.decoded.version if self._stream_keyed else None
        return Step(touch, before, self.row)


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
