"""Restores state partitions completely before the worker serves them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from confluent_kafka import KafkaException, TopicPartition

from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint, state_key
from leftfold.engine.processing.worker_tasks import task_for
from leftfold.errors import ContractError, InfrastructureError
from leftfold.kafka.worker.aborted_records import lost_records, read_settling
from leftfold.kafka.worker.clients import TRANSACTION_SECONDS, RestorePorts
from leftfold.kafka.worker.hanging_transactions import last_mark
from leftfold.kafka.worker.log_identity import KnownLogs, Restored, Stopped, cut_commands
from leftfold.kafka.worker.poison_pills import read_metadata
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.position import Position
from leftfold.ports.protocols import LogReader, RawRecord, Report

__all__ = ["Restoration"]


READ = 200
ALONE_SECONDS, TELL_SECONDS = 25.0, 5.0
_STALLED_SECONDS = 60.0
"""Seconds without any progress after which a restore fails; with progress it may take any time."""
_SHOWN = 5
_RECENT = 1000
"""How many later dead letters a note may have before it is written again; readers of notes look that many back."""


class Restoration:
    """Restores partitions of one category in small steps, so that the worker can serve its others meanwhile.

    An event that cannot be folded stops its own partition only, see `stopped`.

    Args:
        report: called every few seconds with the progress.
    """

    def __init__(
        self,
        app: App,
        category: str,
        partitions: list[int],
        ports: RestorePorts,
        *,
        report: Report = lambda what, details: None,
    ) -> None:
        self._app, self._ports = app, ports
        self._task = task_for(app, category)
        self._commands, self._log_of = names.commands(category), self._task.log
        self._state = names.state(category, self._task.version)
        self.found = {p: Restored(p, self._task.refold({})) for p in partitions}
        self._began, self._waited = time.monotonic(), 0.0
        self._moved = self._reported = self._stalled_since = self._began
        self._report = report
        self._log: LogReader | None = None
        self._ids: Mapping[str, str] = {}
        self._versions: list[str] = []
        self._version = ""
        self._version_ends: dict[int, int] = {}
        self._theirs: dict[int, ChangelogCheckpoint] = {}
        self._letters: dict[str, dict[int, tuple[int, int]]] | None = None
        self.stopped: dict[int, Stopped] = {}
        self._phase: Callable[[], bool] = self._committed

    def drop(self, partition: int) -> None:
        """Drops a partition that is no longer assigned."""
        self.found.pop(partition, None)

    def step(self) -> bool:
        """Does one step of the restore; True once every partition is complete.

        Raises:
            InfrastructureError: no progress for a minute, or events are missing.
        """
        if not self.found:
            return True
        phase = self._phase
        if time.monotonic() - self._moved > _STALLED_SECONDS:
            raise InfrastructureError(
                f"{self._commands}{sorted(self.found)}: not restored, and no progress within {_STALLED_SECONDS:.0f} s "
                f"({phase.__name__.strip('_')}); nothing is served from a state that may be short"
            )
        is_complete = phase()
        if self._phase != phase:
            self._moved = time.monotonic()
        return is_complete

    def close(self) -> None:
        """Closes the log reader."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _committed(self) -> bool:
        wanted = [TopicPartition(self._commands, p) for p in self.found]
        try:
            stable = self._ports.member.committed(wanted, timeout=1.0)
        except KafkaException:
            stable = []
        if not stable or any(tp.error is not None for tp in stable):
            self._end_hanging()
            return False
        try:
            self._ids = self._ports.identities(self._task)
        except InfrastructureError as error:
            if error.__cause__ is None:
                raise
            return False  # no broker answers, so the topics are not known to differ
        for tp in stable:
            restored = self.found[tp.partition]
            restored.commands = self._ends(self._commands, tp.partition)
            restored.left = read_metadata(tp.metadata)
            restored.committed = max(tp.offset, self._taken(tp.partition) if self._task.is_process else 0)
        self._waited, self._phase = 0.0, self._watermarks
        return False

    def _taken(self, partition: int) -> int:
        """The next input offset in the checkpoints of other versions, since brokers delete offsets of unused groups."""
        found = (self._last_checkpoint(topic, partition) for topic in self._others())
        return max((one.commands for one in found if one and one.is_of(self._commands, self._ids)), default=0)

    def _last_checkpoint(self, topic: str, partition: int) -> ChangelogCheckpoint | None:
        """The last changelog checkpoint in a state partition of another version."""
        found = last_mark(self._ports.stable, TopicPartition(topic, partition))
        return ChangelogCheckpoint.decode(found) if found else None

    def _others(self) -> list[str]:
        """The state topics of other versions."""
        return [t for t in self._ports.topics() if t != self._state and t.startswith(f"{self._task.name}.state.v")]

    def _watermarks(self) -> bool:
        if self._holds_readers():
            # The states may already contain it, and then the restore would never read up to the hanging transaction.
            self._end_hanging()
            return False
        start: dict[int, int] = {}
        for partition, restored in self.found.items():
            restored.state_start, restored.state_end = self._ends(self._state, partition)
            start[partition] = restored.state_start
            _, restored.events_end = self._ends(self._log_of, partition)
        self._log = self._ports.open_log()
        self._log.seek(Position({self._state: start}))
        self._phase = self._states
        return False

    def _holds_readers(self) -> bool:
        """Whether a transaction is open on events or dead letters, which a restore need not read to their end.

        Only where workers alone write them: routers write the log and the dead letters of a process at any time.
        """
        if self._task.is_process:
            return False
        places = [TopicPartition(topic, p) for topic in self._task.writes for p in self.found]
        stable = (self._ports.stable.get_watermark_offsets(place, timeout=5.0)[1] for place in places)
        return any(end < self._ends(place.topic, place.partition)[1] for place, end in zip(places, stable, strict=True))

    def _ends(self, topic: str, partition: int) -> tuple[int, int]:
        low, high = self._ports.uncommitted.get_watermark_offsets(TopicPartition(topic, partition), timeout=5.0)
        return low, high

    def _states(self) -> bool:
        records = self._read()
        for record in records:
            restored = self.found.get(record.partition)
            if restored is not None and record.value is not None and record.key is not None:
                self._learn(restored, record.key, record)
        if not self._is_read({self._state: {p: r.state_end for p, r in self.found.items()}}, records):
            return False
        for partition, restored in self.found.items():
            _, restored.events_end = self._ends(self._log_of, partition)  # a note may have come behind the events
            self._check_logs(restored)
            restored.span = self._span(restored)
            self._pass_over_lost(restored)
        if self._task.is_process and any(begin < end for begin, end in (r.span for r in self.found.values())):
            self._look_for_refusals()
        else:
            self._fold()
        return False

    def _learn(self, restored: Restored, key: bytes, record: RawRecord) -> None:
        """Applies a state record; it may be invalid, since any client with write access may have written it."""
        value = record.value or b""
        if key == MARK and (checkpoint := ChangelogCheckpoint.read(value)) is not None:
            restored.checkpoint = checkpoint
        elif not (name := state_key(key)):
            self._report("foreign state", {"at": str(record.address)})
        elif self._task.is_state(value):
            restored.refold.store[name] = value
            restored.overwritten.discard(name)
        else:
            restored.overwritten.add(name)

    def _span(self, restored: Restored) -> tuple[int, int]:
        """The range of log records that the states lack."""
        checkpoint = restored.checkpoint
        if restored.overwritten:
            streams = sorted(restored.overwritten)[:_SHOWN]
            self._report("foreign state", {"topic": self._state, "partition": restored.partition, "of": streams})
        is_short = checkpoint and (
            checkpoint.start < restored.state_start or not checkpoint.is_of(self._state, self._ids)
        )
        # Its first records were deleted, which compaction never does, or it is a copy, or another client wrote to it:
        # only folding the whole log restores what it may lack.
        known = ChangelogCheckpoint() if is_short or restored.overwritten else restored.known
        return self._task.span(known, restored.start, restored.events_end)

    def _look_for_refusals(self) -> None:
        # Skip records are kept as long as the log; dead letters are not.
        topics = [self._task.dead, *{names.skipped(self._task.name)}.intersection(self._ports.topics())]
        self._letters = {topic: {p: self._ends(topic, p) for p in self.found} for topic in topics}
        starts = {topic: {p: low for p, (low, _) in spans.items()} for topic, spans in self._letters.items()}
        self._reader().seek(Position(starts))
        self._phase = self._refusals

    def _check_logs(self, restored: Restored) -> None:
        """Checks a partition's checkpoint against the topics, and sets its start offset.

        Raises:
            ConfigurationError: the topics are not those that the state was built from, or they are shorter.
        """
        checkpoint, partition = restored.known, restored.partition
        known = KnownLogs(self._task, partition, checkpoint, self._ids)
        known.check_same(restored.events_end)
        if checkpoint.events > restored.events_end:
            # The checkpoint may be newer than the end offset, which was read first.
            known.check_events(self._ends(self._log_of, partition)[1])
        if not checkpoint.is_of(self._commands, self._ids):
            self._report(
                "commands begin again", {"topic": self._commands, "partition": partition, "was at": checkpoint.commands}
            )
            restored.committed, restored.checkpoint = 0, replace(checkpoint, commands=0)
        self._check_commands(restored)

    def _check_commands(self, restored: Restored) -> None:
        """Refuses a command topic that ends before the next offset."""
        partition = restored.partition
        if restored.start > restored.commands[1]:
            restored.commands = self._ends(self._commands, partition)
        if restored.start > restored.commands[1]:
            raise cut_commands(self._task.name, partition, restored.start, restored.commands[1])

    def _pass_over_lost(self, restored: Restored) -> None:
        """Starts after commands that retention deleted, and reports how many they were."""
        partition, low = restored.partition, restored.commands[0]
        if restored.start < low:
            details = {"topic": self._commands, "partition": partition, "offsets": f"{restored.start} to {low - 1}"}
            self._report("commands lost to retention", {**details, "commands": low - restored.start})
            restored.committed = low

    def _refusals(self) -> bool:
        """Reads which records of the log were refused or are to be skipped."""
        records = self._read()
        for record in records:
            if restored := self.found.get(record.partition):
                restored.refold.skip(record)
        letters = (self._letters or {}).items()
        if self._is_read({topic: {p: spans[p][1] for p in self.found} for topic, spans in letters}, records):
            self._fold()
        return False

    def _fold(self) -> None:
        self._reader().seek(Position({self._log_of: {p: r.span[0] for p, r in self.found.items()}}))
        self._phase = self._event_tail

    def _event_tail(self) -> bool:
        records = self._read()
        for record in records:
            restored = self.found.get(record.partition)
            if restored is None or record.offset >= restored.span[1]:
                continue
            restored.noted += read_settling(record).items()
            try:
                restored.refold.add(record)
            except (ContractError, InfrastructureError) as error:
                if self._task.is_process:
                    raise
                if self._letters is None:
                    # Folding starts again after the dead letters are read; records already folded are skipped.
                    self._look_for_refusals()
                    return False
                self._stop_at(restored, record, str(error))
        if not self._is_read({self._log_of: {p: r.span[1] for p, r in self.found.items()}}, records):
            self._report_progress()
            return False
        self._phase = self._lost
        return False

    def _lost(self) -> bool:
        """Looks whether records were lost that were noted before a transaction was ended that a broker forgot."""
        # Any client may write to the log of a process.
        own = () if self._task.is_process else (self._state, *self._task.writes)
        for partition, restored in self.found.items():
            noted = [(topic, span) for topic, span in restored.noted if topic in own]
            try:
                restored.lost = lost_records(self._ports.stable, self._ports.uncommitted, partition, noted, self._ids)
            except KafkaException:
                return False
            for topic, records in restored.lost:
                details = {"topic": topic, "partition": partition, "records": len(records)}
                self._report("lost records are written again", details)
        self._versions = [] if self._task.is_process else self._others()
        return self._next_version()

    def _stop_at(self, restored: Restored, record: RawRecord, why: str) -> None:
        """Stops a partition at an event that cannot be folded, unless an operator has skipped it."""
        noted, partition = restored.refold.noted.get(record.offset), restored.partition
        if record.offset not in restored.refold.passed:
            end = (self._letters or {})[self._task.dead][partition][1]
            is_noted, seconds = noted is not None and noted >= end - _RECENT, time.monotonic() - self._began
            self.stopped[partition] = Stopped(record, why, is_noted, seconds)
            self.found.pop(partition)

    def _next_version(self) -> bool:
        """Starts reading the answers of the next decider version that is ahead, in a rolling upgrade.

        Returns True if there is none left.
        """
        while self._versions:
            self._version, self._moved = self._versions.pop(), time.monotonic()
            found = {p: self._last_checkpoint(self._version, p) for p in self.found}
            self._theirs = {p: one for p, one in found.items() if one and self._is_ahead(p, one)}
            if self._theirs:
                spans = {p: self._ends(self._version, p) for p in self._theirs}
                self._version_ends = {p: high for p, (_, high) in spans.items()}
                self._reader().seek(Position({self._version: {p: low for p, (low, _) in spans.items()}}))
                self._phase = self._answers
                return False
        return True

    def _answers(self) -> bool:
        """Adopts answers and origins from another version's state topic."""
        records = self._read()
        for record in records:
            restored = self.found.get(record.partition)
            if restored is None or record.key is None or record.value is None:
                continue
            if record.key == MARK and (checkpoint := ChangelogCheckpoint.read(record.value)) is not None:
                self._theirs[record.partition] = checkpoint
            elif (key := state_key(record.key)) and not restored.refold.adopt(key, record.value):
                self._report("foreign state", {"at": str(record.address)})
        ends = {p: end for p, end in self._version_ends.items() if p in self.found}
        if not self._is_read({self._version: ends}, records):
            return False
        for partition in self._theirs.keys() & self.found.keys():
            restored, theirs = self.found[partition], self._theirs[partition]
            if theirs.is_of(self._commands, self._ids) and self._is_ahead(partition, theirs):
                restored.checkpoint = replace(restored.known, commands=theirs.commands)
                self._check_commands(restored)
                self._pass_over_lost(restored)
        return self._next_version()

    def _is_ahead(self, partition: int, theirs: ChangelogCheckpoint) -> bool:
        return theirs.commands > self.found[partition].known.commands

    def _is_read(self, ends: Mapping[str, Mapping[int, int]], records: list[RawRecord]) -> bool:
        """Whether topics are read to these ends; while no records come, transactions of dead writers are ended."""
        if self._reader().position().covers(Position(ends)):
            return True
        if not records:
            self._end_hanging()
        return False

    def _read(self) -> list[RawRecord]:
        records = list(self._reader().poll(READ, 0.02))
        if records:
            self._waited, self._moved = 0.0, time.monotonic()
        return records

    def _report_progress(self) -> None:
        """Reports how far the log is folded; approximate, since offsets have gaps."""
        if time.monotonic() - self._reported < TELL_SECONDS:
            return
        self._reported, position = time.monotonic(), self._reader().position()
        spans = {p: r.span for p, r in self.found.items()}
        done = sum(min(position.next_offset(self._log_of, p), end) - begin for p, (begin, end) in spans.items())
        whole = sum(end - begin for begin, end in spans.values())
        self._report("folding", {"topic": self._log_of, "partitions": sorted(spans), "done": done, "of": whole})

    def _reader(self) -> LogReader:
        if self._log is None:
            raise InfrastructureError("this restoration is closed")
        return self._log

    def _end_hanging(self) -> None:
        """Ends open transactions of dead writers, after a second without progress."""
        now = time.monotonic()
        if not self._waited:
            self._waited = self._stalled_since = now
        elif now - self._waited > 1.0:
            self._waited = now + 5.0
            alone = now - self._began > ALONE_SECONDS
            overdue = now - self._stalled_since > TRANSACTION_SECONDS
            self._ports.hanging(self._app, self._task).end(self.found, alone=alone, overdue=overdue)
