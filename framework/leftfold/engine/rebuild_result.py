"""What came of a rebuild."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from leftfold.flush import Parked
from leftfold.printable import printable

__all__ = ["Agreement", "RebuildResult"]

_SHOWN = 5


class Agreement(StrEnum):
    """Whether the new generation holds what its predecessor holds."""

    EQUAL = "equal"
    DIFFERENT = "different"
    WORSE = "parks keys that its predecessor does not"
    ALONE = "no predecessor"
    UNKNOWN = "not compared"


@dataclass(frozen=True)
class RebuildResult:
    """A finished rebuild; `swapped` False means that readers still see the predecessor, and `held` that this is wanted.

    Args:
        events: how many were read. rows: how many the generation holds.
        checksum, old_checksum: of both generations at equal positions; 0 where there is nothing to compare.
        why: the reason when they were not compared, '' else.
        seconds: by phase.
        parked: by encoded row key.
        kept: the predecessor's id while it is still there; '' = none.
    """

    view: str
    generation: str
    predecessor: str
    events: int
    rows: int
    checksum: int
    old_checksum: int
    agreement: Agreement
    why: str
    swapped: bool
    seconds: Mapping[str, float]
    parked: Mapping[str, Parked]
    kept: str = ""
    held: bool = False

    @property
    def exit_code(self) -> int:
        """0, or 3 when the new generation differs or is worse, and no swap was made though one was wanted."""
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
        lines += [
            f"  parked {key} at {p.topic}[{p.partition}]@{p.offset}: {printable(p.error)}" for key, p in parked[:_SHOWN]
        ]
        if len(parked) > _SHOWN:
            lines.append(f"  ... and {len(parked) - _SHOWN:,} more parked keys")
        if self.held:
            lines.append(
                f"  held: tails keep it up to date and readers still see {self.predecessor or 'nothing'}. "
                f"Compare: leftfold diff {self.view} --live --held; then: leftfold promote {self.view}"
            )
        elif self.agreement is Agreement.WORSE and not self.swapped:
            lines.append(
                f"  not swapped: readers still see {self.predecessor}. Mend the fold or the event class and rebuild; "
                f"or go live as it is: leftfold rebuild {self.view} --anyway"
            )
        elif not self.swapped:
            lines.append(
                f"  not swapped: the predecessor's checksum is {self.old_checksum:032x}. One of the two was folded by "
                f"other code of the same version; go live with the new one: leftfold rebuild {self.view} --anyway"
            )
        if self.kept:
            lines.append(
                f"  the replaced rows ({self.kept}) are kept until --keep is over; back to them: "
                f"leftfold rollback {self.view}"
            )
        return "\n".join(lines)
