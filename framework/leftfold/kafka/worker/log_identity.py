"""Checks that topics are the ones a state partition was built from; and the progress of a restore."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leftfold.engine.processing.stream_state import ChangelogCheckpoint
from leftfold.engine.processing.worker_tasks import Refolding, TaskSpec
from leftfold.errors import ConfigurationError
from leftfold.kafka.worker.poison_pills import OffsetMetadata, read_metadata
from leftfold.model import keys as names
from leftfold.ports.outgoing import Write
from leftfold.ports.protocols import RawRecord

__all__ = ["KnownLogs", "Restored", "Stopped", "cut_commands"]


@dataclass(frozen=True)
class KnownLogs:
    """The topics as recorded in the changelog checkpoint of one state partition.

    Offsets are valid in one topic only: in a copied, restored or shorter one they name other records. A state used with
    a log that it was not built from would write versions twice.

    Args:
        ids: the current topic ids by name.
    """

    task: TaskSpec
    partition: int
    checkpoint: ChangelogCheckpoint
    ids: Mapping[str, str]

    def check_same(self, end: int) -> None:
        """Checks that the topics behind the state are the same ones; `end` is the end offset of the log.

        Raises:
            ConfigurationError: one is a different topic of the same name.
        """
        name, checkpoint = self.task.name, self.checkpoint
        offsets = (checkpoint.events, checkpoint.commands) if self.task.is_process else (checkpoint.events,)
        for topic in self.task.rests:
            if self.checkpoint.is_of(topic, self.ids):
                continue
            known, now = self.checkpoint.topics[topic], self.ids[topic]
            if topic != self.task.log:
                raise ConfigurationError(
                    f"process {name} has taken events of a topic {topic} with id {known}, and the one that is there "
                    f"has id {now}: its events would count as those that were taken. Bring the former topic back, or "
                    f"give the process another name, so that it begins with this one"
                )
            raise ConfigurationError(
                f"the states of {name}[{self.partition}] were made from a topic {topic} with id {known}, which they "
                f"know up to offset {max(offsets)}; the one that is there has id {now} and ends at {end}. It is "
                f"another log; to fold the states from it: leftfold state rebuild {name}"
            )

    def check_events(self, end: int) -> None:
        """Checks that the log still holds all events that the state was built from.

        Raises:
            ConfigurationError: it ends before.
        """
        if self.checkpoint.events > end:
            raise ConfigurationError(
                f"{self.task.log}[{self.partition}] ends at {end}, but the states of {self.task.name} know it up to "
                f"offset {self.checkpoint.events}: it was cut, copied or restored, and deciding would write versions "
                f"twice. To fold the states from what is there: leftfold state rebuild {self.task.name}"
            )


def cut_commands(name: str, partition: int, start: int, end: int) -> ConfigurationError:
    """The error for a command topic that ends before the next command to decide."""
    return ConfigurationError(
        f"{names.commands(name)}[{partition}] ends at {end}, but commands up to offset {start} were taken: it was cut, "
        f"copied or restored. To skip what is there: leftfold state rebuild {name} --commands end; to take all "
        f"of it: --commands start"
    )


@dataclass
class Restored:
    """A partition that is being restored.

    `noted` are topics with offsets and id, whose records may be lost with a transaction that a broker forgot; `lost`
    are those that are lost.
    """

    partition: int
    refold: Refolding
    committed: int = 0
    left: OffsetMetadata = field(default_factory=lambda: read_metadata(None))
    checkpoint: ChangelogCheckpoint | None = None
    overwritten: set[str] = field(default_factory=set)
    state_start: int = 0
    state_end: int = 0
    events_end: int = 0
    span: tuple[int, int] = (0, 0)
    commands: tuple[int, int] = (0, 0)
    noted: list[tuple[str, tuple[int, int, str]]] = field(default_factory=list)
    lost: list[Write] = field(default_factory=list)

    @property
    def known(self) -> ChangelogCheckpoint:
        """The changelog checkpoint, or an empty one."""
        return self.checkpoint or ChangelogCheckpoint()

    @property
    def start(self) -> int:
        """The offset of the first command to decide."""
        return max(self.committed, self.known.commands)


@dataclass(frozen=True)
class Stopped:
    """A partition whose restore stopped at a record that cannot be folded.

    `is_noted`: a recent dead letter names it already. `seconds`: how long the restore took until then.
    """

    record: RawRecord
    why: str
    is_noted: bool
    seconds: float
