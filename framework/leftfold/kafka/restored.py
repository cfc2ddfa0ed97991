"""What is known of a partition while it is restored, and of one that cannot be."""

from __future__ import annotations

from dataclasses import dataclass, field

from leftfold.engine.duty import Refolding
from leftfold.engine.statemark import StateMark
from leftfold.kafka.offsets import Left, read_metadata
from leftfold.ports import RawRecord

__all__ = ["Restored", "Stopped"]


@dataclass
class Restored:
    """A partition on its way to being served."""

    partition: int
    refold: Refolding
    committed: int = 0
    left: Left = field(default_factory=lambda: read_metadata(None))
    mark: StateMark | None = None
    overwritten: set[str] = field(default_factory=set)
    state_start: int = 0
    state_end: int = 0
    events_end: int = 0
    span: tuple[int, int] = (0, 0)
    commands: tuple[int, int] = (0, 0)

    @property
    def known(self) -> StateMark:
        """What `@` knows."""
        return self.mark or StateMark()

    @property
    def start(self) -> int:
        """The first command to decide."""
        return max(self.committed, self.known.commands)


@dataclass(frozen=True)
class Stopped:
    """A partition whose events cannot be folded beyond a record, whether a letter says so already, and how many
    seconds it took to find that out.
    """

    record: RawRecord
    why: str
    is_noted: bool
    seconds: float
