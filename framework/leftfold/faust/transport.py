"""Faust's transport as its guarantees need it: committed records only, and word of how far it has read.

Faust's own consumer reads what was aborted unless it writes transactions itself, which is broken (faust#517).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar

import aiokafka
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from leftfold.errors import InfrastructureError

__all__ = ["CommittedConsumer", "CommittedTransport", "Progress"]


class Progress:
    """How far the partitions are read: `position` of each after its last fetch, and which records are not done."""

    def __init__(self) -> None:
        self.position: dict[TP, int] = {}
        self._open: dict[TP, set[int]] = {}
        self._awaited: dict[TP, deque[int]] = {}

    def fetched(self, positions: Mapping[TP, int], records: Mapping[TP, list[Any]]) -> None:
        """A fetch brought these records, and left the consumer at these positions."""
        for tp, found in records.items():
            offsets = [record.offset for record in found]
            self._open.setdefault(tp, set()).update(offsets)
            if offsets:
                before = [offset for offset in self._awaited.get(tp, ()) if offset < offsets[0]]
                self._awaited[tp] = deque([*before, *offsets])
        self.position.update(positions)

    def began(self, tp: TP, offset: int) -> None:
        """This record is about to be routed.

        Raises:
            InfrastructureError: one before it was fetched and never handed on. Whoever wrote the input behind it would
                lose it: an instance takes what comes from further back for something that was there.
        """
        awaited = self._awaited.get(tp)
        if not awaited or offset < awaited[0]:
            return
        if offset > awaited[0]:
            raise InfrastructureError(
                f"{tp.topic}[{tp.partition}]@{offset} came before @{awaited[0]}; the router begins again from there"
            )
        awaited.popleft()

    def done(self, tp: TP, offset: int) -> None:
        """This record is routed."""
        if tp in self._open:
            self._open[tp].discard(offset)

    def is_through(self, tp: TP, end: int) -> bool:
        """Whether everything before `end` is read and routed."""
        return self.position.get(tp, -1) >= end and not self._open.get(tp)

    def frontier(self, tp: TP) -> int | None:
        """The first offset that is not routed yet; None when nothing has been fetched."""
        return min(self._open[tp]) if self._open.get(tp) else self.position.get(tp)

    def forget(self) -> None:
        """Partitions come and go: what is not fetched anew is not known."""
        self.position.clear()
        self._open.clear()
        self._awaited.clear()


class _Thread(driver.AIOKafkaConsumerThread):
    """Reads with the consumer that we make."""

    consumer: CommittedConsumer
    _positions: dict[TP, int]

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        tables = bool(self.app.tables.changelog_topics) or conf.table_standby_replicas > 0
        self._assignor = self.app.assignor if tables else RoundRobinPartitionAssignor
        return aiokafka.AIOKafkaConsumer(
            **transport.dialect,
            group_id=conf.id,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset=conf.consumer_auto_offset_reset,
            max_poll_records=conf.broker_max_poll_records,
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            fetch_max_wait_ms=50,
            check_crcs=True,
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            isolation_level="read_committed",
        )

    async def _fetch_records(self, consumer: Any, *args: Any, **options: Any) -> Any:
        records = await super()._fetch_records(consumer, *args, **options)
        assignment = consumer._subscription.subscription.assignment  # noqa: SLF001  # no public way says it at once
        states = {tp: assignment.state_value(tp) for tp in assignment.tps} if assignment is not None else {}
        known = {tp: state.position for tp, state in states.items() if state is not None and state.has_valid_position}
        self._positions = {TP(tp.topic, tp.partition): position for tp, position in known.items()}
        return records

    async def getmany(self, active_partitions: Any, timeout: float) -> Any:
        """A batch of records, of which our progress then knows."""
        records = await super().getmany(active_partitions, timeout)
        self.consumer.progress.fetched(getattr(self, "_positions", {}), records)
        return records


class CommittedConsumer(driver.Consumer):
    """A consumer of committed records."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.progress = Progress()
        super().__init__(*args, **options)

    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return _Thread(self, loop=self.loop, beacon=self.beacon)

    def _new_offset(self, tp: TP) -> int | None:
        """What is committed: nothing that is not routed. Faust itself counts an event behind a gap with the gap."""
        frontier, committed = self.progress.frontier(tp), self._committed_offset[tp]
        self._acked[tp].clear()
        self._acked_index[tp].clear()
        return None if frontier is None or (committed is not None and frontier <= committed) else frontier

    async def ends(self, partitions: set[TP]) -> Mapping[TP, int]:
        """Where the committed records of these partitions end."""
        consumer = self._thread._ensure_consumer()  # noqa: SLF001  # ours, and its thread is the one to ask
        found = await self._thread.call_thread(consumer.end_offsets, partitions)
        return {TP(tp.topic, tp.partition): end for tp, end in found.items()}


class CommittedTransport(driver.Transport):
    """A transport whose consumers read committed records; `dialect` is how to reach the brokers."""

    Consumer: ClassVar[type[CommittedConsumer]] = CommittedConsumer
    dialect: Mapping[str, Any] = {}
