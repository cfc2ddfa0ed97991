"""What a task tells the driver about a bucket it has written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from leftfold.flush import Mark, Parked, Phase
from leftfold.position import Position

__all__ = ["BucketResult", "Suspect"]


class Suspect(NamedTuple):
    """A row that is stored otherwise than it is folded, as it seems; or an index entry that it should not have."""

    key: str
    field: str = ""
    value: str = ""


@dataclass(frozen=True)
class BucketResult:
    """Everything of a bucket's mark but its position, which the plan knows.

    `rows` counts parked ones too, `checksum` leaves them out; `time` is the latest event time folded in. `wrong` is
    what seems to be stored otherwise, when rows were compared instead of written.
    """

    bucket: int
    checksum: int = 0
    rows: int = 0
    time: str = ""
    parked: Mapping[str, Parked] = field(default_factory=dict)
    wrong: tuple[Suspect, ...] = ()

    def mark(self, position: Position, token: str) -> Mark:
        """The sealed mark of the bucket at a position."""
        return Mark(position, self.checksum, token, Phase.SEALED, self.rows, self.parked, self.time)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BucketResult:
        """Reads what `to_json` wrote."""
        told = json.loads(text)
        parked = {key: Parked(**why) for key, why in told["parked"].items()}
        return cls(**{**told, "parked": parked, "wrong": tuple(Suspect(*one) for one in told["wrong"])})
