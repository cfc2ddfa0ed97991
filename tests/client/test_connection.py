"""A connection to an App whose servers are silent, slow or down."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leftfold import ConfigurationError, InfrastructureError, Position
from leftfold.memory import World
from leftfold.memory.event_log import MemoryLogReader
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.connect import Connection, kafka_settings, redis_settings
from tests.domains.shop import Add, Open, app
from tests.threads import Background
from tests.waiting import WAIT_SECONDS, wait_until

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


class Slow(Connection):
    """A connection whose attempts to connect its client end when a test says so, with what it says."""

    def __init__(self, outcome: Any) -> None:
        super().__init__(app, "127.0.0.1:1", "redis://127.0.0.1:1")
        self.asked = self.attempts = 0
        self.released, self._outcome = threading.Event(), outcome

    def _check_open(self) -> None:
        super()._check_open()
        self.asked += 1  # under the lock of all that ask

    def _new_client(self) -> Any:
        self.attempts += 1
        assert self.released.wait(WAIT_SECONDS)
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


def test_threads_share_one_attempt_to_connect_and_its_error() -> None:
    connection = Slow(InfrastructureError("no broker"))
    with ThreadPoolExecutor(8) as pool:
        uses = [pool.submit(lambda: connection.client) for _ in range(8)]
        wait_until(lambda: connection.asked == 8, "all to ask")
        with connection._sending:  # the last one has got the attempt, too
            connection.released.set()
        assert {use.exception(WAIT_SECONDS) for use in uses} == {connection._outcome}
    assert connection.attempts == 1
    with pytest.raises(InfrastructureError, match="no broker"):
        _ = connection.client
    assert connection.attempts == 2, "a use behind the failure tries again"


def test_an_interrupted_attempt_interrupts_one_thread_only() -> None:
    connection = Slow(KeyboardInterrupt())
    with ThreadPoolExecutor(2) as pool:
        uses = [pool.submit(lambda: connection.client) for _ in range(2)]
        wait_until(lambda: connection.asked == 2, "both to ask")
        with connection._sending:
            connection.released.set()
        kinds = sorted(type(use.exception(WAIT_SECONDS)).__name__ for use in uses)
    assert kinds == ["InfrastructureError", "KeyboardInterrupt"]


def test_closing_waits_for_no_client_that_is_being_made_and_it_is_closed_then() -> None:
    closed = threading.Event()
    connection = Slow(SimpleNamespace(close=closed.set))
    with Background(lambda _: connection.client):
        wait_until(lambda: connection.attempts == 1, "an attempt")
        connection.close()
        assert not closed.is_set()
        connection.released.set()
        assert closed.wait(WAIT_SECONDS)
    with pytest.raises(InfrastructureError, match="is closed; connect again"):
        _ = connection.client


def test_a_deleted_working_directory_announces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (release := tmp_path / "release").mkdir()
    monkeypatch.chdir(release)
    release.rmdir()
    for name in ("LEFTFOLD_DATA", "LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "LEFTFOLD_KAFKA_PROPERTIES"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="no Kafka address"):
        kafka_settings()
    monkeypatch.setenv("LEFTFOLD_KAFKA_BOOTSTRAP_SERVERS", "a:1")
    monkeypatch.setenv("LEFTFOLD_REDIS_URL", "redis://b:2/0")
    assert kafka_settings().bootstrap_servers == "a:1"
    assert redis_settings().address == "b:2"
