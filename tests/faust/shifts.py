"""A stream that keeps three views: sums and last sales of stores, of sales, and how often doors were closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from leftfold import App, Event, Recorded, StreamedView, Streaming
from leftfold.faust import EventStreams, ExternalRows
from leftfold.faust.streams import streams_of
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports.protocols import ViewStore
from tests.faust.sales import PARTITIONS, Sold
from tests.planted import as_written, write
from tests.threads import working

__all__ = ["Gate", "Shift", "close_doors", "closings", "last_of", "shift_at_work", "totals"]


class Closed(Event, category="doors", key="door"):
    door: str


@dataclass(frozen=True)
class Total:
    store: str
    sales: int


@dataclass(frozen=True)
class Last:
    store: str
    cents: int


@dataclass(frozen=True)
class Closings:
    door: str
    times: int


@dataclass
class Gate:
    """Where the agent of sales stands still until it may go on; 0 = nowhere."""

    behind: int = 0
    opened: threading.Event = field(default_factory=threading.Event)


class Shift:
    """The stream, with the view of last sales in some version."""

    def __init__(self, version: int, gate: Gate) -> None:
        self._gate = gate
        self.views = (totals, last_of(version), closings)
        self.stream = Streaming("shift", events=Sold | Closed, work=self._work, views=self.views)
        self.app = App("chain", partitions=PARTITIONS, views=self.views, streams=[self.stream])

    def _work(
        self,
        streams: EventStreams,
        sums: ExternalRows[Total, str],
        last: ExternalRows[Last, str],
        times: ExternalRows[Closings, str],
    ) -> None:
        sold = streams.faust.Table("sold", default=list, partitions=PARTITIONS)
        closed = streams.faust.Table("closed", default=list, partitions=PARTITIONS)

        async def count(events: AsyncIterator[Recorded[Sold]]) -> None:
            seen = 0
            async for sale in events:
                store = sale.event.store
                offset, sales = sold[store] or (-1, 0)
                if sale.offset > offset:
                    sold[store] = [sale.offset, sales := sales + 1]
                sums.put(Total(store, sales))
                last.put(Last(store, sale.event.cents))
                seen += 1
                if seen == self._gate.behind:
                    await asyncio.to_thread(self._gate.opened.wait, 240.0)

        async def count_closings(events: AsyncIterator[Recorded[Closed]]) -> None:
            async for closing in events:
                door = closing.event.door
                offset, count = closed[door] or (-1, 0)
                if closing.offset > offset:
                    closed[door] = [closing.offset, count := count + 1]
                times.put(Closings(door, count))

        streams.agent(Sold, count)
        streams.agent(Closed, count_closings)


def by_store(row: Total | Last) -> str:
    return row.store


def by_door(row: Closings) -> str:
    return row.door


totals = StreamedView("totals", events=Sold, row=Total, key=by_store)
closings = StreamedView("closings", events=Closed, row=Closings, key=by_door)


def last_of(version: int) -> StreamedView[Last, str]:
    return StreamedView("last", events=Sold, row=Last, key=by_store, version=version)


def shift_at_work(
    kafka: KafkaSettings, store: ViewStore, version: int, gate: Gate | None = None
) -> AbstractContextManager[list[BaseException]]:
    """The stream at work while the block runs, and what it failed of."""
    shift = Shift(version, gate or Gate())

    def work(stop: threading.Event) -> None:
        streams_of(shift.app, shift.stream, kafka.aiokafka(), store, lambda topic: PARTITIONS).run(stop)

    return working(work)


def close_doors(kafka: KafkaSettings, count: int) -> None:
    closed = [as_written(Closed(door="front"), PARTITIONS)._replace(partition=0) for _ in range(count)]
    write(kafka, "doors.events", closed, commit=None)
