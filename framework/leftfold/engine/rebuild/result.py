"""The result of a rebuild, and the comparison of two generations at equal positions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from leftfold.engine.views.folded_rows import place_of
from leftfold.model.position import Position
from leftfold.model.row_codec import CHECKSUM_MODULUS
from leftfold.model.view import View
from leftfold.ports.flush import Checkpoint, Generation, Parked, checksum_of
from leftfold.ports.protocols import ViewStore
from leftfold.safety import printable

__all__ = ["Agreement", "Comparison", "RebuildResult"]


_SHOWN = 5


class Agreement(StrEnum):
    """Whether the new generation holds what its predecessor holds."""

    EQUAL = "equal"
    DIFFERENT = "different"
    WORSE = "parks keys that its predecessor does not"
    ALONE = "no predecessor"
    UNKNOWN = "not compared"


@dataclass(frozen=True, kw_only=True)
class RebuildResult:
    """The result of a rebuild; `swapped` False means that readers still see the predecessor.

    Args:
        events: how many were read.
        rows: how many the generation holds.
        checksum, old_checksum: of both generations at equal positions; 0 where there is nothing to compare.
        why: the reason when they were not compared, '' otherwise.
        held: the new generation waits for a promotion, as requested.
        seconds: by phase.
        parked: by encoded row key.
        kept: the predecessor's id while it is still there; '' = none.
        is_folded: projectors keep the predecessor up to date, so that a rollback can return to it.
    """

    view: str
    generation: str
    predecessor: str = ""
    events: int = 0
    rows: int
    checksum: int
    old_checksum: int
    agreement: Agreement
    why: str = ""
    swapped: bool
    seconds: Mapping[str, float] = field(default_factory=dict)
    parked: Mapping[str, Parked]
    kept: str = ""
    held: bool = False
    is_folded: bool = True

    @classmethod
    def of(cls, generation: Generation, checkpoints: Mapping[int, Checkpoint], **details: Any) -> RebuildResult:
        """The result for a generation with these checkpoints; `details` are the other fields, and may replace these."""
        fields: dict[str, Any] = {
            "rows": sum(checkpoint.rows for checkpoint in checkpoints.values()),
            "parked": {key: why for checkpoint in checkpoints.values() for key, why in checkpoint.parked.items()},
            "checksum": checksum_of(checkpoints.values()),
        }
        return cls(view=generation.view, generation=generation.id, **{**fields, **details})

    @property
    def exit_code(self) -> int:
        """0, or 3 when the new generation differs or is worse and was not swapped in."""
        return 0 if self.swapped or self.held else 3

    def __str__(self) -> str:
        fold = self.seconds.get("fold", 0.0)
        lines = [
            f"{self.view} {self.generation}: {self.events:,} events, {self.rows:,} rows, checksum {self.checksum:032x}",
            f"  folded in {fold:.1f} s ({self.events / fold if fold else 0:,.0f} events/s), "
            f"all in {sum(self.seconds.values()):.1f} s; parked keys: {len(self.parked)}",
            f"  predecessor {self.predecessor or 'none'}: {self.agreement.value}{self.why and f' ({self.why})'}",
        ]
        parked = list(self.parked.items())
        lines += [f"  parked {key} at {p.address}: {printable(p.error)}" for key, p in parked[:_SHOWN]]
        if len(parked) > _SHOWN:
            lines.append(f"  ... and {len(parked) - _SHOWN:,} more parked keys")
        if self.held:
            lines.append(
                f"  held: projectors keep it up to date and readers still see {self.predecessor or 'nothing'}. "
                f"Compare: leftfold diff {self.view} --live --held; then: leftfold promote {self.view}"
            )
        elif self.agreement is Agreement.WORSE and not self.swapped:
            lines.append(
                f"  not swapped: readers still see {self.predecessor}. Fix the fold or the event class and rebuild; "
                f"or go live as it is: leftfold rebuild {self.view} --anyway"
            )
        elif not self.swapped:
            lines.append(
                f"  not swapped: the predecessor's checksum is {self.old_checksum:032x}. One of the two was folded by "
                f"other code of the same version; go live with the new one: leftfold rebuild {self.view} --anyway"
            )
        if self.kept:
            until = f"--keep is over; back to them: leftfold rollback {self.view}"
            if not self.is_folded:
                until = f"a later rebuild; compare: leftfold diff {self.view} --live --kept"
            lines.append(f"  the replaced rows ({self.kept}) are kept until {until}")
        return "\n".join(lines)


class Comparison:
    """Compares two generations bucket by bucket, each when both of its checkpoints have equal positions.

    Generations with different numbers of buckets are compared as a whole, which needs all checkpoints at one position.
    Checksums leave out parked rows: where the new generation parks fewer, those rows are left out of its sum, too.
    """

    def __init__(self, view: View[Any, Any], old: Generation, new: Generation, store: ViewStore) -> None:
        self._view, self._new, self._store = view, new, store
        self._alike = old.buckets == new.buckets
        self._open = set(range(new.buckets)) if self._alike else {0}
        self._sums: dict[int, tuple[int, int]] = {}
        self.why, self._worse = "", False

    def look(self, old: Mapping[int, Checkpoint], new: Mapping[int, Checkpoint]) -> bool:
        """Compares the buckets that can be compared now; True when none is left."""
        tokens = {bucket: checkpoint.token for bucket, checkpoint in new.items()}
        if not self._alike:
            old, new = _whole(old), _whole(new)
        for bucket in list(self._open):
            one, other = old.get(bucket), new.get(bucket)
            if one is None or other is None or not _same(one.position, other.position):
                continue
            if one.parked.keys() != other.parked.keys():
                self.why = "other keys are parked than before"
            if not other.parked.keys() <= one.parked.keys():
                self._worse = True
            elif (freed := self._digests(one.parked.keys() - other.parked.keys(), tokens)) is None:
                continue  # they were written meanwhile
            else:
                self._sums[bucket] = one.checksum, (other.checksum - freed) % CHECKSUM_MODULUS
            self._open.discard(bucket)
        return not self._open

    def _digests(self, keys: Collection[str], tokens: Mapping[int, str]) -> int | None:
        """The sum of the digests of some rows of the new generation; None if their buckets have moved on."""
        if not keys:
            return 0
        rows, places = self._view.rows, [place_of(self._new, key) for key in keys]
        found = self._store.read(self._new, places)
        now = self._store.checkpoints(self._new)  # a row may be newer than the checkpoint that was read with it
        if any(bucket not in now or now[bucket].token != tokens[bucket] for bucket, _ in places):
            return None
        there = ((key, fields) for (_, key), fields in zip(places, found.rows, strict=True) if fields is not None)
        return sum(rows.digest(key, tuple([fields[column] for column in rows.columns])) for key, fields in there)

    @property
    def sums(self) -> tuple[int, int]:
        """The checksums of all compared buckets, old and new."""
        old, new = zip(*self._sums.values(), strict=True) if self._sums else ((), ())
        return sum(old) % CHECKSUM_MODULUS, sum(new) % CHECKSUM_MODULUS

    @property
    def agreement(self) -> Agreement:
        """The result so far."""
        if any(one != other for one, other in self._sums.values()):
            return Agreement.DIFFERENT
        if self._worse:
            return Agreement.WORSE
        return Agreement.UNKNOWN if self._open or self.why else Agreement.EQUAL


def _same(one: Position, other: Position) -> bool:
    return one.covers(other) and other.covers(one)


def _whole(checkpoints: Mapping[int, Checkpoint]) -> dict[int, Checkpoint]:
    """All checkpoints merged into one; none when their positions differ."""
    first = checkpoints.get(0)
    if first is None or not all(_same(first.position, checkpoint.position) for checkpoint in checkpoints.values()):
        return {}
    parked = {key: why for checkpoint in checkpoints.values() for key, why in checkpoint.parked.items()}
    return {0: Checkpoint(first.position, checksum_of(checkpoints.values()), parked=parked)}
