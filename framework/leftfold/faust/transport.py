"""A Faust transport for committed records, with reliable positions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

import aiokafka
from aiokafka import errors
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from faust.transport.drivers import aiokafka as driver
from faust.transport.producer import ProducerBuffer
from faust.types import TP
from faust.types.tuples import FutureMessage

from leftfold.errors import InfrastructureError, LeftfoldError, refused
from leftfold.ports.outgoing import reason_of
from leftfold.ports.protocols import RawRecord

__all__ = [
    "CommittedConsumer",
    "CommittedProducer",
    "CommittedThread",
    "FetchProgress",
    "record_of",
    "translated",
]


class FetchProgress:
    """The read progress of partitions: the `position` after the last fetch, and the unprocessed records.

    Faust fetches some records twice when its tables are restored, but does not deliver them twice, so processed records
    stay processed.
    """

    def __init__(self) -> None:
        self.position: dict[TP, int] = {}
        self._open: dict[TP, set[int]] = {}
        self._done: dict[TP, set[int]] = {}
        self._through: dict[TP, int] = {}

    def fetched(self, positions: Mapping[TP, int], records: Mapping[TP, list[Any]]) -> None:
        """Registers the records of a fetch, and the consumer's positions after it."""
        for tp, found in records.items():
            through = self._through[tp] = max(self._through.get(tp, 0), self.frontier(tp) or 0)
            done = self._done[tp] = {offset for offset in self._done.get(tp, ()) if offset >= through}
            offsets = {record.offset for record in found if record.offset >= through}
            self._open.setdefault(tp, set()).update(offsets - done)
        self.position.update(positions)

    def done(self, tp: TP, offset: int) -> bool:
        """Marks a record as processed; False if it was fetched before a rebalance."""
        if offset not in (still := self._open.get(tp, set())):
            return False
        still.remove(offset)
        self._done.setdefault(tp, set()).add(offset)
        return True

    def frontier(self, tp: TP) -> int | None:
        """The first unprocessed offset; None if nothing has been fetched."""
        return min(self._open[tp]) if self._open.get(tp) else self.position.get(tp)

    def frontier_without(self, tp: TP, done: Collection[int]) -> int | None:
        """The `frontier` as if these records were processed, too."""
        still = self._open.get(tp, set()).difference(done)
        return min(still) if still else self.position.get(tp)

    def forget(self) -> None:
        """Clears all progress after a rebalance."""
        for known in (self.position, self._open, self._done, self._through):
            known.clear()


def record_of(message: Any) -> RawRecord:
    """The record in a Faust message."""
    headers, time_ms = tuple(message.headers or ()), int((message.timestamp or 0) * 1000)
    return RawRecord(message.topic, message.partition, message.offset, message.key, message.value, headers, time_ms)


_KNOWN_SECONDS = 30.0
"""How long brokers may take to list a topic that they have created."""


class CommittedThread(driver.AIOKafkaConsumerThread):
    """Faust's consumer thread with a read_committed consumer, and fetches that are tracked across seeks."""

    consumer: CommittedConsumer
    seeks: int = 0
    """The number of seeks to the committed offsets so far."""
    fetched_after: int = 0
    """The value of `seeks` before the current fetch."""
    known_after: int = 0
    """The value of `seeks` when the progress was last cleared."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._untaken: dict[int, tuple[Mapping[TP, list[Any]], dict[TP, int], int]] = {}
        """Fetches that are not delivered yet, by the id of their records: (records, positions and `seeks` after it)."""

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
        self._untaken[id(records)] = records, _positions(consumer), self.seeks
        return records

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Joins the group once the brokers list the tables' new topics, which Faust would otherwise take for empty.

        Raises:
            InfrastructureError: a topic is not listed in time.
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
        """Seeks to the committed offsets, or to the first record; aiokafka would continue after its last fetch.

        Faust drops records that were fetched before its tables were restored, so they must be fetched again.
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
        """Seeks all partitions without a fetch in between.

        aiokafka asks for offsets and seeks one partition after another; a fetch that Faust has abandoned may meanwhile
        take records from partitions that are already at their new offset.
        """
        is_earliest = self.app.conf.consumer_auto_offset_reset == "earliest"
        for tp in consumer.assignment() & committed.keys():
            if committed[tp] or (is_earliest and self.consumer.is_ours(TP(tp.topic, tp.partition))):
                consumer.seek(tp, committed[tp] or 0)

    @property
    def refusal(self) -> BaseException | None:
        """Why the brokers refuse to let it join its group; aiokafka raises it in a fetch, but Faust joins before."""
        return getattr(getattr(self._consumer, "_coordinator", None), "_pending_exception", None)

    async def getmany(self, active_partitions: Any, timeout: float) -> Any:
        """Fetches a batch of records and registers them; records fetched before a seek are fetched again.

        When Faust suspends its flow it cancels the wait for a fetch, not the fetch. That fetch may take records after
        the next seek, which no stream receives, so they are fetched again, too.
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
        """Registers records in the progress and returns them."""
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
    """The topics that the brokers do not list."""
    cluster = await client.fetch_all_metadata()
    return sorted(topic for topic in topics if not cluster.partitions_for_topic(topic))


def _positions(consumer: Any) -> dict[TP, int]:
    """The consumer's positions, of the partitions that have one."""
    assignment = consumer._subscription.subscription.assignment  # noqa: SLF001  # no public way says it at once
    states = {tp: assignment.state_value(tp) for tp in assignment.tps} if assignment is not None else {}
    known = {tp: state.position for tp, state in states.items() if state is not None and state.has_valid_position}
    return {TP(tp.topic, tp.partition): position for tp, position in known.items()}


def _firsts(fetches: Iterable[Mapping[TP, list[Any]]], ours: Callable[[TP], bool]) -> dict[TP, int]:
    """The first offset of each event partition in some fetches."""
    firsts: dict[TP, int] = {}
    for fetch in fetches:
        for tp, records in fetch.items():
            if records and ours(tp):
                firsts[tp] = min(firsts.get(tp, records[0].offset), records[0].offset)
    return firsts


class CommittedConsumer(driver.Consumer):
    """A Faust consumer of committed records."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.progress = FetchProgress()
        self._sought: int | None = None
        super().__init__(*args, **options)

    def is_ours(self, tp: TP) -> bool:
        """Whether a partition holds events; Faust handles the others, such as changelogs of tables."""
        transport: Any = self.transport
        sources: frozenset[str] | None = transport.sources
        return sources is None or tp.topic in sources

    def _new_consumer_thread(self) -> driver.AIOKafkaConsumerThread:
        return CommittedThread(self, loop=self.loop, beacon=self.beacon)

    def _new_offset(self, tp: TP) -> int | None:
        """The offset to commit: the first unprocessed one. Faust itself would count an event after a gap as the gap."""
        if not self.is_ours(tp):
            offset: int | None = super()._new_offset(tp)
            return offset
        frontier, committed = self.progress.frontier(tp), self._committed_offset[tp]
        transport: Any = self.transport
        if frontier is not None:  # transaction markers move it on before the rows are written up to there
            frontier = min(frontier, transport.stored.get(tp, frontier))
        self._acked[tp].clear()
        self._acked_index[tp].clear()
        return None if frontier is None or (committed is not None and frontier <= committed) else frontier

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        """Commits offsets once the brokers have all changes of tables; no start reads the events before them again."""
        producer: Any = self.app.producer
        if not await producer.has_sent():
            return False
        return bool(await super()._commit_offsets(offsets, start_new_transaction=start_new_transaction))

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """Yields the next messages; events wait until the streams accept them.

        Faust reads events before it has restored its tables and sought the committed offsets, so its streams would skip
        them or receive them twice.
        """
        async for tp, message in super().getmany(timeout):
            if not self.is_ours(tp) or await self._is_awaited(tp):
                yield tp, message

    async def perform_seek(self) -> None:
        """Seeks to the committed offsets, as Faust does after each assignment before it uses the partitions."""
        generation, self._sought = self.app.consumer_generation_id, None
        try:
            await super().perform_seek()
        finally:
            self._sought = generation

    async def _is_awaited(self, tp: TP) -> bool:
        """Waits until the streams accept events; False if this fetch is to be read again."""
        thread: Any = self._thread
        generation = self.app.consumer_generation_id
        while self._sought != generation or not self.app.flow_control.is_active():
            if not self.flow_active or tp not in self._get_active_partitions() or self.should_stop:
                return False
            if self.app.consumer_generation_id != generation:
                return False
            await asyncio.sleep(0.005)
        return bool(thread.fetched_after == thread.seeks)


class _Buffer(ProducerBuffer):
    """Faust's buffer, of which a crash leaves the rest: an error of its own would hide the reason, and end the stop."""

    async def flush_atmost(self, max_messages: int | None) -> int:
        try:
            return int(await super().flush_atmost(max_messages))
        except RuntimeError:
            if self.crashed:
                return 0
            raise


class CommittedProducer(driver.Producer):
    """Faust's producer, which knows what was sent by `send_soon`, as changes of tables are, and is on no broker yet.

    Faust only logs that brokers refuse a change, and its `flush` gives up when nothing could be sent for 0.1 s.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self._unsent: set[FutureMessage] = set()
        super().__init__(*args, **options)
        self.buffer = _Buffer(loop=self.loop, beacon=self.beacon)
        self.buffer.app = self.app

    def send_soon(self, fut: FutureMessage) -> None:
        """Sends a message later, which counts as not sent until a broker has it."""
        self._unsent.add(fut)
        fut.add_done_callback(self._sent)
        super().send_soon(fut)

    def _sent(self, message: Any) -> None:
        if message.cancelled() or message.exception() is None:
            self._unsent.discard(message)

    async def has_sent(self) -> bool:
        """Waits until the brokers have what was sent so far; False if they lack some of it, which ends the App."""
        if not (unsent := list(self._unsent)):
            return True
        answers = asyncio.wait(unsent, return_when=asyncio.FIRST_EXCEPTION)
        await self.wait(answers, timeout=self.request_timeout)  # ends early when Faust crashes
        lacking = [message for message in unsent if message in self._unsent]
        if lacking and not self.should_stop:
            await self.crash(self._lost(next((message for message in lacking if message.done()), lacking[0])))
        return not lacking

    def _lost(self, message: FutureMessage) -> LeftfoldError:
        topic = message.message.channel.get_topic_name()
        text = f"topic {topic} lacks what a stream has changed, so its events are not committed"
        error = message.exception() if message.done() else None
        if error is None:
            return InfrastructureError(
                f"{text}: no answer in {self.request_timeout:g} s; is the broker well? leftfold doctor"
            )
        if isinstance(error, errors.MessageSizeTooLargeError | errors.RecordListTooLargeError):
            advice = "raise max.message.bytes of the topic, or keep less in an entry of the table"
            return InfrastructureError(f"{text}: {reason_of(error)}; {advice}")
        return translated(error, text)


class CommittedTransport(driver.Transport):
    """A Faust transport whose consumers read committed records.

    `dialect` are aiokafka's connection settings; `sources` the topics with events, None = all topics that are read.
    `stored` is the next offset of each partition that the rows of views include; none behind it is committed, since the
    next start would believe that the store has lost data.
    """

    Consumer: ClassVar[type[CommittedConsumer]] = CommittedConsumer
    Producer: ClassVar[type[CommittedProducer]] = CommittedProducer
    dialect: Mapping[str, Any] = {}
    sources: frozenset[str] | None = None
    stored: Mapping[TP, int] = {}


_NOT_ALLOWED = (
    errors.AuthenticationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.SaslAuthenticationFailed,
    errors.TopicAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)


def translated(error: BaseException, doing: str) -> LeftfoldError:
    """The Leftfold error for an error of Faust or aiokafka; `doing` is what was tried, as the first words.

    A Leftfold error stays as it is.
    """
    if isinstance(error, LeftfoldError):
        return error
    text = f"{doing}: {reason_of(error)}"
    return refused(text) if isinstance(error, _NOT_ALLOWED) else InfrastructureError(text)
