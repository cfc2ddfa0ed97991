"""Corrections that are taken back, each of which has a scenario of mishaps of its own that must show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leftfold.engine.processing.partition_processor import PartitionProcessor
from leftfold.engine.processing.stream_state import ChangelogCheckpoint
from leftfold.errors import Fenced
from leftfold.kafka.client.command_producer import CommandProducer
from leftfold.kafka.client.in_flight import PendingAnswers
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.worker.batching import Pace
from leftfold.kafka.worker.log_identity import KnownLogs
from leftfold.kafka.worker.replies import Replies
from leftfold.kafka.worker.state_restore import Restoration
from leftfold.kafka.worker.worker import Worker
from leftfold.redis import RedisBulkSink
from leftfold.redis.connection.errors import executed, refuse_errors, translated
from tests.simulation.scenarios.bug import Bug, Patch, decide_with, module_of
from tests.simulation.scenarios.mishaps import (
    BROKEN,
    CUT,
    HEAVY,
    LOG,
    MISPLACED,
    OUTBOX,
    REMADE,
    REUSED,
    SLOW,
    STRAY,
    UPGRADED,
)
from tests.simulation.scenarios.spending import BESIDE

__all__ = ["REVERTED"]


def _shorter_log() -> Sequence[Patch]:
    """A worker continues on a log that ends before what its states know."""
    return [(KnownLogs, name, lambda self, end: None) for name in ("check_same", "check_events")]


def _shorter_commands() -> Sequence[Patch]:
    """A worker continues on commands that end before what was taken."""
    return [(Restoration, "_check_commands", lambda self, restored: None)]


def _ids_of_topics() -> Sequence[Patch]:
    """A topic of the same name passes for the same one."""
    return [(ChangelogCheckpoint, "is_of", lambda self, topic, ids: True)]


def _lost_to_retention() -> Sequence[Patch]:
    """A worker that finds that commands are lost continues at the first one that is there, and says nothing."""
    begin, init = Restoration._pass_over_lost, GroupMember.__init__

    def silent(self: Any, restored: Any) -> None:
        report, self._report = self._report, lambda what, details: None
        begin(self, restored)
        self._report = report

    def earliest(self: Any, config: Any, *more: Any) -> None:
        init(self, {"auto.offset.reset": "earliest", **config}, *more)

    return [(Restoration, "_pass_over_lost", silent), (GroupMember, "__init__", earliest)]


def _deadline() -> Sequence[Patch]:
    """A command is decided however late it has reached its topic."""
    return decide_with(lambda stream, received: received._replace(deadline=None))


def _digest() -> Sequence[Patch]:
    """An id names a command whatever is in it."""
    return decide_with(lambda stream, received: received._replace(digest=""))


def _any_answer() -> Sequence[Patch]:
    """A client takes an answer to another command of the same id for its own."""
    resolve = PendingAnswers.resolve
    return [(PendingAnswers, "resolve", lambda self, id_, answer, digest=b"": resolve(self, id_, answer))]


def _partition_check() -> Sequence[Patch]:
    """A command is decided wherever it is written, and a stream begins again there."""
    one = PartitionProcessor._one

    def anywhere(self: Any, batch: Any, record: Any, *more: Any) -> None:
        self._partition_of = lambda key: record.partition
        one(self, batch, record, *more)

    return [(PartitionProcessor, "_one", anywhere)]


def _long_delivery() -> Sequence[Patch]:
    """A command counts for longer than what was answered is remembered."""
    init = CommandProducer.__init__
    return [
        (
            CommandProducer,
            "__init__",
            lambda self, settings, source, undelivered, *more: init(self, settings, source, undelivered, 120.0),
        )
    ]


def _leaving_answers() -> Sequence[Patch]:
    """No answer leaves a record that is too heavy."""
    return [(PartitionProcessor, "_fitted", lambda self, batch, partition, stream, room: self.streams.encode(stream))]


def _limit_by_time() -> Sequence[Patch]:
    """Whatever was fetched is decided while a transaction is open, however long that takes."""
    return [
        (Pace, "is_over", property(lambda self: False)),
        (Pace, "is_cheap", property(lambda self: True)),
        (Pace, "limit", property(lambda self: self._most)),
        (module_of(Worker), "CHUNK", 0),
    ]


def _noted_result() -> Sequence[Patch]:
    """An attempt of a rebuild's task does not look whether another one has noted its result."""

    def check(self: Any, where: str) -> str | None:
        with translated(self._settings):
            replies = self._connection.receive()
        refuse_errors(self._settings, replies, self._sent)
        landed, _, (phase, _) = replies[-3:]
        if self.may_write(phase) and executed(self._settings, landed, self._pending):
            return None
        raise Fenced(f"{where} is being changed")

    return [(RedisBulkSink, "_check", check)]


def _slow_restore() -> Sequence[Patch]:
    """A restore must be done within a minute, though it moves."""
    step = Restoration.step

    def impatient(self: Any) -> bool:
        self._moved = self._began
        return step(self)

    return [(Restoration, "step", impatient)]


def _other_version() -> Sequence[Patch]:
    """What another version answered is not taken over."""
    return [(Restoration, "_next_version", lambda self: True)]


def _replaced_sender() -> Sequence[Patch]:
    """A sender of answers that has met a fatal error is used on."""
    return [(Replies, "_replace", lambda self: None)]


def _replaced_outbox() -> Sequence[Patch]:
    """A sender of commands that has met a fatal error is used on."""
    return [(CommandProducer, "_replace", lambda self: None)]


REVERTED = {
    "shorter log": Bug(_shorter_log, LOG),
    "shorter commands": Bug(_shorter_commands, CUT),
    "ids of topics": Bug(_ids_of_topics, REMADE),
    "lost to retention": Bug(_lost_to_retention, REMADE),
    "leaving answers": Bug(_leaving_answers, HEAVY),
    "limit by time": Bug(_limit_by_time, SLOW),
    "noted result": Bug(_noted_result, BESIDE),
    "slow restore": Bug(_slow_restore, UPGRADED),
    "other version": Bug(_other_version, UPGRADED),
    "replaced sender": Bug(_replaced_sender, BROKEN),
    "replaced outbox": Bug(_replaced_outbox, OUTBOX),
    "deadline": Bug(_deadline, STRAY),
    "digest": Bug(_digest, REUSED),
    "any answer": Bug(_any_answer, REUSED),
    "partition check": Bug(_partition_check, MISPLACED),
    "long delivery": Bug(_long_delivery, STRAY),
}
