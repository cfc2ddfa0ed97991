"""The client supplier of a worker under test: real clients with short timeouts, and points on their way."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from leftfold.engine.processing.command_processor import CommandProcessor
from leftfold.engine.processing.recovery import TaskSpec
from leftfold.kafka.group_member import GroupMember, PartitionId
from leftfold.kafka.settings import KafkaSettings
from leftfold.kafka.worker.clients import KafkaClientSupplier, gap_of_commands
from leftfold.kafka.worker.state_restore import RestorePorts
from leftfold.kafka.worker.transactions import Transactions
from leftfold.model.app import App
from leftfold.model.decider import Decider
from leftfold.model.keys import partition_of
from leftfold.ports.outgoing import Batch, Outgoing
from leftfold.ports.protocols import LogReader

__all__ = ["TRANSACTION", "FaultyShop", "Haste", "Point", "Points"]

TRANSACTION = (
    "fetched",
    "decided",
    "after begin_transaction",
    "half produced",
    "after flush",
    "before send_offsets_to_transaction",
    "after send_offsets_to_transaction",
    "before commit_transaction",
    "after commit_transaction",
)
"""The points of one batch, in order; the last one is passed before anybody is answered."""


@dataclass(frozen=True)
class Point:
    """At the `nth` passing of a point the process is killed, is stopped until continued, hangs, or sees a call fail."""

    at: str
    do: str = "kill"
    nth: int = 1


class Points:
    """What is to happen where; `tell` hears of it before it does."""

    def __init__(self, planned: Iterable[Point], tell: Callable[[str], None]) -> None:
        self._planned, self._tell = tuple(planned), tell
        self._passed = Counter[str]()

    def planned(self, at: str) -> bool:
        """Whether anything will happen there."""
        return any(point.at == at for point in self._planned)

    def reach(self, at: str) -> None:
        """Passes a point."""
        self._passed[at] += 1
        for point in self._planned:
            if point.at == at and point.nth == self._passed[at]:
                self._tell(at)
                self._act(point.do)

    def _act(self, do: str) -> None:
        match do:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hang":
                threading.Event().wait()
            case "fail":
                raise KafkaException(KafkaError(KafkaError._TRANSPORT, f"as planned at {self._passed}"))
            case _:
                raise ValueError(do)


@dataclass(frozen=True)
class Haste:
    """Shorter waits than in production.

    Args:
        session: of the group, in ms. socket: librdkafka's timeout of one request, in ms.
        call: seconds that a transactional call may take. transaction: when the broker ends it, in ms.
        longest: seconds that a transaction is planned to last at most, 0 = what `transaction` says.
        check: seconds between looks at partition counts.
        checkpoints: False in the tests that show what happens when nobody says that work begins.
        asks_room: False where it is shown what happens when nobody asks what the topics allow.
    """

    session: int = 1500
    socket: int = 10_000
    call: float = 10.0
    transaction: int = 10_000
    longest: float = 0.0
    check: float = 10.0
    checkpoints: bool = True
    asks_room: bool = True


class FaultyShop(KafkaClientSupplier):
    """A client supplier whose clients pass points."""

    def __init__(self, settings: KafkaSettings, haste: Haste | None = None, points: Points | None = None) -> None:
        self.haste, self.points = haste or Haste(), points or Points((), lambda at: None)
        super().__init__(settings, check_seconds=self.haste.check)

    def room(self, task: TaskSpec) -> int:
        return super().room(task) if self.haste.asks_room else 1_000_000

    def processor(self, app: App, task: TaskSpec) -> CommandProcessor:
        return _Lane(self, app, app.decider(task.name), self.room(task))

    def transactions(self, app: App, task: TaskSpec) -> Transactions:
        config = {
            **self._config,
            "batch.size": self.room(task),
            "socket.timeout.ms": self.haste.socket,
            "transaction.timeout.ms": self.haste.transaction,
        }
        transactions = _Transactions(
            self.points,
            config,
            f"{app.name}.{task.name}.{self._suffix}",
            self._watchdog,
            timeout=self.haste.call,
        )
        transactions.longest = self.haste.longest or transactions.longest
        return transactions

    def _member(self, group: str, topic: str, leave: Callable[[list[PartitionId], bool], None]) -> GroupMember:
        session = {"session.timeout.ms": self.haste.session, "heartbeat.interval.ms": self.haste.session // 4}
        config = {**self._config, **session}
        return _Member(self.points, self.haste.checkpoints, config, group, [topic], leave, gap_of_commands)

    def restore_ports(self, member: GroupMember) -> RestorePorts:
        self.points.reach("restore begins")
        return replace(super().restore_ports(member), open_log=self._open_log)

    def _open_log(self) -> LogReader:
        self.points.reach("restore reads")
        return self.open_log()


class _Lane(CommandProcessor):
    def __init__(self, shop: FaultyShop, app: App, decider: Decider[Any, Any, Any], room: int) -> None:
        self._points = shop.points
        super().__init__(
            app.name,
            decider,
            partition_of=lambda key: partition_of(key, app.partitions),
            partitions=shop.partitions,
            max_bytes=room,
            clock=time.time,
            senders=app.senders_to(decider.name),
            end=shop.end,
        )

    def finish(self, batch: Batch) -> None:
        super().finish(batch)
        self._points.reach("decided")


class _Member(GroupMember):
    def __init__(self, points: Points, checkpoints: bool, *args: Any) -> None:
        self._points, self._marks = points, checkpoints
        super().__init__(*args)

    def fetch(self, limit: int, wait: float) -> Any:
        records = super().fetch(limit, wait)
        if records:
            self._points.reach("fetched")
        return records

    def commit(self, offsets: Any) -> None:
        if self._marks:
            super().commit(offsets)
            self._points.reach("marked")


class _Transactions(Transactions):
    _producer: Producer

    def __init__(self, points: Points, *args: Any, **options: Any) -> None:
        self._points = points
        super().__init__(*args, **options)

    def _call(self, function: Any, *args: Any) -> Any:
        self._points.reach(f"before {function.__name__}")
        result = super()._call(function, *args)
        self._points.reach(f"after {function.__name__}")
        return result

    def _produce(self, topic: str, records: Sequence[Outgoing], ends: dict[int, int] | None) -> None:
        if ends is None or not self._points.planned("half produced"):
            super()._produce(topic, records, ends)
            return
        half = len(records) // 2
        super()._produce(topic, records[:half], ends)
        self._producer.flush(240.0)
        self._points.reach("half produced")
        super()._produce(topic, records[half:], ends)
