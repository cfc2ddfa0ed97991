"""What reaches a process: committed events, each with one effect, however often it is routed."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from leftfold.engine.processing.process_reactor import Reactor
from leftfold.engine.reactions.delivery import Frontier
from leftfold.errors import ContractError, InfrastructureError
from leftfold.kafka import process_router
from leftfold.kafka.input_producer import InputProducer
from leftfold.kafka.process_router import ProcessRouter
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.codec import header
from tests.domains.trade import Confirmed, Pay, Place, Reserved, app
from tests.process.points import member_with
from tests.process.routers import EVENTS, plant, routed, routing
from tests.process.trading import Trading, committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

GROUP = "leftfold.trade.checkout.router"


def placed(settings: KafkaSettings) -> int:
    """How many inputs say that an order is placed."""
    records = committed(settings, "checkout.commands")
    return sum(header(record.headers, "ce_type") == b"orders.Placed.v1" for record in records)


def rewind(settings: KafkaSettings) -> None:
    """Makes the next router begin at the beginning."""
    consumer = Consumer({**settings.librdkafka(), "group.id": GROUP, "enable.auto.commit": False})
    try:
        places = [TopicPartition(names.events(c), p, 0) for c in ("orders", "stock", "payments") for p in range(4)]
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()


def routers() -> set[int]:
    """The identities of the routers that are not collected; those of other tests are among them."""
    gc.collect()
    return {id(one) for one in gc.get_objects() if type(one) is ProcessRouter}


def test_a_router_that_has_ended_leaves_nothing_behind(
    settings: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    plant(settings, [("last", "p")])
    before = routers()
    with routing(settings) as failures:
        wait_until(lambda: not failures and "last" in routed(settings), lambda: f"the input: {failures}")
    assert routers() <= before, "one is made after each outage"
    assert not list(tmp_path.iterdir())


def test_an_aborted_event_reaches_nobody(settings: KafkaSettings) -> None:
    plant(settings, [("aborted", "p")], commit=False)
    plant(settings, [("committed", "p")])
    with routing(settings) as failures:
        wait_until(lambda: not failures and "committed" in routed(settings), lambda: f"the input: {failures}")
    assert "aborted" not in routed(settings)


def test_read_as_it_stands_in_the_log_an_aborted_event_would_arrive(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(settings, [("never", "p")], commit=False)
    monkeypatch.setattr(process_router, "GroupMember", member_with(**{"isolation.level": "read_uncommitted"}))
    with routing(settings) as failures:
        wait_until(lambda: not failures and "never" in routed(settings), lambda: f"the input: {failures}")


def test_an_event_that_cannot_be_routed_ends_the_router_and_is_not_skipped(settings: KafkaSettings) -> None:
    plant(settings, [("broken", "p")], broken=True)
    plant(settings, [("broken", "p")])
    before = routed(settings).count("broken")
    for _ in range(2):
        with routing(settings) as failures:
            wait_until(lambda: bool(failures), "the router to end")  # called at once
        assert isinstance(failures[0], ContractError)
        assert "cannot be routed to checkout: no orders.Placed.v1: " in str(failures[0])
    assert routed(settings).count("broken") == before, "what comes behind it waits for it"


NOBODY_KNOWS = {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
"""What a new broker says until it has made the topic of offsets."""


def acknowledged(settings: KafkaSettings, partition: int) -> int:
    """How far routers have acknowledged a partition; below zero when they have not, or nobody knows yet."""
    consumer = Consumer({**settings.librdkafka(), "group.id": GROUP, "enable.auto.commit": False})
    try:
        (place,) = consumer.committed([TopicPartition(EVENTS, partition)], 20)
        return place.offset
    except KafkaException as error:
        if error.args[0].code() not in NOBODY_KNOWS:
            raise
        return OFFSET_INVALID
    finally:
        consumer.close()


@pytest.mark.faults
@pytest.mark.parametrize("ours", [True, False])
def test_what_is_not_written_yet_is_not_acknowledged_whatever_comes_behind_it(
    ours: bool, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event is a transaction of its own, so a marker lies between them; the twin takes what is read for done."""
    from leftfold.kafka.administration.topics import ensure
    from leftfold.local import embedded

    home = partition_of(b"first", app.partitions)
    held, behind, later = [n for n in map(str, range(100)) if partition_of(n.encode(), app.partitions) == home][:3]
    other = next(n for n in map(str, range(100)) if partition_of(n.encode(), app.partitions) != home)
    delivered = InputProducer._delivered

    def hold(self: InputProducer, written: Callable[[], None], error: Any, message: Any) -> None:
        delivered(self, (lambda: None) if message.key() == held.encode() else written, error, message)

    monkeypatch.setattr(InputProducer, "_delivered", hold)
    if not ours:
        monkeypatch.setattr(Frontier, "offsets", lambda self: dict(self._reached))
    with embedded(tmp_path_factory.mktemp("held"), want=frozenset({"kafka"})) as servers:
        settings = KafkaSettings(bootstrap_servers=servers.kafka)
        ensure(app, settings)
        for order in ("first", held, behind, other):
            plant(settings, [(order, "p")])
        at = {(r.key or b"").decode(): (r.partition, r.offset) for r in committed(settings, EVENTS)}
        with routing(settings) as failures:
            there, last = at[other]
            wait_until(lambda: acknowledged(settings, there) > last, lambda: f"elsewhere: {failures}")
            wait_until(lambda: behind in routed(settings), lambda: f"what comes behind: {failures}")
            plant(settings, [(later, "p")])
            wait_until(lambda: later in routed(settings), lambda: f"what another fetch brings: {failures}")
            if not ours:
                wait_until(lambda: acknowledged(settings, at[held][0]) > at[behind][1], "the loss")
        passed = acknowledged(settings, at[held][0]) > at[held][1]
    assert passed is not ours


@pytest.mark.faults
@pytest.mark.parametrize("remembers", [True, False])
def test_what_is_routed_again_is_done_once_because_its_origin_is_remembered(
    remembers: bool, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leftfold.kafka.administration.topics import ensure
    from leftfold.local import embedded

    if not remembers:
        monkeypatch.setattr(Reactor, "see", lambda self, instance, given: None)
    with embedded(tmp_path_factory.mktemp("again"), want=frozenset({"kafka"})) as servers:
        settings = KafkaSettings(bootstrap_servers=servers.kafka)
        ensure(app, settings)
        with Trading(settings) as trading:
            for order in ("a", "b", "c"):
                trading.client.send(Place(order=order, product=order, at=datetime.now(UTC)), timeout=240.0)
                trading.await_event("stock", Reserved(product=order, order=order))
        rewind(settings)
        with Trading(settings) as trading:
            trading.client.send(Pay(order="a"), timeout=240.0)
            trading.await_event("orders", Confirmed(order="a"))
            wait_until(lambda: placed(settings) >= 6, lambda: f"three inputs again: {placed(settings)}")
            place = Place(order="d", product="d", at=datetime.now(UTC))
            trading.client.send(place, timeout=240.0)
            trading.await_event("stock", Reserved(product="d", order="d"))
            sent = [header(r.headers, "ce_id") for r in trading.records("stock.commands")]
            reserved = trading.events("stock")
        assert len(reserved) == 4, "a decider knows the command's id, too"
        assert (len(sent) == len(set(sent)) == 4) is remembers


def test_a_broker_that_takes_too_long_ends_the_router_in_a_sentence(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made again then; what has no name of ours would end its process with a traceback."""
    monkeypatch.setattr(process_router, "_ANSWER_SECONDS", 1e-9)
    with routing(settings) as failures:
        wait_until(lambda: bool(failures), lambda: "the router to give up")
    assert isinstance(failures[0], InfrastructureError)
    assert "within 1e-09 s: asking how far events are routed to checkout" in str(failures[0])
