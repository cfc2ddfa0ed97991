"""A row with where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from typing_extensions import TypeVar

from leftfold.flush import Parked
from leftfold.position import Position

__all__ = ["Entry"]

Row = TypeVar("Row")


@dataclass(frozen=True)
class Entry(Generic[Row]):
    """A row with where it stands: its stream's version (None when not stream-keyed), its bucket's position, and
    why it is parked, if it is.
    """

    row: Row | None
    version: int | None
    position: Position
    parked: Parked | None
