"""Projectors of the ledgers' views on a real Redis, and readers and writers at work beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from leftfold.client import Views
from leftfold.engine.views.projection_writer import ProjectionWriter
from leftfold.engine.views.projector import Projector
from leftfold.errors import InfrastructureError
from leftfold.memory import World
from leftfold.model.keys import events as events_topic
from leftfold.model.view import View
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.protocol import connect
from leftfold.redis.flusher import Flusher, Flushers
from leftfold.testing import fold
from tests.domains.ledger import app, by_owner, by_tag, histories, stranger, summary
from tests.redis.flushes import Blind
from tests.threads import Background
from tests.waiting import wait_until
from tests.whole import assert_whole

__all__ = [
    "KEY",
    "NOW",
    "VIEWS",
    "Watch",
    "assert_equal_to_the_log",
    "busy",
    "differs_from_the_log",
    "happen",
    "heals_after",
    "projector_on",
    "settle",
]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VIEWS: tuple[View[Any, Any], ...] = (summary, by_owner, by_tag)
KEY = "l-watched"


def happen(world: World, seed: int, count: int = 150) -> None:
    world.client.send_many(list(histories(stranger(seed), count)))


def projector_on(world: World, store: RedisViewStore, **options: Any) -> Projector:
    return Projector(app.views, world.log.reader, store, **{"look": 0.0, "member": "projector", **options})


def settle(projector: Projector) -> None:
    def quiet() -> bool:
        try:
            return projector.step(0.0) == 0 and projector.caught_up()
        except InfrastructureError:
            return False

    wait_until(quiet, "the projector to catch up")


def assert_equal_to_the_log(world: World, store: RedisViewStore, *views: View[Any, Any]) -> None:
    events = [recorded.event for recorded in world.events("ledgers")]
    ends = world.log.reader().ends([events_topic("ledgers")])
    for view in views or VIEWS:
        assert_whole(store, view, dict(fold(view, *events)), ends)


def heals_after(
    lose: Callable[[Callable[[], object]], object],
    world: World,
    store: RedisViewStore,
    made: type[Flusher],
    monkeypatch: pytest.MonkeyPatch,
) -> bool:
    """Whether three histories are folded whole, of which the replica that is promoted lacks the second."""
    if made is Blind:
        monkeypatch.setattr(ProjectionWriter, "is_confirmed", lambda _: True)
    store._flushers = Flushers(store._settings, connect, made, store._topology)
    projector = projector_on(world, store)

    def more() -> None:
        happen(world, 2)
        settle(projector)

    happen(world, 1)
    settle(projector)
    lose(more)
    happen(world, 3, count=2)
    settle(projector)
    projector.close()
    return not differs_from_the_log(world, store)


def differs_from_the_log(world: World, store: RedisViewStore) -> bool:
    """Whether any view is in any way not what the log makes of it."""
    try:
        assert_equal_to_the_log(world, store)
    except AssertionError:
        return True
    return False


class Watch(Background):
    """Reads one row all the while; its `moves` only grow in the log, so they may never shrink here."""

    def __init__(self, settings: RedisSettings) -> None:
        super().__init__(self._read)
        self._settings = settings
        self.seen: list[int] = []
        self.unreachable = 0

    def wait_end(self, world: World) -> None:
        """Waits until it has read the row as all events in the log make it."""
        moves = fold(summary, *(recorded.event for recorded in world.events("ledgers")))[KEY].moves
        wait_until(lambda: self.going and self.seen[-1:] == [moves], lambda: f"{moves} moves: {self.seen[-9:]}")

    def _read(self, stop: threading.Event) -> None:
        with closing(RedisViewStore(self._settings)) as store:
            reader = Views(store)[summary]
            while not stop.is_set():
                try:
                    row = reader.get(KEY)
                except InfrastructureError:
                    self.unreachable += 1
                    continue
                assert row is not None, "the row was missing"
                assert (row.balance, row.owner) == (Decimal(row.moves), "o"), f"a mixed row: {row}"
                assert not self.seen or row.moves >= self.seen[-1], f"an older row: {row.moves} after {self.seen[-1]}"
                self.seen.append(row.moves)


def busy(work: Callable[[int], object], pause: float = 0.0) -> Background:
    """Does something again and again in a thread of its own, whether the server answers or not."""

    def repeat(stop: threading.Event) -> None:
        number = 0
        while not stop.wait(pause):
            number += 1
            with suppress(InfrastructureError):
                work(number)

    return Background(repeat)
