"""The router of a process manager: reads events, writes inputs of instances, and reports event time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

import aiokafka
from aiokafka.errors import KafkaError
from faust.types import TP

from leftfold.engine.archive.gaps import cut_source, unrouted
from leftfold.engine.processing.log_time import SILENCE, SourceTime, Watermark
from leftfold.engine.processing.process_wire import MAX_BYTES, NO_INPUT, Router, Unusable, unroutable
from leftfold.engine.progress import ReportLimiter
from leftfold.errors import ContractError, LeftfoldError
from leftfold.faust.transport import (
    BundlingTransport,
    OrderedProgress,
    Tableless,
    bundled,
    faust_app,
    start,
    translated,
)
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.encoding import time_at, time_in
from leftfold.model.keys import partition_of
from leftfold.ports.bulk import OffsetRange
from leftfold.ports.codec import header
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import RawRecord

__all__ = ["Clock", "InputProducer", "route"]


_MOST, _BATCH = 5000, 262_144
"""Maximum number of unacknowledged records, and bytes of a batch."""


class InputProducer:
    """A producer of process inputs with a callback per written record; `ends` are the known next offsets."""

    def __init__(self, dialect: Mapping[str, Any], topic: str, partitions: int, max_bytes: int = MAX_BYTES) -> None:
        self._dialect, self._topic, self._partitions, self._max_bytes = dialect, topic, partitions, max_bytes
        self.ends: dict[int, int] = {}
        self._open = asyncio.Semaphore(_MOST)
        self._is_broken = False
        """Whether a record was not written; then no later one may be."""

    async def start(self, failed: Callable[[BaseException], None]) -> None:
        """Connects to the brokers; `failed` is called with the error of a record that is not written."""
        self._failed = failed
        self._producer = aiokafka.AIOKafkaProducer(
            **self._dialect,
            enable_idempotence=True,
            acks="all",
            linger_ms=2,
            request_timeout_ms=20_000,
            max_batch_size=_BATCH,
            max_request_size=self._max_bytes,
        )
        try:
            await self._producer.start()
        except KafkaError as error:
            raise translated(error, f"connecting to write to {self._topic}") from error

    async def stop(self) -> None:
        """Writes the pending records and disconnects, unless a record has failed."""
        await self._producer.stop()

    async def draw_line(self) -> None:
        """Writes a record that is not an input to every partition; records of other writers come before it.

        The end offset of a partition cannot be used: it is after transaction markers, which readers never reach.
        """
        headers: Any = NO_INPUT
        for partition in range(self._partitions):
            sent = await self._producer.send(self._topic, b"{}", b"@", partition=partition, headers=headers)
            # Retrieves the exception, since no caller may wait for it any longer when it fails.
            sent.add_done_callback(lambda written: written.cancelled() or written.exception())
            place = await sent
            self.ends[partition] = max(place.offset + 1, self.ends.get(partition, 0))

    async def send(
        self, source: RawRecord, out: Outgoing | None, done: Callable[[RawRecord], None], topic: str = ""
    ) -> None:
        """Writes a record, or nothing if `out` is None; `done` is called once it is written.

        Args:
            topic: the topic to write to, if not that of the inputs.
        """
        if out is None:
            done(source)
            return
        await self._open.acquire()
        if self._is_broken:
            await asyncio.Event().wait()
        headers: Any = list(out.headers)
        to = topic or self._topic
        sent = await self._producer.send(to, out.value, out.key, partition=out.partition, headers=headers)
        sent.add_done_callback(lambda written: self._written(source, written, done, to))

    async def tell(self, topic: str, value: bytes) -> None:
        """Writes a value to another topic and waits for the acknowledgement."""
        await self._producer.send_and_wait(topic, value, partition=0)

    def _written(
        self, source: RawRecord, written: asyncio.Future[Any], done: Callable[[RawRecord], None], topic: str
    ) -> None:
        self._open.release()
        error = None if written.cancelled() else written.exception()
        if written.cancelled() or error is not None:
            where = f"{source.topic}[{source.partition}]@{source.offset}"
            failure = translated(error or asyncio.CancelledError(), f"the input for {where} is not written to {topic}")
            if not self._is_broken:
                self._give_up(failure)
            self._failed(failure)
            return
        if topic == self._topic:
            place = written.result()
            self.ends[place.partition] = max(place.offset + 1, self.ends.get(place.partition, 0))
        done(source)

    def _give_up(self, failure: LeftfoldError) -> None:
        """Stops the producer, since no record after a failed one may be written.

        A process instance that saw a later input would treat the failed one as a duplicate afterwards. The sequence
        numbers of an idempotent producer do not prevent this: from a producer that has not written to a partition yet,
        or not for a day, brokers accept any number.
        """
        self._is_broken = True
        self._producer._sender.sender_task.cancel()  # noqa: SLF001  # no public way ends it without writing on
        self._producer._message_accumulator.fail_all(failure)  # noqa: SLF001


class Clock:
    """Tracks the event time of each source partition of this router, and writes watermarks at each tick."""

    def __init__(self, sender: InputProducer, topic: str) -> None:
        self._sender, self._topic = sender, topic
        self._since: dict[TP, datetime] = {}
        self._last: dict[TP, SourceTime] = {}
        self._ahead: dict[TP, dict[int, SourceTime]] = {}

    def routed(self, consumer: Any, record: RawRecord) -> None:
        """Records the time of an event that is routed or needs no input; ignored if its partition was revoked."""
        tp = TP(record.topic, record.partition)
        if consumer.progress.done(tp, record.offset) and (time := time_in(header(record.headers, "ce_time"))):
            self._ahead.setdefault(tp, {})[record.offset] = SourceTime(time, time_at(record.time))

    async def tick(self, consumer: Any) -> None:
        """Writes a watermark with the time of every assigned source partition."""
        sources = {tp for tp in consumer.assignment() if tp in consumer.progress.position}
        now = datetime.now(UTC)
        if sources - self._since.keys():
            await self._sender.draw_line()
        self._since = {tp: self._since.get(tp, now) for tp in sources}
        for known in (self._last, self._ahead):
            for tp in known.keys() - sources:
                del known[tp]
        if not sources:
            return
        ends = await consumer.ends(sources)
        times = {f"{tp.topic}/{tp.partition}": self._time(consumer, tp, ends[tp], now) for tp in sources}
        await self._sender.tell(self._topic, Watermark(times, dict(self._sender.ends)).encode())

    def _time(self, consumer: Any, tp: TP, end: int, now: datetime) -> SourceTime:
        frontier, ahead = consumer.progress.frontier(tp) or 0, self._ahead.get(tp, {})
        routed = [offset for offset in ahead if offset < frontier]
        if routed:
            self._last[tp] = ahead[max(routed)]
            self._ahead[tp] = {offset: at for offset, at in ahead.items() if offset >= frontier}
        last = self._last.get(tp)
        if not consumer.progress.is_through(tp, end):
            return last or SourceTime()
        if last is not None:
            return SourceTime(last.time, last.appended, now)
        # Another router routed the last event, and only that router knows its time; after a minute of silence it no
        # longer matters.
        return SourceTime(end=now) if not end or now - self._since[tp] >= SILENCE else SourceTime()


Report = Callable[[str, Mapping[str, Any]], None]
_TICK_SECONDS, _TICK_MOST = 0.2, 30.0
_BUNDLES = 32
"""Maximum number of fetched bundles that wait to be routed."""


def route(
    app: App,
    name: str,
    dialect: Mapping[str, Any],
    partitions: int,
    stop: threading.Event,
    report: Report,
    *,
    passed_over: Callable[[], Collection[str]] = tuple,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Routes the events of a process until `stop` is set; several routers share the event partitions.

    An event is acknowledged once its input is written. Every failure ends the router, so no event is skipped; inputs
    that were written but not acknowledged are written again by the next router, and are ignored as duplicates. An event
    whose value cannot become an input goes to `{name}.dead` with the reason, since a client may have chosen that value.

    Args:
        dialect: aiokafka's connection settings. partitions: the partition count of `{name}.commands`.
        passed_over: returns the events to skip if they cannot be routed, as `topic/partition/offset`; called in a
            separate thread whenever an event cannot be routed.
        max_bytes: maximum size of a record batch in `{name}.commands` and `{name}.dead`.

    Raises:
        ContractError: an event cannot be routed. InfrastructureError: no broker, or an input that is not written.
        LogGap: events were deleted before they were routed. ConfigurationError: a topic ends before the routed offset.
    """
    asyncio.run(_Routing(app, name, dialect, partitions, report, passed_over, max_bytes).until(stop))


class _Routing:
    def __init__(
        self,
        app: App,
        name: str,
        dialect: Mapping[str, Any],
        partitions: int,
        report: Report,
        passed_over: Callable[[], Collection[str]],
        max_bytes: int,
    ) -> None:
        self._process, self._report, self._read_skipped = app.process(name), report, passed_over
        self._skipped: Collection[str] = ()
        self._seldom, self._dead = ReportLimiter(report, time.monotonic), 0
        self._router = Router(app.name, self._process, lambda key: partition_of(key, partitions), max_bytes=max_bytes)
        self._sender = InputProducer(dialect, names.commands(name), partitions, max_bytes)
        self._faust = faust_app(
            names.routing(app.name, name),
            dialect,
            BundlingTransport,
            Tableless,
            stream_buffer_maxsize=_BUNDLES,
        )
        self._clock = Clock(self._sender, names.time(name))
        for category in self._process.categories:
            self._listen(names.events(category))

    async def until(self, stop: threading.Event) -> None:
        """Runs until the event is set, then finishes the pending records."""
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._sender.start(self._failed)
        revoked: Any = self._faust.on_partitions_revoked
        revoked.connect(self._revoked, weak=True)  # signals belong to the class and would keep this object alive
        try:
            await start(self._faust, stop, self._failure)
            self._report("routing", {"process": self._process.name, "from": ", ".join(self._process.categories)})
            while not stop.is_set() and not self._failure.done():
                await asyncio.wait([self._failure], timeout=_TICK_SECONDS)
                if self._faust.crash_reason is not None:
                    raise translated(self._faust.crash_reason, "Faust has given up")
                await self._turn()
        finally:
            await self._faust.stop()
            await self._sender.stop()
        if self._failure.done():
            self._failure.result()

    async def _turn(self) -> None:
        """Checks for lost events, and writes the watermark."""
        try:
            await self._check_whole()
            await asyncio.wait_for(self._clock.tick(self._faust.consumer), _TICK_MOST)
        except (TimeoutError, KafkaError) as error:
            doing = f"no broker answered the router of {self._process.name} within {_TICK_MOST:g} s"
            raise translated(error, doing) from error

    async def _check_whole(self) -> None:
        """Checks that the next events of this router can be read.

        Raises:
            LogGap: they were deleted. ConfigurationError: their topic ends before them.
        """
        consumer: Any = self._faust.consumer
        for tp, offset in consumer.lost.items():
            starts = await asyncio.wait_for(consumer.starts({tp}), _TICK_MOST)
            if starts[tp] <= offset:
                ends = await asyncio.wait_for(consumer.ends({tp}), _TICK_MOST)
                raise cut_source(self._process.name, tp.topic, tp.partition, offset, ends[tp])
            raise unrouted(self._process.name, OffsetRange(tp.topic, tp.partition, offset, starts[tp]))

    def _listen(self, topic: str) -> None:
        raw: Any = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
        source = self._faust.topic(topic, **raw)

        async def agent(stream: Any) -> None:
            async for event in stream.noack().events():
                await self._route(event)

        self._faust.agent(source, name=topic)(agent)

    async def _route(self, event: Any) -> None:
        left = len(event.message.value)
        progress, tp = self._progress, TP(event.message.topic, event.message.partition)

        def done(record: RawRecord) -> None:
            nonlocal left
            left -= 1
            self._clock.routed(self._faust.consumer, record)
            if not left:
                event.ack()

        try:
            for record in bundled(event.message):
                progress.began(tp, record.offset)
                out, topic = None, ""
                try:
                    out = self._router.route(record)
                except Unusable as error:
                    out, topic = error.letter, names.dead(self._process.name)
                    self._bury(record, error)
                except ContractError as error:
                    await self._check_skipped(record, error)
                await self._sender.send(record, out, done, topic)
        except Exception as error:  # noqa: BLE001  # whatever it is, this event is not skipped
            self._failed(error)
            await asyncio.Event().wait()

    async def _check_skipped(self, record: RawRecord, error: ContractError) -> None:
        source = f"{record.topic}/{record.partition}/{record.offset}"
        if source not in self._skipped:
            self._skipped = await asyncio.to_thread(self._read_skipped)
        if source not in self._skipped:
            raise unroutable(self._process.name, record, error) from error
        self._report("event passed over", {"process": self._process.name, "at": source, "reason": str(error)})

    def _bury(self, record: RawRecord, error: Unusable) -> None:
        self._dead += 1
        place = f"{record.topic}[{record.partition}]@{record.offset}"
        details = {"process": self._process.name, "at": place, "reason": str(error), "dead": self._dead}
        self._seldom.report("event dead-lettered", details)

    @property
    def _progress(self) -> OrderedProgress:
        consumer: Any = self._faust.consumer
        return consumer.progress  # type: ignore[no-any-return]  # ours, made by our transport

    async def _revoked(self, app: Any, revoked: Any, **_: Any) -> None:
        self._progress.forget()

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, LeftfoldError):
            error = translated(error, f"the router of {self._process.name} failed")
        if not self._failure.done():
            self._failure.set_exception(error)
