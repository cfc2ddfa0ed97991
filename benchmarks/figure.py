"""One measured figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Figure"]


@dataclass(frozen=True)
class Figure:
    """What we do against a peer or a ceiling in the same run; without a peer, `ours` is held against the goal.

    `goal` is about the ratio where there is a peer, else about `ours`; `smaller` says that less is better.
    """

    name: str
    ours: float
    unit: str
    peer: float | None = None
    goal: float | None = None
    smaller: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours over the peer's."""
        return None if not self.peer else self.ours / self.peer

    @property
    def reached(self) -> bool | None:
        """Whether the goal is met, None without a goal."""
        value = self.ours if self.peer is None else self.ratio
        if self.goal is None or value is None:
            return None
        return value <= self.goal if self.smaller else value >= self.goal

    def to_json(self) -> dict[str, Any]:
        """The figure as benchmarks/results/latest.json keeps it."""
        fields = asdict(self)
        return (
            {k: fields[k] for k in ("name", "ours", "peer")}
            | {"ratio": self.ratio}
            | {k: fields[k] for k in ("unit", "goal", "note")}
            | {"reached": self.reached}
        )
