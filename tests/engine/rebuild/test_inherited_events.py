"""A view folds events of the classes that it names, and of no subclass, whichever views are folded beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import App, Command, Decider, Event, FoldView, View, memory
from leftfold.engine.rebuild.rebuilder import Rebuild, RebuildOptions, rebuild_together
from leftfold.memory import MemoryViewStore, World
from leftfold.testing import fold
from tests.engine.committed_log import CommittedLog


class Placed(Event, category="orders", key="order"):
    order: str


class PlacedOnline(Placed):
    channel: str = "web"


class Place(Command, category="orders", key="order"):
    order: str


@dataclass(frozen=True)
class Count:
    events: int


def both(command: Place, state: int) -> Sequence[Placed]:
    return [Placed(order=command.order), PlacedOnline(order=command.order)]


def one_more(row: Count | None, event: Placed) -> Count:
    return Count((row.events if row else 0) + 1)


def key(event: Placed) -> str:
    return event.order


def view(name: str, events: Any, **options: Any) -> View[Count, str]:
    return FoldView(name, events=events, row=Count, evolve=one_more, **options)


orders = Decider(
    "orders", commands=Place, events=Placed | PlacedOnline, state=int, initial_state=0, decide=both,
    evolve=lambda state, event: state + 1,
)  # fmt: skip
by_stream = view("by_stream", Placed), view("online_by_stream", PlacedOnline)
by_key = view("by_key", Placed, key=key), view("online_by_key", PlacedOnline, key=key)
TWO = {"o": Count(2)}
"""The rows of each of these views: the stream has two events of each class."""


@pytest.fixture
def world() -> Iterator[World]:
    app = App("shop", deciders=[orders], views=[*by_stream, *by_key], partitions=1)
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        for _ in range(2):
            world.client.send(Place(order="o"))
            assert all(world.views[one].count() == 1 for one in app.views), "the next event finds the row in memory"
        yield world


def rebuilt(world: World, *views: View[Count, str]) -> list[Mapping[str, Count]]:
    store = MemoryViewStore()
    rebuilds = [
        Rebuild(
            one, store, open_log=lambda: CommittedLog(world.log.reader()), open_reader=world.log.reader,
            open_sink=lambda: store, options=RebuildOptions(patience=0.0),
        )
        for one in views
    ]  # fmt: skip
    rebuild_together(rebuilds, rebuilds[0].plan())
    return [rows(store, one) for one in views]


def rows(store: MemoryViewStore, one: View[Count, str]) -> dict[str, Count]:
    generation = store.registry(one.name).live_of(one.hash)
    assert generation is not None
    assert [checkpoint.parked for checkpoint in store.checkpoints(generation).values() if checkpoint.parked] == []
    places = [
        (bucket, key) for bucket in store.checkpoints(generation) for key in store.keys(generation, bucket, "", 9)
    ]
    found = zip(places, store.read(generation, places).rows, strict=True)
    return {key: one.rows.decode(fields) for (_, key), fields in found if fields is not None}


@pytest.mark.parametrize("views", [by_stream, by_key], ids=["by stream", "by key"])
def test_the_rows_of_a_view_do_not_depend_on_the_views_beside_it(world: World, views: Any) -> None:
    events = [Placed(order="o"), PlacedOnline(order="o")]
    assert [dict(world.views[one].items()) for one in views] == [TWO, TWO], "as projectors of one group fold them"
    assert rebuilt(world, *views) == [TWO, TWO], "as one pass of a rebuild folds them"
    assert [rebuilt(world, one) for one in views] == [[TWO], [TWO]]
    assert [fold(one, *events, *events) for one in views] == [TWO, TWO]
