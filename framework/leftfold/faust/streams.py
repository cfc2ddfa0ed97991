"""Faust for users: their own agents, tables and windows over typed events, and views of what comes of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

import aiokafka
from faust.types import TP
from typing_extensions import TypeForm, TypeVar

from leftfold import names
from leftfold.app import App
from leftfold.codec import MessageCodec, read_recorded
from leftfold.engine.hole import hole, unreachable
from leftfold.engine.streamed_rows import StreamedRows
from leftfold.envelope import Recorded
from leftfold.errors import ConfigurationError, Fenced, InfrastructureError, LeftfoldError
from leftfold.faust.apps import faust_app
from leftfold.faust.records import record_of
from leftfold.messages import Event
from leftfold.position import Position
from leftfold.unions import members

__all__ = ["EventStreams", "Work"]

E = TypeVar("E", bound=Event)
Work: TypeAlias = Callable[[AsyncIterator[Recorded[E]]], Awaitable[None]]
"""What a user writes: it goes through the events that it is given, for ever."""
Report: TypeAlias = Callable[[str, Mapping[str, Any]], None]
_TICK_SECONDS = 0.5


class _Typed:
    """What an agent has been given: `is_over` when Faust has stopped it, `begun` are partitions it has events of."""

    def __init__(self) -> None:
        self.is_over = False
        self.begun: set[TP] = set()


class EventStreams:
    """An App of Faust (`faust`: make tables with it) whose agents get committed events, decoded and upcast.

    An event is acknowledged when the agent asks for the next one, and what it put into rows is written; so whoever
    is killed does some events again. An agent that fails ends the App, and nothing is passed over.

    Args:
        name: part of the consumer group and of the changelogs of tables.
        dialect: how aiokafka reaches the brokers, as `KafkaSettings.aiokafka()` says.
        rows: of a view that is kept here; then this process must be the only one.
        settings: of Faust, such as `store="rocksdb://"` or `topic_replication_factor=3`.

    Raises:
        Fenced: another process has taken over the view just now.
    """

    def __init__(
        self,
        app: App,
        name: str,
        dialect: Mapping[str, Any],
        *,
        rows: Sequence[StreamedRows[Any, Any]] = (),
        report: Report = lambda what, details: None,
        **settings: Any,
    ) -> None:
        self._name, self._dialect, self._rows, self._report = name, dialect, tuple(rows), report
        ids = [view_rows.open().id for view_rows in self._rows]
        self.id = ".".join(["leftfold", app.name, name, "stream", *ids])
        tables = {"topic_allow_declare": True, "topic_partitions": app.partitions}
        self.faust = faust_app(self.id, dialect, **{**tables, **settings})
        self._sources: set[str] = set()
        self._acked: list[tuple[TP, int]] = []
        self._written = Position()
        self._ends = Position()
        self._agents = 0
        self._typings: list[_Typed] = []

    def agent(self, events: TypeForm[E], work: Work[E]) -> None:
        """Has `work` go through every event of a closed union, of any category; each partition in its order.

        Inside, tables may be read and written as in any agent of Faust. The time of windows is that of the event
        (`ce_time`), not when it was appended.
        """
        self._agents += 1
        where = f"{self._name}.{self._agents}"
        classes = members(events, Event, f"agent {where}: events")
        topics = [names.events(category) for category in sorted({cls.__leftfold__.category for cls in classes})]
        self._sources.update(topics)
        raw: Any = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
        codec: MessageCodec[Any] = MessageCodec(classes)

        async def agent(stream: Any) -> None:
            typed = _Typed()
            self._typings.append(typed)
            try:
                await work(self._typed(stream, codec, typed))
                if typed.is_over:
                    return
                self._failed(ConfigurationError(f"agent {where} has ended by itself; it goes through events for ever"))
            except Exception as error:  # noqa: BLE001  # whatever it is, this event is not acknowledged
                self._failed(error)
            await asyncio.Event().wait()

        self.faust.agent(self.faust.topic(*topics, **raw), name=where)(agent)

    def run(self, stop: threading.Event) -> None:
        """Works until `stop` is set, then writes what is done.

        Raises:
            ContractError: an event cannot be read. Fenced: another process keeps the view now, or its store went back.
            InfrastructureError: no broker, no store, or whatever an agent failed of.
        """
        asyncio.run(self._until(stop))

    async def _until(self, stop: threading.Event) -> None:
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transport: Any = self.faust.transport
        transport.sources = frozenset(self._sources)
        revoked: Any = self.faust.on_partitions_revoked
        revoked.connect(self._revoked)
        await self._check_rows()
        await self.faust.start()
        self._report("streaming", {"stream": self._name, "from": ", ".join(sorted(self._sources))})
        try:
            while not stop.is_set() and not self._failure.done():
                await asyncio.wait([self._failure], timeout=_TICK_SECONDS)
                if self.faust.crash_reason is not None:
                    raise InfrastructureError(f"Faust has given up: {self.faust.crash_reason!r}")
                await self._write()
            if not self._failure.done():
                await self._write()
        finally:
            await self.faust.stop()
        if self._failure.done():
            self._failure.result()

    async def _typed(self, stream: Any, codec: MessageCodec[Any], told: _Typed) -> AsyncIterator[Recorded[Any]]:
        async for event in stream.noack().events():
            message = event.message
            record = record_of(message)
            self._check_begun(TP(record.topic, record.partition), record.offset, told.begun)
            recorded = None if record.key == b"@" else read_recorded(codec, record)
            if recorded is not None:
                message.timestamp = recorded.time.timestamp()
                yield recorded
            if event.ack():
                self._done(TP(record.topic, record.partition), record.offset)
        told.is_over = True

    def _check_begun(self, tp: TP, offset: int, begun: set[TP]) -> None:
        """Checks that nothing was passed over when the partition came.

        Raises:
            InfrastructureError: something was; it is not acknowledged, so that the next run begins there.
        """
        if tp in begun:
            return
        begun.add(tp)
        consumer: Any = self.faust.consumer
        first = consumer.progress.frontier(tp)
        if first is not None and first < offset:
            raise InfrastructureError(
                f"Faust has passed over {tp.topic}[{tp.partition}]@{first} and begins at {offset}; run it again"
            )

    def _done(self, tp: TP, offset: int) -> None:
        if self._rows:
            self._acked.append((tp, offset))
        else:
            consumer: Any = self.faust.consumer
            consumer.progress.done(tp, offset)

    async def _write(self) -> None:
        """Writes the rows of what is done; only then may it be committed."""
        if not self._rows:
            return
        consumer: Any = self.faust.consumer
        progress, acked, self._acked = consumer.progress, self._acked, []
        done: dict[TP, set[int]] = {}
        for tp, offset in acked:
            done.setdefault(tp, set()).add(offset)
        reached: dict[str, dict[int, int]] = {}
        for tp in progress.position:
            if (frontier := progress.frontier_without(tp, done.get(tp, ()))) is not None:
                reached.setdefault(tp.topic, {})[tp.partition] = frontier
        position = Position(reached)
        for rows in self._rows:
            taken = rows.take()
            if any(taken) or not self._written.covers(position):
                await asyncio.to_thread(rows.write, taken, position)
            if not rows.is_live and rows.position().covers(self._ends):
                await asyncio.to_thread(rows.show)
                self._report("view is live", {"view": rows.view.name})
        self._written |= position
        for tp, offset in acked:
            progress.done(tp, offset)

    async def _check_rows(self) -> None:
        """Compares what the group has committed with what the rows hold, and asks where the log ends now.

        Raises:
            Fenced: rows lack events that are committed: Redis went back in time, and the next run begins anew.
            LogHole: the topic was trimmed past what comes next, and no archive is read here.
        """
        if not self._rows:
            return
        client = aiokafka.AIOKafkaConsumer(**self._dialect, group_id=self.id, enable_auto_commit=False)
        await client.start()
        try:
            topics = {topic: count for rows in self._rows for topic, count in rows.topics.items()}
            places = [aiokafka.TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
            ends = await client.end_offsets(places)
            committed = {place: await client.committed(place) or 0 for place in places}
            starts = await client.beginning_offsets(places)
        finally:
            await client.stop()
        self._ends = _position(ends)
        if gone := unreachable(_position(starts), _position(committed)):
            raise hole(*gone[0])
        for rows in self._rows:
            if not rows.position().covers(_position(committed)):
                rows.discard()
                raise Fenced(
                    f"view {rows.view.name} lacks events that are committed: its store went back in time; it begins "
                    f"anew"
                )

    async def _revoked(self, app: Any, revoked: Any, **_: Any) -> None:
        consumer: Any = self.faust.consumer
        consumer.progress.forget()
        self._acked.clear()
        for typed in self._typings:
            typed.begun.clear()

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, LeftfoldError):
            error = InfrastructureError(f"an agent of {self._name} has failed, and its event is not done: {error!r}")
        if not self._failure.done():
            self._failure.set_exception(error)


def _position(offsets: Mapping[Any, int]) -> Position:
    found: dict[str, dict[int, int]] = {}
    for place, offset in offsets.items():
        found.setdefault(place.topic, {})[place.partition] = offset
    return Position(found)
