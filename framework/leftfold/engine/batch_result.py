"""What the task of a micro-batch tells the driver about a bucket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from leftfold.flush import Mark, Parked, Phase
from leftfold.position import Position

__all__ = ["BatchResult"]


@dataclass(frozen=True)
class BatchResult:
    """How a bucket stands behind a batch.

    Args:
        mark: what is in the store now; None = nothing touched the bucket, and it is as it was.
        whole: where decisions end, for the partitions where that is not where the batch ends.
        trouble: why the query must begin again at the marks. stopped: why the view cannot go on at all.
    """

    bucket: int
    mark: Mark | None = None
    whole: Position = field(default_factory=Position)
    trouble: str = ""
    stopped: str = ""

    def to_json(self) -> str:
        """One line of JSON."""
        mark = None if self.mark is None else asdict(replace(self.mark, position=Position()))
        if mark is not None and self.mark is not None:
            mark |= {"position": self.mark.position.to_json()}
        told = {"bucket": self.bucket, "mark": mark, "whole": self.whole.to_json()}
        return json.dumps(told | {"trouble": self.trouble, "stopped": self.stopped})

    @classmethod
    def from_json(cls, text: str) -> BatchResult:
        """Reads what `to_json` wrote."""
        told = json.loads(text)
        mark, whole = told.pop("mark"), Position.from_json(told.pop("whole"))
        return cls(**told, mark=None if mark is None else _mark(mark), whole=whole)


def _mark(told: Mapping[str, object]) -> Mark:
    fields = dict(told)
    parked: Mapping[str, Mapping[str, object]] = fields.pop("parked")  # type: ignore[assignment]  # as written above
    return Mark(
        position=Position.from_json(str(fields.pop("position"))),
        phase=Phase(str(fields.pop("phase"))),
        parked={key: Parked(**why) for key, why in parked.items()},  # type: ignore[arg-type]  # the same
        **fields,  # type: ignore[arg-type]  # the same
    )
