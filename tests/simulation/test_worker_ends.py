"""What ends a worker in order is no death of a command, and a fold that cannot be written is reported."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError

from leftfold import App, Command, Decider, Event, Process, Receipt
from leftfold.engine.processing.worker_tasks import TaskSpec
from leftfold.errors import ConfigurationError, refused
from leftfold.kafka.administration import topics
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.kafka.worker.transactions import Aborted, Result, Transactions
from leftfold.model.keys import partition_of
from leftfold.testing.simulation.deployment import SETTINGS, Deployment
from leftfold.testing.simulation.environment import SimulatedWorld
from leftfold.testing.simulation.kafka.partitions import ProducedBatch
from leftfold.testing.simulation.schedules import Scenario, scheduled

STARTS = 8
"""More workers than a command may kill."""


class Placed(Event, category="orders", key="order"):
    order: str


class Place(Command, category="orders", key="order"):
    order: str


class Notify(Command, category="mailing", key="order"):
    order: str


class Mailed(Event, category="mailing", key="order"):
    order: str


def _orders(weight: int = 0, version: int = 1, state: type = str) -> Decider[Any, Any, Any]:
    return Decider(
        "orders",
        commands=Place,
        events=Placed,
        state=state,
        initial_state=state(),
        decide=lambda command, state: [Placed(order=command.order)],
        evolve=lambda state, event: state + "x" * weight,
        version=version,
    )


TELL = Process(
    "tell",
    inputs=Placed,
    sends=Notify,
    state=int,
    initial_state=0,
    correlate=lambda event: event.order,
    react=lambda given, state: [Notify(order=given.order)],
    evolve=lambda state, given: state + 1,
)
MAILING = Decider(
    "mailing",
    commands=Notify,
    events=Mailed,
    state=int,
    initial_state=0,
    decide=lambda command, state: [Mailed(order=command.order)],
    evolve=lambda state, event: state + 1,
)
SHOP = App("shop", partitions=1, deciders=[_orders()], processes=[TELL])
MAIL = App("mail", partitions=1, deciders=[MAILING], senders=["tell"])


def _make_topics_of_mail() -> None:
    topics.ensure(MAIL, SETTINGS)


def _load(chance: random.Random) -> Sequence[Sequence[Command]]:
    return [[Place(order="o-1"), Place(order="o-2")]]


@pytest.fixture(scope="module", autouse=True)
def _simulated() -> Iterator[None]:
    with scheduled(SHOP):
        yield


class _Run:
    """One deployment without faults."""

    def __init__(self, world: SimulatedWorld, deployment: Deployment) -> None:
        self.world, self.deployment = world, deployment

    def until(self, is_there: Callable[[], bool], seconds: float = 120.0) -> bool:
        return self.world.run(is_there, seconds)

    def committed(self, topic: str) -> list[bytes]:
        """The keys of committed records."""
        found = self.world.cluster.topics.get(topic)
        return [one.key or b"" for partition in (found.partitions if found else ()) for one in partition.committed()]

    def said(self, what: str, role: str) -> list[Any]:
        """The details of what processes of this role have reported."""
        return [details for _, name, found, details in self.deployment.trace if found == what and role in name]


@contextmanager
def _running(app: App, load: Callable[..., Sequence[Sequence[Command]]] = _load, **more: Any) -> Iterator[_Run]:
    world = SimulatedWorld(1, 1)
    with world.activated():
        deployment = Deployment(world, Scenario(app, load, workers=1, brokers=1, **more), [])
        deployment.begin()
        yield _Run(world, deployment)
        deployment.is_over = True
        world.close()


def test_a_process_waits_for_the_topics_of_the_apps_that_it_sends_to() -> None:
    with _running(SHOP) as run:
        assert run.until(lambda: len(run.said("ended", "tell worker")) >= STARTS)
        assert "tell sends mailing.Notify.v1, but topic mailing.commands does not exist" in run.said("ended", "tell")[0]
        assert run.deployment.is_answered
        assert (run.said("serving", "tell worker"), run.committed("tell.dead")) == ([], [])
        run.deployment.keep("mail", "setup", _make_topics_of_mail)
        assert run.until(lambda: len(run.committed("mailing.commands")) == 2)
        assert run.committed("tell.dead") == []


def test_an_input_of_newer_code_waits_for_it_however_often_older_workers_start() -> None:
    with _running(App("shop", partitions=1, deciders=[_orders(), MAILING], processes=[TELL])) as run:
        assert run.until(lambda: len(run.committed("mailing.events")) == 2)
        about: Any = [
            ("ce_specversion", b"1.0"),
            ("ce_id", b"e9"),
            ("ce_type", b"orders.Placed.v2"),
            ("ce_time", b"2026-01-01T00:00:00Z"),
            ("origin", b"orders.events/0/1000/0"),
        ]
        inputs, now = run.world.cluster.topics["tell.commands"].partitions[0], 1_767_225_600_000
        inputs.append(ProducedBatch([(b"o-9", b'{"order": "o-9"}', about, now)]), now)
        assert run.until(lambda: len(run.said("refused to work", "tell worker")) >= STARTS)
        assert "orders.Placed version 2 and knows 1" in run.said("refused to work", "tell worker")[-1]
        assert run.committed("tell.dead") == []


def test_commands_wait_for_code_that_can_read_the_states_however_often_other_code_starts() -> None:
    """A state of another form is no death of a command."""
    older, newer = (App("shop", partitions=1, deciders=[_orders(state=state)]) for state in (str, int))
    with _running(older, lambda chance: [[Place(order="o-1")]] * 2, upgraded=newer) as run:
        assert run.until(lambda: len(run.committed("orders.events")) == 1)
        run.deployment.end()
        assert run.until(lambda: run.deployment.is_ended)
        run.deployment.restart()
        assert run.until(lambda: len(run.said("ended", "successor")) >= STARTS)
        assert "the stored state of 'o-1' cannot be read" in run.said("ended", "successor")[-1]
        assert "leftfold state rebuild orders" in run.said("ended", "successor")[-1]
        assert run.committed("orders.dead") == []


class _Unwritable(Transactions):
    """Writes to a topic that this login may not write, at first."""

    refused = 0

    def run(self, *args: Any, **named: Any) -> Result:
        if _Unwritable.refused < STARTS:
            _Unwritable.refused += 1
            return Aborted("Broker: Topic authorization failed", KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return super().run(*args, **named)


class _WithoutRights(KafkaClientSupplier):
    def transactions(self, app: App, task: TaskSpec) -> Transactions:
        return _Unwritable({**self._config}, self.transactional_id(app, task), self._watchdog)

    def denied(self, doing: str, why: str, topics: Iterable[str]) -> ConfigurationError:
        return refused(f"{doing}: {why}")  # the simulated brokers know no rights


def test_commands_wait_for_a_right_that_is_missing_however_often_workers_start() -> None:
    _Unwritable.refused = 0
    with _running(App("shop", partitions=1, deciders=[_orders()]), make=_WithoutRights) as run:
        assert run.until(lambda: run.deployment.is_answered)
        assert len(run.said("refused to work", "orders worker")) == STARTS
        assert [type(one.answer) for one in run.deployment.sent] == [Receipt, Receipt]
        assert run.committed("orders.dead") == []


def test_a_folded_state_that_is_too_large_is_reported_and_tried_again_now_and_then_while_others_are_served() -> None:
    older, newer = (App("shop", partitions=2, deciders=[one]) for one in (_orders(), _orders(400_000, version=2)))
    many = [Place(order="o-1")] * 3
    assert partition_of(b"o-1", 2) != partition_of(b"o-2", 2)
    with _running(older, lambda chance: [[*many, Place(order="o-2")]], upgraded=newer) as run:
        assert run.until(lambda: run.deployment.is_answered)
        run.deployment.end()
        assert run.until(lambda: run.deployment.is_ended)
        run.deployment.restart()
        began = run.world.scheduler.now
        assert run.until(lambda: len(run.said("a partition stands still", "successor")) == 3)
        assert run.world.scheduler.now - began > 10, "it waits longer each time"
        (state,) = {one["why"].partition(";")[0] for one in run.said("a partition stands still", "successor")}
        assert state == "the state of 'o-1' weighs 1200080 bytes"
        served = [{"topic": "orders.commands", "partitions": [partition_of(b"o-2", 2)]}]
        assert run.said("serving", "successor") == served
