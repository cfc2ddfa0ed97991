"""What `watch` tells of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from typing_extensions import TypeVar

from leftfold.position import Position

__all__ = ["Change"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)


@dataclass(frozen=True)
class Change(Generic[Row, K]):
    """A row as it is after a change: its newest state, None when it is gone.

    Args:
        version: the stream's version that the row shows; None when the view is not stream-keyed, or the row is gone.
        position: where to watch on from without missing anything; it moves on with the last change of those that
            were found together, so some of them come again after a stop between them.
    """

    key: K
    row: Row | None
    version: int | None
    position: Position
