"""Users' Faust agents, tables and windows over typed events, with views of their results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from faust.types import TP
from faust.types.windows import WindowRange
from typing_extensions import TypeForm, TypeVar

from leftfold.engine.streaming.external_rows import ExternalRows
from leftfold.engine.views.generations import topics_of
from leftfold.errors import ConfigurationError, InfrastructureError, LeftfoldError
from leftfold.faust.faust_app import faust_app, start
from leftfold.faust.table_rows import TableRows
from leftfold.faust.transport import record_of, translated
from leftfold.model import keys as names
from leftfold.model.app import App, Streaming
from leftfold.model.messages import Event
from leftfold.model.position import Position, Recorded
from leftfold.model.typing import members
from leftfold.ports.message_codec import MessageCodec, read_recorded
from leftfold.ports.protocols import Report, ViewStore

__all__ = ["EventStreams", "streams_of", "windows_of"]


E = TypeVar("E", bound=Event)
Work: TypeAlias = Callable[[AsyncIterator[Recorded[E]]], Awaitable[None]]
"""An agent function of a user: it processes its events in an endless loop."""
_TICK_SECONDS = 0.5


class _Typed:
    """The state of an agent's event stream.

    `is_over`: Faust has stopped the stream. `begun`: the partitions of which it has had events.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.begun: set[TP] = set()


class EventStreams:
    """A Faust App whose agents receive committed events, decoded and upcast.

    The Faust App itself is `faust`; create tables with it. An event is acknowledged when the agent asks for the next
    one and the rows are written; after a kill some events are processed again. A failing agent ends the App, and no
    event is skipped.

    Args:
        name: part of the consumer group and of the changelogs of tables.
        dialect: aiokafka's connection settings, as from `KafkaSettings.aiokafka()`.
        rows: rows of views that only this process writes, until `run` or `close` ends.
        settings: of Faust, such as `store="rocksdb://"` or `topic_replication_factor=3`.

    Raises:
        InfrastructureError: another process writes a view. Fenced: another process took it over just now.
    """

    def __init__(
        self,
        app: App,
        name: str,
        dialect: Mapping[str, Any],
        *,
        rows: Sequence[ExternalRows[Any, Any]] = (),
        report: Report = lambda what, details: None,
        **settings: Any,
    ) -> None:
        self._name, self._dialect, self._report = name, dialect, report
        self.rows, self._rows = tuple(rows), TableRows(rows)
        self.id = names.streaming(app.name, name, *self._rows.ids)
        tables = {"topic_allow_declare": True, "topic_partitions": app.partitions}
        try:
            self.faust = faust_app(self.id, dialect, **{**tables, **settings})
        except BaseException:
            self.close()
            raise
        self.categories: set[str] = set()
        self._acked: list[tuple[TP, int]] = []
        self._agents = 0
        self._typings: list[_Typed] = []

    def agent(self, events: TypeForm[E], work: Work[E]) -> None:
        """Registers `work` as an agent for all events of a closed union, of any category; each partition in order.

        It may read and write tables like any Faust agent. Windows use the event time (`ce_time`), not the append time.
        """
        self._agents += 1
        where = f"{self._name}.{self._agents}"
        classes = members(events, Event, f"agent {where}: events")
        categories = sorted({cls.__leftfold__.category for cls in classes})
        topics = [names.events(category) for category in categories]
        self.categories.update(categories)
        raw: Any = {"key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw"}
        codec: MessageCodec[Any] = MessageCodec(classes)

        async def agent(stream: Any) -> None:
            typed = _Typed()
            self._typings.append(typed)
            try:
                await work(self._typed(stream, codec, typed))
                if typed.is_over:
                    return
                self._failed(ConfigurationError(f"agent {where} has ended by itself; it must loop over its events"))
            except Exception as error:  # noqa: BLE001  # whatever it is, this event is not acknowledged
                self._failed(error)
            await asyncio.Event().wait()

        self.faust.agent(self.faust.topic(*topics, **raw), name=where)(agent)

    def run(self, stop: threading.Event, *, once: bool = False) -> bool:
        """Runs until `stop` is set, then writes the rows of processed events and releases the views.

        Args:
            once: also ends when the rows include all events that the log had at the start; the views are then not
                released until `close`.

        Returns:
            Whether the rows reached that point; always False without `once`.

        Raises:
            ContractError: an event cannot be read. Fenced: another process writes the view now, or its store has lost
                data.
            InfrastructureError: no broker, no store, or an agent failed.
        """
        try:
            return asyncio.run(self._until(stop, once=once))
        finally:
            if not once:
                self.close()

    def close(self) -> None:
        """Releases the views for another process, if this one does not run."""
        self._rows.close()

    async def _until(self, stop: threading.Event, *, once: bool) -> bool:
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        transport: Any = self.faust.transport
        transport.sources = frozenset(map(names.events, self.categories))
        revoked: Any = self.faust.on_partitions_revoked
        revoked.connect(self._revoked, weak=True)  # signals belong to the class and would keep this object alive
        if self._rows:
            await self._rows.check(self._dialect, self.id)
        transport.stored = self._rows.stored()
        is_through = False
        try:
            await start(self.faust, stop, self._failure)
            self._report("streaming", {"stream": self._name, "from": ", ".join(sorted(self.categories))})
            while not stop.is_set() and not self._failure.done() and not is_through:
                await asyncio.wait([self._failure], timeout=_TICK_SECONDS)
                if self.faust.crash_reason is not None:
                    raise translated(self.faust.crash_reason, "Faust has given up")
                await self._write()
                is_through = once and await self._rows.has_caught_up()
            if not self._failure.done():
                await self._write()
        finally:
            await self.faust.stop()
        if self._failure.done():
            self._failure.result()
        if isinstance(reason := self.faust.crash_reason, LeftfoldError):  # of the last commit
            raise reason
        return is_through

    async def _typed(self, stream: Any, codec: MessageCodec[Any], typed: _Typed) -> AsyncIterator[Recorded[Any]]:
        async for event in stream.noack().events():
            message = event.message
            record = record_of(message)
            self._check_begun(TP(record.topic, record.partition), record.offset, typed.begun)
            recorded = None if record.key == b"@" else read_recorded(codec, record)
            if recorded is not None:
                message.timestamp = recorded.time.timestamp()
                yield recorded
            if event.ack():
                self._done(TP(record.topic, record.partition), record.offset)
        typed.is_over = True

    def _check_begun(self, tp: TP, offset: int, begun: set[TP]) -> None:
        """Checks that no event was skipped when the partition was assigned.

        Raises:
            InfrastructureError: one was; it is not acknowledged, so the next run starts there.
        """
        if tp in begun:
            return
        begun.add(tp)
        consumer: Any = self.faust.consumer
        first = consumer.progress.frontier(tp)
        if first is not None and first < offset:
            raise InfrastructureError(
                f"Faust has skipped {tp.topic}[{tp.partition}]@{first} and begins at {offset}; run it again"
            )

    def _done(self, tp: TP, offset: int) -> None:
        if self._rows:
            self._acked.append((tp, offset))
        else:
            consumer: Any = self.faust.consumer
            consumer.progress.done(tp, offset)

    async def _write(self) -> None:
        """Writes the rows of processed events; only then may their offsets be committed."""
        if not self._rows:
            return
        consumer: Any = self.faust.consumer
        transport: Any = self.faust.transport
        progress, acked, self._acked = consumer.progress, self._acked, []
        done: dict[TP, set[int]] = {}
        for tp, offset in acked:
            done.setdefault(tp, set()).add(offset)
        reached: dict[str, dict[int, int]] = {}
        for tp in progress.position:
            if (frontier := progress.frontier_without(tp, done.get(tp, ()))) is not None:
                reached.setdefault(tp.topic, {})[tp.partition] = frontier
        position = Position(reached)
        await self._rows.write(position, lambda view: self._report("view is live", {"view": view}))
        transport.stored = self._rows.stored()
        lacking = self._rows.lacking(acked)
        self._acked += lacking
        for tp, offset in set(acked).difference(lacking):
            progress.done(tp, offset)

    async def _revoked(self, app: Any, revoked: Any, **_: Any) -> None:
        consumer: Any = self.faust.consumer
        consumer.progress.forget()
        self._acked.clear()
        for typed in self._typings:
            typed.begun.clear()

    def _failed(self, error: BaseException) -> None:
        if not self._failure.done():
            doing = f"an agent of {self._name} has failed, and its event is not done"
            self._failure.set_exception(translated(error, doing))


def streams_of(
    app: App,
    stream: Streaming,
    dialect: Mapping[str, Any],
    store: ViewStore | None,
    count: Callable[[str], int],
    *,
    is_rebuild: bool = False,
    report: Report = lambda what, details: None,
) -> EventStreams:
    """Creates the event stream of an App, ready to run.

    The last flag makes it write a new generation of its views, beside the process that writes the live one.

    Args:
        dialect: aiokafka's connection settings. store: of its views, if it has any.
        count: returns the partition count of a topic.

    Raises:
        ConfigurationError: an agent reads events that the stream does not name.
        InfrastructureError: another process writes a view.
    """
    rows = [
        ExternalRows(view, store, topics_of(view, count), is_rebuild=is_rebuild)
        for view in stream.views
        if store is not None
    ]
    streams = EventStreams(app, stream.name, dialect, rows=rows, report=report, **stream.settings)
    try:
        stream.work(streams, *rows)
        if others := sorted(streams.categories.difference(stream.categories)):
            raise ConfigurationError(
                f"stream {stream.name}: an agent reads events of {', '.join(others)}; add them to its events="
            )
    except BaseException:
        streams.close()
        raise
    return streams


class Windowed(NamedTuple):
    """A window of a Faust table: `range` is the key in `table[key][range]`, `start` is its start time."""

    range: WindowRange
    start: datetime


def windows_of(table: Any, time: datetime) -> list[Windowed]:
    """The windows of a Faust table that contain a time (aware), earliest first.

    Raises:
        ConfigurationError: the table has no windows.
    """
    window = getattr(getattr(table, "table", None), "window", None)
    if window is None:
        raise ConfigurationError(
            f"{table!r} has no windows; make them: Table(...).hopping(size, step) or .tumbling(size)"
        )
    ranges = window.ranges(time.timestamp())
    return [Windowed(range_, datetime.fromtimestamp(range_[0], time.tzinfo)) for range_ in ranges]
