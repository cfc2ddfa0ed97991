"""A connection to an App whose servers are silent, slow or down."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from leftfold import InfrastructureError, Position
from leftfold.memory import World
from leftfold.memory.event_log import MemoryLogReader
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.connect import Connection
from tests.domains.shop import Add, Open, app
from tests.threads import Background

EVENTS, NOW = "baskets.events", datetime(2026, 1, 31, tzinfo=UTC)


class Silent(MemoryLogReader):
    """Gives `most` records and then none, as one whose broker is silent; from `open_at` on nothing is committed."""

    def __init__(self, world: World, most: int, open_at: int | None = None) -> None:
        super().__init__(world.log)
        self._left, self._open_at = most, open_at

    def poll(self, limit: int, timeout: float) -> list[RawRecord]:
        found = super().poll(min(limit, self._left), timeout)
        self._left -= len(found)
        return found

    def stable_ends(self, topics: Any) -> Position:
        ends = super().stable_ends(topics)
        if self._open_at is None:
            return ends
        return Position({topic: dict.fromkeys(parts, self._open_at) for topic, parts in ends.offsets.items()})


class Reading(Connection):
    """A connection whose log is given."""

    def __init__(self, reader: MemoryLogReader) -> None:
        super().__init__(app, "127.0.0.1:1", "redis://127.0.0.1:1")
        self._reader = reader

    def log_reader(self) -> MemoryLogReader:
        return self._reader


@pytest.fixture
def world() -> World:
    """One stream of three events, alone in its partition."""
    world = World(app, NOW)
    for command in (
        Open(basket_id="b", household="h"),
        *(Add(basket_id="b", product=p, price=Decimal(1)) for p in "pq"),
    ):
        world.client.send(command)
    return world


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leftfold.runtime.connect._PATIENCE", 0.2)


def test_a_stream_that_is_read_in_part_only_is_an_error(world: World) -> None:
    assert len(list(Reading(Silent(world, 3)).stream("baskets", "b"))) == 3
    stream = Reading(Silent(world, 2)).stream("baskets", "b")
    assert [next(stream).version, next(stream).version] == [1, 2]
    with pytest.raises(InfrastructureError, match=rf"{EVENTS}\[\d+\] could not be read from 2 to 3"):
        next(stream)


def test_what_an_open_transaction_holds_back_is_not_part_of_a_stream(world: World) -> None:
    assert [one.version for one in Reading(Silent(world, 2, open_at=2)).stream("baskets", "b")] == [1, 2]


def test_views_do_not_wait_for_a_client_that_is_being_made() -> None:
    connection, found = Reading(MemoryLogReader(World(app, NOW).log)), list[object]()
    with connection._sending, Background(lambda _: found.append(connection.views)):
        pass
    assert found
