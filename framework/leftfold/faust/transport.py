"""Faust's transport as its guarantees need it: committed records only, and word of how far it has read.

Faust's own consumer reads what was aborted unless it writes transactions itself, which is broken (faust#517).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, ClassVar

import aiokafka
from aiokafka import errors as kafka_errors
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from leftfold.errors import InfrastructureError
from leftfold.faust.progress import Progress

__all__ = ["CommittedConsumer", "CommittedThread", "CommittedTransport"]

_KNOWN_SECONDS = 30.0
"""How long the brokers may take to know a topic that they have made."""


class CommittedThread(driver.AIOKafkaConsumerThread):
    """Reads with the consumer that we make."""

    consumer: CommittedConsumer
    seeks: int = 0
    """How often it went back to what is committed: by now, before the fetch in use, and when progress began."""
    fetched_after: int = 0
    known_after: int = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._untaken: dict[int, tuple[Mapping[TP, list[Any]], dict[TP, int], int]] = {}
        """Fetches not taken yet, by the id of their records: with the positions and the `seeks` behind them."""

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        conf = self.app.conf
        tables = bool(self.app.tables.changelog_topics) or conf.table_standby_replicas > 0
        self._assignor = self.app.assignor if tables else RoundRobinPartitionAssignor
        return aiokafka.AIOKafkaConsumer(
            **transport.dialect,
            group_id=conf.id,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="none" if transport.whole else conf.consumer_auto_offset_reset,
            max_poll_records=conf.broker_max_poll_records,
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            fetch_max_wait_ms=50,
            check_crcs=True,
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
            isolation_level="read_committed",
        )

    async def _fetch_records(self, consumer: Any, *args: Any, **options: Any) -> Any:
        while True:
            try:
                records = await super()._fetch_records(consumer, *args, **options)
                break
            except kafka_errors.NoOffsetForPartitionError as error:
                # Nobody has read it: it begins with its first record, not with the first one that is left.
                consumer.seek(error.args[0], 0)
            except kafka_errors.OffsetOutOfRangeError as error:
                self.consumer.lost |= {TP(tp.topic, tp.partition): offset for tp, offset in error.args[0].items()}
                return {}
        self._untaken[id(records)] = records, _positions(consumer), self.seeks
        return records

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Joins once the brokers know the tables' topics, which were made just now: Faust would take them for empty.

        Raises:
            InfrastructureError: they do not know one in time.
        """
        if tables := set(topics) & self.app.tables.changelog_topics:
            await self.call_thread(self._until_known, tables)
        await super().subscribe(topics)

    async def _until_known(self, topics: set[str]) -> None:
        client = self._ensure_consumer()._client  # noqa: SLF001  # no public way asks for metadata
        end = time.monotonic() + _KNOWN_SECONDS
        while missing := await _unknown(client, topics):
            if time.monotonic() > end:
                raise InfrastructureError(
                    f"the brokers do not know {', '.join(missing)}, made {_KNOWN_SECONDS:g} s ago for tables; "
                    "see whether they are well: leftfold doctor; then run it again"
                )
            await asyncio.sleep(0.05)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """What is not committed is read from its first record again; aiokafka would read on behind what it has fetched.

        Faust drops what was fetched before its tables were restored: nobody would ever see that.
        """
        committed: Mapping[TP, int] = await self.call_thread(self._to_committed)
        return committed

    async def _to_committed(self) -> Mapping[TP, int]:
        consumer = self._ensure_consumer()
        committed: Mapping[TP, int] = await consumer.seek_to_committed()
        self._seek_at_once(consumer, committed)
        self.seeks += 1
        return committed

    def _seek_at_once(self, consumer: Any, committed: Mapping[TP, int]) -> None:
        """Seeks all partitions with no fetch in between.

        aiokafka asks and seeks one after another: a fetch that Faust has left alone may meanwhile take what is behind
        those it has sought already.
        """
        is_earliest = self.app.conf.consumer_auto_offset_reset == "earliest"
        for tp in consumer.assignment() & committed.keys():
            if committed[tp] or (is_earliest and self.consumer.is_ours(TP(tp.topic, tp.partition))):
                consumer.seek(tp, committed[tp] or 0)

    @property
    def refusal(self) -> BaseException | None:
        """Why the brokers do not let it join its group: aiokafka tells that who fetches, and Faust joins first."""
        return getattr(getattr(self._consumer, "_coordinator", None), "_pending_exception", None)

    async def getmany(self, active_partitions: Any, timeout: float) -> Any:
        """A batch of records, of which our progress then knows; what was fetched before a seek is fetched again.

        When Faust suspends its flow it cancels the wait for a fetch, not the fetch. That may take records behind the
        next seek, which no stream gets: they are fetched again, too.
        """
        records = await super().getmany(active_partitions, timeout)
        _, positions, self.fetched_after = self._untaken.pop(id(records), (records, {}, self.seeks))
        left, self._untaken, ours = self._untaken, {}, self.consumer.is_ours
        dropped = [found for found, _, seeks in left.values() if seeks == self.seeks and any(map(ours, found))]
        if dropped:
            await self.call_thread(self._back_to, _firsts([*dropped, records], ours))
        elif self.fetched_after == self.seeks:
            return self._known(records, positions, ours)
        return {tp: found for tp, found in records.items() if not ours(tp)}

    def _known(self, records: Any, positions: dict[TP, int], ours: Callable[[TP], bool]) -> Any:
        """The same records, once progress knows of them."""
        if self.known_after != self.seeks:
            self.known_after = self.seeks
            self.consumer.progress.forget()
        fetched = {tp: found for tp, found in records.items() if ours(tp)}
        self.consumer.progress.fetched({tp: position for tp, position in positions.items() if ours(tp)}, fetched)
        return records

    async def _back_to(self, offsets: Mapping[TP, int]) -> None:
        consumer = self._ensure_consumer()
        for tp, position in _positions(consumer).items():
            if position > offsets.get(tp, position):
                consumer.seek(tp, offsets[tp])


async def _unknown(client: Any, topics: set[str]) -> list[str]:
    """Which of these topics the brokers do not know."""
    cluster = await client.fetch_all_metadata()
    return sorted(topic for topic in topics if not cluster.partitions_for_topic(topic))


def _positions(consumer: Any) -> dict[TP, int]:
    """Where a consumer reads on, of the partitions for which it knows that by now."""
    assignment = consumer._subscription.subscription.assignment  # noqa: SLF001  # no public way says it at once
    states = {tp: assignment.state_value(tp) for tp in assignment.tps} if assignment is not None else {}
    known = {tp: state.position for tp, state in states.items() if state is not None and state.has_valid_position}
    return {TP(tp.topic, tp.partition): position for tp, position in known.items()}


def _firsts(fetches: Iterable[Mapping[TP, list[Any]]], ours: Callable[[TP], bool]) -> dict[TP, int]:
    """Where each of our partitions begins in some fetches."""
    firsts: dict[TP, int] = {}
    for fetch in fetches:
        for tp, records in fetch.items():
            if records and ours(tp):
                firsts[tp] = min(firsts.get(tp, records[0].offset), records[0].offset)
    return firsts


class CommittedConsumer(driver.Consumer):
    """A consumer of committed records; `lost` are offsets from which it should read on and cannot."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.progress = self._made()
        self.lost: dict[TP, int] = {}
        self._sought: int | None = None
        super().__init__(*args, **options)

    def _made(self) -> Progress:
        return Progress()

    def is_ours(self, tp: TP) -> bool:
        """Whether these are events; others, such as changelogs of tables, are Faust's business."""
        transport: Any = self.transport
        sources: frozenset[str] | None = transport.sources
        return sources is None or tp.topic in sources

    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return CommittedThread(self, loop=self.loop, beacon=self.beacon)

    def _new_offset(self, tp: TP) -> int | None:
        """What is committed: nothing that is not routed. Faust itself counts an event behind a gap with the gap."""
        if not self.is_ours(tp):
            return self._acked_offset(tp)
        frontier, committed = self.progress.frontier(tp), self._committed_offset[tp]
        self._acked[tp].clear()
        self._acked_index[tp].clear()
        return None if frontier is None or (committed is not None and frontier <= committed) else frontier

    @property
    def refusal(self) -> BaseException | None:
        """Why the brokers do not let it join its group."""
        refusal: BaseException | None = self._thread.refusal  # type: ignore[attr-defined]  # a thread of ours
        return refusal

    async def starts(self, partitions: set[TP]) -> Mapping[TP, int]:
        """Where these partitions begin by now."""
        consumer = self._thread._ensure_consumer()  # noqa: SLF001  # ours, and its thread is the one to ask
        found = await self._thread.call_thread(consumer.beginning_offsets, partitions)
        return {TP(tp.topic, tp.partition): start for tp, start in found.items()}

    def _acked_offset(self, tp: TP) -> int | None:
        """What Faust itself would commit."""
        offset: int | None = super()._new_offset(tp)
        return offset

    async def ends(self, partitions: set[TP]) -> Mapping[TP, int]:
        """Where the committed records of these partitions end."""
        consumer = self._thread._ensure_consumer()  # noqa: SLF001  # ours, and its thread is the one to ask
        found = await self._thread.call_thread(consumer.end_offsets, partitions)
        return {TP(tp.topic, tp.partition): end for tp, end in found.items()}

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """The next messages; events wait until streams take them.

        Faust has events read before it has restored its tables and gone back to what is committed: its streams would
        pass them over, or get them again.
        """
        async for tp, message in super().getmany(timeout):
            if not self.is_ours(tp) or await self._is_awaited(tp):
                yield tp, message

    async def perform_seek(self) -> None:
        """Goes back to what is committed, as Faust does whenever it is given partitions, before it uses them."""
        generation, self._sought = self.app.consumer_generation_id, None
        try:
            await super().perform_seek()
        finally:
            self._sought = generation

    async def _is_awaited(self, tp: TP) -> bool:
        """Waits until streams go on; False when what was fetched with it is read again."""
        thread: Any = self._thread
        generation = self.app.consumer_generation_id
        while self._sought != generation or not self.app.flow_control.is_active():
            if not self.flow_active or tp not in self._get_active_partitions() or self.should_stop:
                return False
            if self.app.consumer_generation_id != generation:
                return False
            await asyncio.sleep(0.005)
        return bool(thread.fetched_after == thread.seeks)


class CommittedTransport(driver.Transport):
    """A transport whose consumers read committed records.

    `dialect` is how to reach the brokers, `sources` which topics hold events, None = all that are read. `whole` says
    that every record counts: a partition that nobody has read begins with its first one, and where that, or the next
    one, is gone nothing is read.
    """

    Consumer: ClassVar[type[CommittedConsumer]] = CommittedConsumer
    dialect: Mapping[str, Any] = {}
    whole: bool = False
    sources: frozenset[str] | None = None
