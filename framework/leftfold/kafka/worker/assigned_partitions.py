"""The partitions assigned to a worker: restores under way, and the processing state of each partition."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

from leftfold.engine.processing.recovery import task_for
from leftfold.engine.processing.stream_state import ChangelogCheckpoint
from leftfold.errors import LeftfoldError
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.group_member import GroupMember
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.log_identity import Restored, Stopped
from leftfold.kafka.worker.offset_metadata import CLEAN, OffsetMetadata
from leftfold.kafka.worker.state_restore import Report, Restoration
from leftfold.model.app import App
from leftfold.model.position import RecordAddress
from leftfold.ports.outgoing import dead_letter

__all__ = ["AssignedPartition", "Restorations"]


_PAUSE, _LONGEST_PAUSE, _OVERHEAD = 5.0, 60.0, 4096


class Restorations:
    """Restores newly assigned partitions in small steps while the worker serves others.

    A partition that stopped at an event which cannot be folded is retried from time to time, and reported each time.
    """

    def __init__(self, app: App, name: str, supplier: KafkaClientSupplier, member: GroupMember, report: Report) -> None:
        self._app, self._name, self._shop, self._member, self._report = app, name, supplier, member, report
        self._running: list[Restoration] = []
        self._complete: dict[int, Restored] = {}
        self._stopped: dict[int, tuple[float, float]] = {}

    def step(self) -> list[Restored]:
        """Starts restores of new partitions and continues the others; returns the restored partitions.

        A restored partition is returned at each call until it is dropped.
        """
        waiting = {p for p, (until, _) in self._stopped.items() if time.monotonic() < until}
        assigned = {partition for _, partition in self._member.new}
        new = assigned - {p for one in self._running for p in one.found} - self._complete.keys() - waiting
        if new:
            ports = self._shop.restore_ports(self._member)
            self._running.append(
                Restoration(self._app, self._name, sorted(new), self._shop.new_store, ports, report=self._report)
            )
        for restoration in [one for one in self._running if one.step()]:
            self._running.remove(restoration)
            restoration.close()
            self._complete |= restoration.found
            for partition in restoration.found:
                self._stopped.pop(partition, None)
            for partition in restoration.stopped.keys() & {partition for _, partition in self._member.new}:
                self._stop(partition, restoration.stopped[partition])
            if refused := sum(restored.refold.refused for restored in restoration.found.values()):
                self._report("refused in folding", {"of": self._name, "records": refused})
        return list(self._complete.values())

    def drop(self, partitions: Collection[int]) -> None:
        """Drops the restores of partitions that are served now or belong to another worker."""
        for restoration in self._running:
            for partition in partitions:
                restoration.drop(partition)
        for partition in partitions:
            self._complete.pop(partition, None)
            self._stopped.pop(partition, None)

    def _stop(self, partition: int, stopped: Stopped) -> None:
        """Reports a partition that cannot be served, writes a dead letter for `status`, and delays the next try."""
        _, pause = self._stopped.get(partition, (0.0, _PAUSE))
        until = time.monotonic() + max(pause, 2 * stopped.seconds)
        self._stopped[partition] = until, min(_LONGEST_PAUSE, 2 * pause)
        record, task = stopped.record, task_for(self._app, self._name)
        place = RecordAddress(record.topic, record.partition, record.offset)
        way_out = f"leftfold log skip {self._name} '{place}' --reason WHY"
        self._report("a partition stands still", {"at": str(place), "why": stopped.why, "do": way_out})
        if not stopped.is_noted:
            letter = dead_letter(record, stopped.why, partition, self._shop.room(task) - _OVERHEAD)
            try:
                write_record(self._shop.settings, task.refusals, letter)
            except LeftfoldError as error:
                self._report("not noted", {"at": str(place), "why": str(error)})

    def close(self) -> None:
        """Closes the log readers."""
        for restoration in self._running:
            restoration.close()

    def __bool__(self) -> bool:
        return bool(self._running or self._complete)


class AssignedPartition:
    """A partition that the worker serves: its next offset, its committed metadata, and its batching limits.

    After an unclean death batches stay small for a while, so that a poison pill is found within one small batch. When
    the last owner died before it committed anything, commands are decided one by one.

    `refused` is why the broker refused the records of the next command, decided alone.

    Args:
        state_start: the first offset of the state partition; the restore found it complete from there.
        known: the last changelog checkpoint (`@`) of the state partition, with topic ids and the cost of commands.
    """

    SMALL: ClassVar[int] = 100
    _SHARE: ClassVar[float] = 0.1
    _FOR: ClassVar[int] = 2000

    def __init__(
        self, next_offset: int, left: OffsetMetadata, *, state_start: int = 0, known: ChangelogCheckpoint | None = None
    ) -> None:
        self.next, self.metadata, self.attempts, self.state_start = next_offset, left.token, left.attempts, state_start
        self._known = known or ChangelogCheckpoint()
        self._per_command, self._dropped = float(self._known.per_command), self._known.answers_dropped
        self.begun, self.refused = False, ""
        self.isolated_remaining = self.SMALL if left.suspect else 0
        self.small = 0 if left.token in ("", CLEAN) else self._FOR

    def begin(self, metadata: str) -> None:
        """Records that a commit without progress has announced the start of processing."""
        self.begun, self.metadata = True, metadata

    def move(self, next_offset: int, metadata: str) -> None:
        """Advances to the next offset after a committed batch."""
        self.next, self.metadata, self.attempts, self.begun, self.refused = next_offset, metadata, 0, True, ""

    @property
    def known(self) -> ChangelogCheckpoint:
        """The values for the next changelog checkpoint: topic ids, and the average cost of the last commands.

        The cost is a moving average over about ten transactions.
        """
        return replace(self._known, per_command=round(self._per_command), answers_dropped=self._dropped)

    def spent(self, state_bytes: int, commands: int, answers_dropped: int) -> None:
        """Counts the state bytes and dropped answers of a committed transaction."""
        self._per_command += self._SHARE * (state_bytes / commands - self._per_command)
        self._dropped += answers_dropped

    def suspect(self) -> None:
        """Has the next commands decided one by one: one took longer than a transaction, or its records are refused."""
        self.isolated_remaining = self.SMALL

    def spend(self) -> None:
        """Counts one command that was decided alone."""
        self.isolated_remaining = max(0, self.isolated_remaining - 1)

    def calm(self, decided: int) -> None:
        """Counts commands that the process survived, of any partition, so batches do not stay small for a quiet one."""
        self.small = max(0, self.small - decided)
