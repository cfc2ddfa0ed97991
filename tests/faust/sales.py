"""Sales at tills and a view of the last ten minutes, hopping each minute, kept by Faust."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from leftfold import App, Command, Decider, Event, Recorded, StreamedView, Streaming
from leftfold.faust import EventStreams, ExternalRows, windows_of
from leftfold.ports.protocols import ViewStore

__all__ = ["HOP", "PARTITIONS", "SIZE", "VERSION", "Sold", "Window", "app", "expected", "keep", "lately_of", "wired"]

SIZE, HOP, PARTITIONS = 600, 60, 2
VERSION = "TESTS_SALES_VERSION"
"""What in the environment says which version of the view the App has."""


class Sold(Event, category="tills", key="store"):
    store: str
    cents: int
    at: datetime


class Sell(Command, category="tills", key="store"):
    store: str
    cents: int
    at: datetime


@dataclass(frozen=True)
class Window:
    store: str
    start: datetime
    sales: int
    cents: int


def by_window(row: Window) -> tuple[str, datetime]:
    return (row.store, row.start)


tills = Decider(
    "tills",
    commands=Sell,
    events=Sold,
    state=int,
    initial_state=0,
    decide=lambda command, state: [Sold(store=command.store, cents=command.cents, at=command.at)],
    evolve=lambda state, event: state + 1,
)


def lately_of(version: int) -> StreamedView[Window, tuple[str, datetime]]:
    """The view in some version, which has tables and a group of its own."""
    return StreamedView("lately", events=Sold, row=Window, key=by_window, indexes=("cents",), version=version)


lately = lately_of(int(os.environ.get(VERSION, "1")))


def wired(streams: EventStreams, rows: ExternalRows[Window, tuple[str, datetime]], *, guarded: bool = True) -> None:
    """Makes the table and the agent.

    Args:
        guarded: an event that an entry has counted already changes nothing.
    """
    table = streams.faust.Table("windows", default=list, partitions=PARTITIONS).hopping(SIZE, HOP)

    async def count(events: AsyncIterator[Recorded[Sold]]) -> None:
        async for sold in events:
            event = sold.event
            for window, start in windows_of(table, sold.time):
                offset, sales, cents = table[event.store][window] or (-1, 0, 0)
                if sold.offset > offset or not guarded:
                    offset, sales, cents = sold.offset, sales + 1, cents + event.cents
                    table[event.store][window] = [offset, sales, cents]
                rows.put(Window(store=event.store, start=start, sales=sales, cents=cents))

    streams.agent(Sold, count)


app = App(
    "chain",
    partitions=PARTITIONS,
    deciders=[tills],
    views=[lately],
    streams=[Streaming("lately", events=Sold, work=wired, views=[lately])],
)


def keep(
    dialect: Mapping[str, Any], store: ViewStore, stop: threading.Event, *, version: int = 1, guarded: bool = True
) -> None:
    """Keeps the view until `stop` is set, as a program of the user's own does."""
    rows = ExternalRows(lately_of(version), store, {"tills.events": PARTITIONS})
    streams = EventStreams(app, "lately", dialect, rows=[rows])
    wired(streams, rows, guarded=guarded)
    streams.run(stop)


def expected(events: Iterable[Sold]) -> dict[tuple[str, datetime], Window]:
    """The windows of these events, computed the plain way."""
    found: defaultdict[tuple[str, datetime], list[int]] = defaultdict(list)
    for event in events:
        last = int(event.at.timestamp()) // HOP * HOP
        for start in range(last - SIZE + HOP, last + HOP, HOP):
            found[event.store, datetime.fromtimestamp(start, UTC)].append(event.cents)
    return {key: Window(*key, sales=len(cents), cents=sum(cents)) for key, cents in found.items()}
