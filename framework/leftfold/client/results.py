"""The results of reads: rows with their positions, changes of rows, descriptions of generations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from leftfold.errors import ViewNotBuilt
from leftfold.model.position import Position
from leftfold.model.row_codec import CHECKSUM_MODULUS
from leftfold.model.view import View
from leftfold.ports.flush import Checkpoint, Generation, Parked, covered
from leftfold.ports.protocols import ViewStore

__all__ = ["Change", "Description", "Entry", "describe", "described"]


@dataclass(frozen=True)
class Description:
    """A description of a view: `position` of every bucket, `checksum` over all rows, `parked` by row key.

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
    """The description of a generation.

    Raises:
        ViewNotBuilt: its checkpoints are missing.
    """
    return described(view, generation, store.checkpoints(generation))


def described(view: View[Any, Any], generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> Description:
    """The description of a generation from its checkpoints.

    Raises:
        ViewNotBuilt: some are missing.
    """
    if len(checkpoints) < generation.buckets:
        raise ViewNotBuilt(f"generation {generation.id} of {view.name} is not whole; leftfold rebuild {view.name}")
    return Description(
        view=view.name,
        generation=generation.id,
        hash=generation.hash,
        phase=generation.phase.value,
        buckets=generation.buckets,
        rows=sum(m.rows for m in checkpoints.values()),
        checksum=f"{sum(m.checksum for m in checkpoints.values()) % CHECKSUM_MODULUS:032x}",
        position=covered(generation, checkpoints),
        parked={key: p for m in checkpoints.values() for key, p in m.parked.items()},
        time=max(m.time for m in checkpoints.values()),
        approximate=view.approximate,
    )


Row = TypeVar("Row")
K = TypeVar("K", default=str)


@dataclass(frozen=True)
class Change(Generic[Row, K]):
    """A change of a row: the newest row, None when it was deleted.

    Args:
        version: the stream's version that the row shows; None when the view is not stream-keyed, or the row deleted.
        position: where to continue the watch without missing a change; only the last change of a round has the new
            position, so after a stop some of them come again.
    """

    key: K
    row: Row | None
    version: int | None
    position: Position


@dataclass(frozen=True)
class Entry(Generic[Row]):
    """A row with its state in the log.

    That is its stream's version (None when not stream-keyed), its bucket's position, why it is parked, if it is, and
    the id of the generation that holds it.
    """

    row: Row | None
    version: int | None
    position: Position
    parked: Parked | None
    generation: str
