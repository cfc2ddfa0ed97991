"""A memory world and real servers do the same, timers and all, given the same history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from leftfold import World, memory
from leftfold.cli.main import run
from leftfold.engine.processing import log_time
from leftfold.engine.processing.command_processor import CommandProcessor
from leftfold.engine.processing.log_time import SourceTime, Watermark
from leftfold.engine.processing.process_instance import Instance
from leftfold.engine.processing.process_processor import ProcessManagerProcessor
from leftfold.kafka.settings import KafkaSettings
from leftfold.memory.flow import RoutedTopics
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.messages import Command
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import RawRecord
from tests.domains.trade import Confirm, Drop, Dropped, Pay, Place, Release, Reserved, app
from tests.process.trading import Trading, happened
from tests.settled import committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

OLD, STEP = datetime(2017, 1, 1, tzinfo=UTC), timedelta(minutes=10)
"""When the history begins; timers are due after whole steps, so that seconds of the real clock change nothing."""
ORDERS, PRODUCTS = 4, 2
Act = tuple[str, int, int]
acts = st.one_of(
    st.tuples(st.just("place"), st.integers(0, ORDERS - 1), st.integers(0, PRODUCTS - 1)),
    st.tuples(st.just("pay"), st.integers(0, ORDERS - 1), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, ORDERS - 1), st.just(0)),
    st.tuples(st.just("wait"), st.integers(1, 5), st.just(0)),
)
TICKS = [next(f"tick-{n}" for n in count() if partition_of(f"tick-{n}".encode(), 4) == p) for p in range(4)]


@dataclass
class Both:
    """The two worlds, which get the same commands at the same times, one at a time."""

    world: World
    trading: Trading
    now: datetime = OLD
    sent: int = 0
    episodes: Iterator[int] = field(default_factory=count)

    def send(self, command: Command) -> None:
        """Has both decide it, and waits until the same has come of it."""
        self.sent += 1
        for client in (self.world.client, self.trading.client):
            client.send(command, id=f"c{self.sent}", at=self.now, timeout=240.0)
        self.agree()

    def wait(self, steps: int) -> None:
        """Lets log time go on, in every partition of every category."""
        self.now += steps * STEP
        for tick in TICKS:
            for command in (Confirm(order=tick), Pay(order=tick), Release(product=tick, order=tick)):
                self.sent += 1
                for client in (self.world.client, self.trading.client):
                    client.send(command, id=f"c{self.sent}", at=self.now, timeout=240.0)
        self.agree()

    def agree(self) -> None:
        """Waits until states and timers of all instances, and versions of all streams, are the same."""
        wait_until(lambda: self.differences() == {}, lambda: f"agreement: {self.differences()}")

    def agree_on_records(self) -> None:
        """Waits until events and commands are the same; a commit returns before its markers are written."""
        settings = self.trading.settings
        world = Counter(recorded.event for d in app.deciders for recorded in self.world.events(d.name))
        wait_until(lambda: world == happened(settings), lambda: f"these events: {world}; not {happened(settings)}")
        for topic in (names.commands(decider.name) for decider in app.deciders):
            mine = asked([record for records in self.world.log.of(topic) for record in records])
            wait_until(
                lambda mine=mine, topic=topic: mine == asked(committed(settings, topic)),  # type: ignore[misc]
                lambda mine=mine, topic=topic: f"{mine}; not {asked(committed(settings, topic))}",  # type: ignore[misc]
            )

    def differences(self) -> dict[str, Any]:
        """What one world has and the other has not."""
        processors, workers = self.world._flow, self.trading.workers
        pairs: list[tuple[str, Any, Any]] = [
            ("checkout", processors._processes["checkout"], workers["checkout"]._processor)
        ]
        pairs += [
            (name, processors.processors[name], workers[name]._processor) for name in ("orders", "stock", "payments")
        ]
        found: dict[str, Any] = {}
        for name, one, other in pairs:
            mine, theirs = known(one), known(other)
            for key in mine.keys() | theirs.keys():
                if mine.get(key) != theirs.get(key):
                    found[f"{name} {key}"] = mine.get(key), theirs.get(key)
        return found


def known(processor: CommandProcessor | ProcessManagerProcessor) -> dict[str, Any]:
    """What a processor knows of each key: version, state, and of an instance its timers and what it waits for."""
    found: dict[str, Any] = {}
    for held in list(processor.held.values()):
        for key, record in list(held.store.items()):
            one = processor.streams.decode(record, 0.0)
            rest = (one.timers, one.waiting, one.finished) if isinstance(one, Instance) else ()
            found[key] = (one.version, one.state, *rest)
    return found


def asked(records: list[RawRecord]) -> Counter[tuple[bytes, bytes, bytes | None]]:
    """Commands of the process, by id, type and value."""
    return Counter(
        (header(r.headers, "ce_id"), header(r.headers, "ce_type"), r.value)
        for r in records
        if header(r.headers, "reply_key")
    )


@pytest.fixture(scope="module")
def both(settings: KafkaSettings) -> Iterator[Both]:
    """Both worlds in an endless load of old events."""
    patch = pytest.MonkeyPatch()
    patch.setattr(log_time, "SILENCE", timedelta(hours=1))
    with memory(app, now=datetime.now(UTC)) as world, Trading(settings) as trading:
        both = Both(world, trading)
        both.wait(0)
        yield both
    patch.undo()


@examples(max_examples=5, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(history=st.lists(acts, min_size=4, max_size=12))
def _agree_on(both: Both, history: list[Act]) -> None:
    episode = next(both.episodes)
    for what, number, product in history:
        order = f"{episode}-o{number}"
        match what:
            case "place":
                both.send(Place(order=order, product=f"{episode}-p{product}", at=both.now))
            case "pay":
                both.send(Pay(order=order))
            case "drop":
                both.send(Drop(order=order, why="at will"))
            case _:
                both.wait(number)
    both.wait(7)
    both.agree_on_records()


def test_random_histories_lead_to_the_same_commands_states_and_timers(both: Both) -> None:
    _agree_on(both)
    seen = Counter(type(recorded.event).__name__ for d in app.deciders for recorded in both.world.events(d.name))
    assert min(seen[name] for name in ("Placed", "Reserved", "Dropped", "Released", "Confirmed", "Paid")) > 0
    due = [
        r
        for p in both.world.log.of("checkout.commands")
        for r in p
        if header(r.headers, "ce_type") == b"leftfold.due.v1"
    ]
    assert due
    assert both.world.dead("checkout") == []


@pytest.mark.parametrize("action", ["fire", "cancel"])
def test_timers_fired_or_cancelled_in_memory_lead_to_the_same_as_those_of_the_shell(both: Both, action: str) -> None:
    order = f"by-hand-{action}"
    both.send(Place(order=order, product=order, at=both.now))
    timer = ("checkout", order, "patience")
    assert timer in both.world.timers.list()
    getattr(both.world.timers, action)(*timer)
    where = ["--app", "tests.domains.trade:app", "--kafka", both.trading.settings.bootstrap_servers]
    assert run(["timers", action, *timer, "--reason", "a test", "--timeout", "90s", "--yes", *where]) == 0
    both.agree()
    both.wait(7)
    dropped = Dropped(order=order, why="not paid in time")
    world = Counter(recorded.event for recorded in both.world.events("orders"))
    wait_until(lambda: happened(both.trading.settings)[dropped] == world[dropped], "the same end")
    assert world[dropped] == (action == "fire")


def test_by_the_wall_clock_a_memory_world_would_do_what_servers_do_not(
    both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin, and the last test here: the worlds have parted."""

    def wall_clock(self: RoutedTopics, now: datetime, inputs: Mapping[int, int]) -> Watermark:
        return Watermark({name: SourceTime(end=now) for name, _ in self._last()}, inputs)

    monkeypatch.setattr(RoutedTopics, "watermark", wall_clock)
    place = Place(order="parted", product="parted", at=both.now)
    for client in (both.world.client, both.trading.client):
        client.send(place, id="parted", at=both.now, timeout=240.0)
    both.trading.await_event("stock", Reserved(product="parted", order="parted"))
    assert ("checkout", "parted", "patience") not in both.world.timers.list(), "it has fired"
    assert Dropped(order="parted", why="not paid in time") not in both.trading.events("orders")
