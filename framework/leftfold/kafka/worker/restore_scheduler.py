"""Starts, retries and reports the restores of partitions that a worker was assigned, while it serves others."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from leftfold.engine.processing.worker_tasks import task_for
from leftfold.errors import LeftfoldError
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.consumer_group import GroupMember
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.log_identity import Restored, Stopped
from leftfold.kafka.worker.sent_records import SentWatch
from leftfold.kafka.worker.state_restore import Restoration
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.ports.instruments import RESTORE_SECONDS, clock, member
from leftfold.ports.outgoing import Outgoing, dead_letter
from leftfold.ports.protocols import Report

__all__ = ["RestoreScheduler"]


_PAUSE, _LONGEST_PAUSE, _OVERHEAD = 5.0, 60.0, 4096


class RestoreScheduler:
    """Restores newly assigned partitions in small steps while the worker serves others.

    A partition that stopped at an event which cannot be folded is retried from time to time, and reported each time.
    """

    def __init__(
        self, app: App, name: str, supplier: KafkaClientSupplier, group_member: GroupMember, report: Report
    ) -> None:
        self._app, self._name, self._supplier, self._member, self._report = app, name, supplier, group_member, report
        self._running: dict[Restoration, float] = {}
        self._complete: dict[int, Restored] = {}
        self._stopped: dict[int, tuple[float, float]] = {}
        task, receivers = task_for(app, name), app.receivers_of(name)
        topics = sorted({names.commands(one) for one in (*receivers, *([name] if task.is_process else []))})
        own, ports = supplier.transactional_id(app, task), supplier.restore_ports
        self._sent = SentWatch(lambda: ports(group_member).hanging(app, task), topics, own, report) if topics else None

    def step(self) -> list[Restored]:
        """Starts restores of new partitions and continues the others; returns the restored partitions.

        A restored partition is returned at each call until it is dropped. The worker of the first partition also ends
        transactions that hang where others read.
        """
        if self._sent is not None and (names.commands(self._name), 0) in self._member.served:
            self._sent.step()
        waiting = {p for p, (until, _) in self._stopped.items() if time.monotonic() < until}
        assigned = {partition for _, partition in self._member.new}
        new = assigned - {p for one in self._running for p in one.found} - self._complete.keys() - waiting
        if new:
            ports = self._supplier.restore_ports(self._member)
            restoration = Restoration(self._app, self._name, sorted(new), ports, report=self._report)
            self._running[restoration] = clock()
        for restoration in [one for one in self._running if one.step()]:
            kind = "process" if task_for(self._app, self._name).is_process else "decider"
            RESTORE_SECONDS.record(clock() - self._running.pop(restoration), member(kind, self._name))
            restoration.close()
            self._complete |= restoration.found
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
        self._delay(partition, 2 * stopped.seconds)
        record, task = stopped.record, task_for(self._app, self._name)
        place = record.address
        way_out = f"leftfold log skip {self._name} '{place}' --reason WHY"
        self._report("a partition stands still", {"at": str(place), "why": stopped.why, "do": way_out})
        if not stopped.is_noted:
            letter = dead_letter(record, stopped.why, partition, self._supplier.room(task) - _OVERHEAD)
            try:
                write_record(self._supplier.settings, task.dead, letter)
            except LeftfoldError as error:
                self._report("not noted", {"at": str(place), "why": str(error)})

    def _delay(self, partition: int, least: float) -> None:
        _, pause = self._stopped.get(partition, (0.0, _PAUSE))
        self._stopped[partition] = time.monotonic() + max(pause, least), min(_LONGEST_PAUSE, 2 * pause)

    def refuse(self, partition: int, records: Iterable[Outgoing], why: str) -> None:
        """Reports a partition whose folded states a broker refuses, and delays the next try."""
        self._complete.pop(partition, None)
        self._delay(partition, 0.0)
        heaviest = max(records, key=lambda out: len(out.value or b""), default=Outgoing(partition, b"", b"", []))
        topic = names.state(self._name, task_for(self._app, self._name).version)
        why = f"the state of {(heaviest.key or b'').decode()[:80]!r} weighs {len(heaviest.value or b'')} bytes; {why}"
        do = f"deploy a version of {self._name} whose states fit"
        self._report("a partition stands still", {"at": f"{topic}[{partition}]", "why": why, "do": do})

    def close(self) -> None:
        """Closes the log readers."""
        for restoration in self._running:
            restoration.close()

    def __bool__(self) -> bool:
        return bool(self._running or self._complete)
