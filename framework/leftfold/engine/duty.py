"""What a worker does: it decides the commands of a category, or reacts to the inputs of a process."""

from __future__ import annotations

from typing import Any, Protocol

from leftfold import names
from leftfold.app import App
from leftfold.decider import Decider
from leftfold.engine.batch_lane import BatchLane, Clock, Partitions
from leftfold.engine.lane import End, Lane
from leftfold.engine.process_lane import ProcessLane
from leftfold.engine.process_refold import ProcessRefold
from leftfold.engine.refold import Refold
from leftfold.engine.statemark import StateMark
from leftfold.partitioner import partition_of
from leftfold.ports import RawRecord, StateStore
from leftfold.process import Process

__all__ = ["Deciding", "Duty", "Reacting", "Refolding", "duty_of"]


class Refolding(Protocol):
    """Brings the records of one partition up to a log; `changed` are those that the state topic lacks, by key.

    `refused` is how many records of the log this code could not take, though they were taken once. `noted` are the
    offsets of those at which workers stand still, each with that of its letter; `passed` those that need not be folded.
    """

    store: StateStore
    changed: dict[str, Any]
    refused: int
    noted: dict[int, int]
    passed: set[int]

    def add(self, record: RawRecord) -> None:
        """Folds one record of the log."""

    def adopt(self, key: str, record: bytes) -> None:
        """Takes over what another version's record says of answers."""

    def pass_over(self, letter: RawRecord) -> None:
        """A dead letter: the record of the log that it is about was not taken, or need not be."""

    def take(self, most: int) -> list[tuple[str, bytes]]:
        """Up to `most` changed records for the state topic."""


class Duty(Protocol):
    """What a worker works at: `log` is the topic its state can be folded from, `writes` what else it writes of its own.

    `time` is the topic that says what time it is, '' where nobody needs to know; `refusals` the one that says which
    records of the log were not taken, or need not be, and `foretells` whether that must be known before any is folded;
    `adopts` says whether records of another version tell what
    one's own log does not; `rests` are the topics whose offsets the state remembers beside its own.
    """

    name: str
    version: int
    log: str
    writes: tuple[str, ...]
    time: str
    refusals: str
    foretells: bool
    adopts: bool
    rests: tuple[str, ...]

    def lane(self, app: App, partitions: Partitions, end: End, max_bytes: int, clock: Clock) -> BatchLane[Any]:
        """The lane that does it."""

    def refold(self, store: StateStore) -> Refolding:
        """What makes up for records that the state topic lacks."""

    def span(self, mark: StateMark, start: int, end: int) -> tuple[int, int]:
        """Which records of the log the state lacks, given its mark, the next record to take and the log's end."""

    def partly(self, begin: int, start: int) -> tuple[int, int]:
        """The `commands` and `events` of a mark while only some of what was folded from `begin` on is written."""


class Deciding:
    """Commands of a category; its state can be folded from the events."""

    def __init__(self, decider: Decider[Any, Any, Any]) -> None:
        self.decider, self.name, self.version = decider, decider.name, decider.version
        self.log, self.time, self.refusals, self.adopts = names.events(self.name), "", names.dead(self.name), True
        self.foretells = False
        self.writes: tuple[str, ...] = (self.log, names.dead(self.name))
        self.rests: tuple[str, ...] = (self.log,)

    def lane(self, app: App, partitions: Partitions, end: End, max_bytes: int, clock: Clock) -> BatchLane[Any]:
        """The lane that decides."""
        return Lane(
            app.name,
            self.decider,
            partition_of=lambda key: partition_of(key, app.partitions),
            partitions=partitions,
            max_bytes=max_bytes,
            clock=clock,
            senders=app.senders_to(self.name),
            end=end,
        )

    def refold(self, store: StateStore) -> Refolding:
        """Folds events."""
        return Refold(self.decider, store)

    def span(self, mark: StateMark, start: int, end: int) -> tuple[int, int]:
        """Events that the last batch before may have written, up to the end."""
        return mark.events, end

    def partly(self, begin: int, start: int) -> tuple[int, int]:
        """The events before are known; no command is taken before all are."""
        return start, begin


class Reacting:
    """Inputs of a process; its state can be folded from them, which sends nothing."""

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        self.process, self.name, self.version = process, process.name, process.version
        self.log, self.time, self.adopts = names.commands(self.name), names.time(self.name), False
        self.refusals, self.foretells = names.dead(self.name), True
        self.writes: tuple[str, ...] = (self.refusals,)
        self.rests: tuple[str, ...] = (self.log, *map(names.events, process.categories))

    def lane(self, app: App, partitions: Partitions, end: End, max_bytes: int, clock: Clock) -> BatchLane[Any]:
        """The lane that reacts."""
        return ProcessLane(
            app.name,
            self.process,
            partition_of=lambda key: partition_of(key, app.partitions),
            partitions=partitions,
            max_bytes=max_bytes,
            lateness=app.lateness,
        )

    def refold(self, store: StateStore) -> Refolding:
        """Takes inputs again."""
        return ProcessRefold(self.process, store)

    def span(self, mark: StateMark, start: int, end: int) -> tuple[int, int]:
        """Inputs that were taken before, but not with this version's state."""
        return mark.commands, start

    def partly(self, begin: int, start: int) -> tuple[int, int]:
        """Whoever comes next takes all these inputs again."""
        return begin, 0


def duty_of(app: App, name: str) -> Duty:
    """What a worker of this name does.

    Raises:
        ConfigurationError: the App has no decider and no process of that name.
    """
    for process in app.processes:
        if process.name == name:
            return Reacting(process)
    return Deciding(app.decider(name))
