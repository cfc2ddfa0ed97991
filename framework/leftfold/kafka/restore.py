"""Restores partitions before they are served: complete, or not at all.

The order is the point (design §4): the stable committed offset first, then the high watermarks, then the state up to
them, then the events that the state lacks. A worker that captured the state's end before the offset was stable would
miss what its predecessor committed in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from leftfold import names
from leftfold.app import App
from leftfold.engine.duty import Refolding, duty_of
from leftfold.engine.statemark import MARK, StateMark
from leftfold.errors import InfrastructureError
from leftfold.kafka.marks import last_mark
from leftfold.kafka.offsets import Left, read_metadata
from leftfold.kafka.restore_ports import RestorePorts
from leftfold.ports import LogReader, RawRecord, StateStore
from leftfold.position import Position

__all__ = ["Report", "Restoration", "Restored"]

Report = Callable[[str, Mapping[str, Any]], None]
READ = 200
ALONE_SECONDS, TELL_SECONDS = 25.0, 5.0


@dataclass
class Restored:
    """A partition on its way to being served."""

    partition: int
    refold: Refolding
    committed: int = 0
    left: Left = field(default_factory=lambda: read_metadata(None))
    mark: StateMark | None = None
    state_start: int = 0
    state_end: int = 0
    events_end: int = 0
    span: tuple[int, int] = (0, 0)

    @property
    def start(self) -> int:
        """The first command to decide."""
        return max(self.committed, self.mark.commands if self.mark else 0)


class Restoration:
    """Restores some partitions of one category in small steps, so that held ones go on being served.

    Args:
        deadline: seconds without any progress after which a restore refuses to serve; however long it takes with.
        report: told every few seconds how far it is.
    """

    def __init__(
        self,
        app: App,
        category: str,
        partitions: list[int],
        new_store: Callable[[], StateStore],
        ports: RestorePorts,
        *,
        deadline: float = 60.0,
        report: Report = lambda what, details: None,
    ) -> None:
        self._app, self._ports = app, ports
        self._duty = duty_of(app, category)
        self._commands, self._log_of = names.commands(category), self._duty.log
        self._state = names.state(category, self._duty.version)
        self.found = {p: Restored(p, self._duty.refold(new_store())) for p in partitions}
        self._began, self._deadline, self._waited = time.monotonic(), deadline, 0.0
        self._moved = self._told = self._began
        self._report = report
        self._log: LogReader | None = None
        self._letters: dict[int, tuple[int, int]] = {}
        self._phase: Callable[[], bool] = self._committed

    def drop(self, partition: int) -> None:
        """The partition is not ours any more."""
        self.found.pop(partition, None)

    def step(self) -> bool:
        """Does a little; True once every partition is complete.

        Raises:
            InfrastructureError: nothing moved within the deadline, or events are missing.
        """
        if not self.found:
            return True
        phase = self._phase
        if time.monotonic() - self._moved > self._deadline:
            raise InfrastructureError(
                f"{self._commands}{sorted(self.found)}: not restored, and no progress within {self._deadline:.0f} s "
                f"({phase.__name__.strip('_')}); nothing is served from a state that may be short"
            )
        is_complete = phase()
        if self._phase != phase:
            self._moved = time.monotonic()
        return is_complete

    def close(self) -> None:
        """Lets go of the reader."""
        if self._log is not None:
            self._log.close()
            self._log = None

    def _committed(self) -> bool:
        wanted = [TopicPartition(self._commands, p) for p in self.found]
        try:
            stable = self._ports.member.committed(wanted, timeout=1.0)
        except KafkaException:
            self._end_hanging()
            return False
        if any(tp.error is not None for tp in stable):
            self._end_hanging()
            return False
        for tp in stable:
            restored = self.found[tp.partition]
            restored.left = read_metadata(tp.metadata)
            restored.committed = max(tp.offset, 0 if self._duty.adopts else self._taken(tp.partition))
        self._phase = self._watermarks
        return False

    def _taken(self, partition: int) -> int:
        """The next record to take as other versions know it: brokers forget the offsets of a group that nobody uses."""
        places = [TopicPartition(topic, partition) for topic in self._others()]
        marks = [mark for place in places if (mark := last_mark(self._ports.stable, place))]
        return max((StateMark.decode(mark).commands for mark in marks), default=0)

    def _others(self) -> list[str]:
        """The state topics of other versions."""
        return [t for t in self._ports.topics() if t != self._state and t.startswith(f"{self._duty.name}.state.v")]

    def _watermarks(self) -> bool:
        start: dict[int, int] = {}
        for partition, restored in self.found.items():
            restored.state_start, restored.state_end = self._ends(self._state, partition)
            start[partition] = restored.state_start
            _, restored.events_end = self._ends(self._log_of, partition)
        self._log = self._ports.open_log()
        self._log.seek(Position({self._state: start}))
        self._phase = self._states
        return False

    def _ends(self, topic: str, partition: int) -> tuple[int, int]:
        low, high = self._ports.uncommitted.get_watermark_offsets(TopicPartition(topic, partition), timeout=5.0)
        return low, high

    def _states(self) -> bool:
        log = self._reader()
        records = self._read(log)
        for record in records:
            restored = self.found.get(record.partition)
            if restored is None or record.value is None or record.key is None:
                continue
            if record.key == MARK:
                restored.mark = StateMark.decode(record.value)
            else:
                restored.refold.store.put([(record.key.decode(), record.value)])
        if self._short(log, self._state, {p: r.state_end for p, r in self.found.items()}):
            if not records:
                self._end_hanging()
            return False
        for restored in self.found.values():
            if restored.mark is not None and restored.mark.start < restored.state_start:
                # Somebody deleted its first records, and compaction never does: only the whole log makes up for them.
                restored.span = self._duty.span(StateMark(), restored.start, restored.events_end)
            else:
                restored.span = self._duty.span(restored.mark or StateMark(), restored.start, restored.events_end)
        if self._duty.refusals and any(begin < end for begin, end in (r.span for r in self.found.values())):
            self._letters = {p: self._ends(self._duty.refusals, p) for p in self.found}
            log.seek(Position({self._duty.refusals: {p: begin for p, (begin, _) in self._letters.items()}}))
            self._phase = self._refusals
        else:
            self._fold(log)
        return False

    def _refusals(self) -> bool:
        """Learns which records of the log were not taken, before any is folded."""
        log = self._reader()
        records = self._read(log)
        for record in records:
            if restored := self.found.get(record.partition):
                restored.refold.pass_over(record)
        if not self._short(log, self._duty.refusals, {p: self._letters[p][1] for p in self.found}):
            self._fold(log)
        elif not records:
            self._end_hanging()
        return False

    def _fold(self, log: LogReader) -> None:
        log.seek(Position({self._log_of: {p: r.span[0] for p, r in self.found.items()}}))
        self._phase = self._event_tail

    def _event_tail(self) -> bool:
        log = self._reader()
        records = self._read(log)
        for record in records:
            restored = self.found.get(record.partition)
            if restored is not None and record.offset < restored.span[1]:
                restored.refold.add(record)
        if self._short(log, self._log_of, {p: r.span[1] for p, r in self.found.items()}):
            if not records:
                self._end_hanging()
            self._tell(log)
            return False
        for topic in self._others() if self._duty.adopts else ():
            self._adopt(topic)
        return True

    def _adopt(self, topic: str) -> None:
        """Takes answers from another decider version that has decided more recently, in a rolling upgrade."""
        log = self._reader()
        spans = {p: self._ends(topic, p) for p in self.found}
        log.seek(Position({topic: {p: low for p, (low, _) in spans.items()}}))
        marks: dict[int, StateMark] = {}
        records: dict[int, dict[str, bytes]] = {p: {} for p in self.found}
        while self._short(log, topic, {p: high for p, (_, high) in spans.items()}):
            for record in log.poll(READ, 0.02):
                if record.key == MARK and record.value is not None:
                    marks[record.partition] = StateMark.decode(record.value)
                elif record.key is not None and record.value is not None:
                    records[record.partition][record.key.decode()] = record.value
            if time.monotonic() - self._moved > self._deadline:
                raise InfrastructureError(f"{topic} was not read within {self._deadline:.0f} s")
        for partition, restored in self.found.items():
            mine, theirs = restored.mark or StateMark(), marks.get(partition, StateMark())
            if theirs.commands > mine.commands:
                for key, value in records[partition].items():
                    restored.refold.adopt(key, value)
                restored.mark = replace(mine, commands=theirs.commands)

    def _short(self, log: LogReader, topic: str, ends: Mapping[int, int]) -> bool:
        position = log.position()
        return any(position.next_offset(topic, p) < end for p, end in ends.items())

    def _read(self, log: LogReader) -> list[RawRecord]:
        records = list(log.poll(READ, 0.02))
        if records:
            self._waited, self._moved = 0.0, time.monotonic()
        return records

    def _tell(self, log: LogReader) -> None:
        """Says how far the log is folded; offsets have gaps, so it is about that far."""
        if time.monotonic() - self._told < TELL_SECONDS:
            return
        self._told, position = time.monotonic(), log.position()
        spans = {p: r.span for p, r in self.found.items()}
        done = sum(min(position.next_offset(self._log_of, p), end) - begin for p, (begin, end) in spans.items())
        whole = sum(end - begin for begin, end in spans.values())
        self._report("folding", {"topic": self._log_of, "partitions": sorted(spans), "done": done, "of": whole})

    def _reader(self) -> LogReader:
        if self._log is None:
            raise InfrastructureError("this restoration is closed")
        return self._log

    def _end_hanging(self) -> None:
        """After a second of no progress, ends the transactions of writers that died with one open."""
        now = time.monotonic()
        if not self._waited:
            self._waited = now
        elif now - self._waited > 1.0:
            self._waited = now + 5.0
            alone = now - self._began > ALONE_SECONDS
            self._ports.hanging(self._app, self._duty).end(self.found, alone=alone)
