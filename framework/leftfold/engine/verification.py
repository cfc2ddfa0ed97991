"""What verifying a view tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from leftfold.engine.diff import RowDifference
from leftfold.position import Position

__all__ = ["Sample", "Verification"]


@dataclass(frozen=True)
class Verification:
    """What came of verifying a generation.

    Args:
        position: where it stood. events: how many were folded, at most.
        stored, folded: the sums of the buckets' checksums. wrong: the buckets whose checksums differ.
        parked: keys left out of both, since they are parked. newly: keys that this code parks, and why.
        deep: whether the rows themselves were compared. seeming: how many seemed to differ at first, those included
            that tails changed meanwhile. rows: the first of those that really do.
        unsettled: buckets where more seemed to differ than was looked at closely, all of it written meanwhile.
    """

    view: str
    generation: str
    position: Position
    events: int
    stored: int
    folded: int
    wrong: tuple[int, ...]
    parked: tuple[str, ...]
    newly: Mapping[str, str]
    seconds: float
    deep: bool = False
    seeming: int = 0
    rows: tuple[RowDifference, ...] = ()
    unsettled: tuple[int, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether every bucket holds what the log says, as far as it was compared."""
        return not (self.wrong or self.rows or self.unsettled)

    @property
    def exit_code(self) -> int:
        """3 when something differs, 4 when tails wrote more meanwhile than could be looked at."""
        return 3 if self.wrong or self.rows else 4 if self.unsettled else 0


@dataclass(frozen=True)
class Sample:
    """What folding a share of the rows with this code would change.

    Args:
        rows: how many were folded. differing: how many seemed to differ, those included that tails changed meanwhile.
        differences: those among the first of them that really do. newly: keys that this code parks, and why.
    """

    view: str
    generation: str
    share: float
    rows: int
    differing: int
    differences: tuple[RowDifference, ...]
    newly: Mapping[str, str]
    seconds: float
