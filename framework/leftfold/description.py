"""What a generation of a view says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leftfold.errors import ViewNotBuilt
from leftfold.flush import Generation, Mark, Parked, covered
from leftfold.ports import ViewStore
from leftfold.position import Position
from leftfold.rows import CHECKSUM_MODULUS
from leftfold.view import View

__all__ = ["Description", "describe", "described"]


@dataclass(frozen=True)
class Description:
    """What a view says of itself: `position` every bucket has, `checksum` over all rows, `parked` by row key.

    `approximate` views leave late events out, so their rows are not compared with a fold of the whole log.
    """

    view: str
    generation: str
    hash: str
    phase: str
    buckets: int
    rows: int
    checksum: str
    position: Position
    parked: Mapping[str, Parked]
    time: str
    approximate: bool = False


def describe(view: View[Any, Any], generation: Generation, store: ViewStore) -> Description:
    """What a generation says of itself.

    Raises:
        ViewNotBuilt: its marks are gone.
    """
    return described(view, generation, store.marks(generation))


def described(view: View[Any, Any], generation: Generation, marks: Mapping[int, Mark]) -> Description:
    """What a generation's marks say of it.

    Raises:
        ViewNotBuilt: some are missing.
    """
    if len(marks) < generation.buckets:
        raise ViewNotBuilt(f"generation {generation.id} of {view.name} is not whole; leftfold rebuild {view.name}")
    return Description(
        view=view.name,
        generation=generation.id,
        hash=generation.hash,
        phase=generation.phase.value,
        buckets=generation.buckets,
        rows=sum(m.rows for m in marks.values()),
        checksum=f"{sum(m.checksum for m in marks.values()) % CHECKSUM_MODULUS:032x}",
        position=covered(generation, marks),
        parked={key: p for m in marks.values() for key, p in m.parked.items()},
        time=max(m.time for m in marks.values()),
        approximate=view.approximate,
    )
