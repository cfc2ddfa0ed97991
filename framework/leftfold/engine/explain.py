"""How a row came about: its events in the order of their time, with the row before and after each."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from leftfold.engine.bulk_log import OpenBulkLog, Range
from leftfold.engine.history import History, Touch
from leftfold.engine.refolded import Refolded, Step
from leftfold.flush import Generation
from leftfold.position import Position
from leftfold.view import View

__all__ = ["explain"]


def explain(
    view: View[Any, Any],
    generation: Generation,
    key: str,
    upto: Position,
    open_log: OpenBulkLog,
    *,
    tell: Callable[[int], None] = lambda count: None,
) -> Iterator[Step]:
    """What made a row, event by event, up to a place of the log.

    Events of one partition stay in their order; those of several are merged by their time, which makes no difference
    to the row in the end.

    Args:
        key: encoded.

    Raises:
        ContractError: an event cannot be read or assigned to rows; the view stops there.
    """
    history, row = History(view, generation, {key: upto}, tell), Refolded(view)
    found = [_timed(history, part, open_log) for part in history.ranges]
    for _, touch in heapq.merge(*found, key=lambda pair: pair[0]):
        yield row.step(touch)


def _timed(history: History, part: Range, open_log: OpenBulkLog) -> Iterator[tuple[str, Touch]]:
    """The touches of a partition, each with the latest time so far: that of a later one may be earlier."""
    latest = ""
    with closing(open_log()) as log:
        touches = list(history.of(log, part))
    for touch in touches:
        latest = max(latest, touch.decoded.time)
        yield latest, touch
