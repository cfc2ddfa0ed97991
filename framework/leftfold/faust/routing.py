"""The router of one process: reads events with Faust, writes inputs, and says what time it is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from aiokafka.errors import KafkaError
from faust.types import TP

from leftfold import names
from leftfold.app import App
from leftfold.engine.bulk_log import Range
from leftfold.engine.hole import cut_source, unrouted
from leftfold.engine.router import MAX_BYTES, Router, Unusable, unroutable
from leftfold.engine.seldom import Seldom
from leftfold.errors import ContractError, LeftfoldError
from leftfold.faust.apps import Tableless, faust_app, start, translated
from leftfold.faust.bundles import BundlingTransport
from leftfold.faust.clock import Clock
from leftfold.faust.progress import OrderedProgress
from leftfold.faust.records import bundled
from leftfold.faust.sending import Sender
from leftfold.partitioner import partition_of
from leftfold.ports import RawRecord

__all__ = ["Report", "route"]

Report = Callable[[str, Mapping[str, Any]], None]
_TICK_SECONDS, _TICK_MOST = 0.2, 30.0
_BUNDLES = 32
"""How many fetches of partitions wait to be routed."""


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
    """Routes the events of a process until `stop` is set; several routers share the partitions of the events.

    An event is acknowledged once its input is written. Whatever fails ends the router: nothing is skipped, and what
    was written but not acknowledged is written again by the next one, which does nothing. An event whose value makes no
    input goes to `{name}.dead` instead, with the reason: a client may have chosen that value.

    Args:
        dialect: how aiokafka reaches the brokers. partitions: how many `{name}.commands` has.
        passed_over: tells the events that need not reach the process although they cannot be routed, as
            `topic/partition/offset`. Asked in a thread of its own whenever an event cannot be routed.
        max_bytes: what a batch of records may weigh in `{name}.commands` and in `{name}.dead`.

    Raises:
        ContractError: an event cannot be routed. InfrastructureError: no broker, or an input that is not written.
        LogHole: events are gone that were never routed. ConfigurationError: a topic ends before what was routed.
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
        self._process, self._report, self._passed_over = app.process(name), report, passed_over
        self._known_over: Collection[str] = ()
        self._seldom, self._dead = Seldom(report, time.monotonic), 0
        self._router = Router(app.name, self._process, lambda key: partition_of(key, partitions), max_bytes=max_bytes)
        self._sender = Sender(dialect, names.commands(name), partitions, max_bytes)
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
        """Works until the event is set, then finishes what is under way."""
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self._sender.start(self._failed)
        revoked: Any = self._faust.on_partitions_revoked
        revoked.connect(self._revoked, weak=True)  # signals belong to the class and keep what is theirs
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
        """Looks whether events are gone, and says what time it is."""
        try:
            await self._check_whole()
            await asyncio.wait_for(self._clock.tick(self._faust.consumer), _TICK_MOST)
        except (TimeoutError, KafkaError) as error:
            doing = f"no broker answered the router of {self._process.name} within {_TICK_MOST:g} s"
            raise translated(error, doing) from error

    async def _check_whole(self) -> None:
        """Looks for events that this router should read next and cannot.

        Raises:
            LogHole: they are no longer there. ConfigurationError: their topic ends before them.
        """
        consumer: Any = self._faust.consumer
        for tp, offset in consumer.lost.items():
            starts = await asyncio.wait_for(consumer.starts({tp}), _TICK_MOST)
            if starts[tp] <= offset:
                ends = await asyncio.wait_for(consumer.ends({tp}), _TICK_MOST)
                raise cut_source(self._process.name, tp.topic, tp.partition, offset, ends[tp])
            raise unrouted(self._process.name, Range(tp.topic, tp.partition, offset, starts[tp]))

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
                    await self._check_passed_over(record, error)
                await self._sender.send(record, out, done, topic)
        except Exception as error:  # noqa: BLE001  # whatever it is, this event is not skipped
            self._failed(error)
            await asyncio.Event().wait()

    async def _check_passed_over(self, record: RawRecord, error: ContractError) -> None:
        source = f"{record.topic}/{record.partition}/{record.offset}"
        if source not in self._known_over:
            self._known_over = await asyncio.to_thread(self._passed_over)
        if source not in self._known_over:
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
            error = translated(error, f"the router of {self._process.name} cannot go on")
        if not self._failure.done():
            self._failure.set_exception(error)
