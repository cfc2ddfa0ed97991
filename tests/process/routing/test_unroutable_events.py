"""Events that cannot be read: routers end at them until an operator says that they need not reach the process."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Producer

from leftfold.errors import ContractError
from leftfold.kafka import process_router
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.servers import skipped_letters
from tests.cli.shell import Typing
from tests.domains.trade import app
from tests.process.routing.routers import EVENTS, plant, routed, routing
from tests.settled import committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture
def skip(typed: Typing) -> Typing:
    """Types `leftfold log skip checkout ...`."""
    return partial(typed, "log", "skip", "checkout", "--app", "tests.domains.trade:app")


def refused(settings: KafkaSettings) -> str:
    """What a router says that ends at an event."""
    with routing(settings, skipped=partial(skipped_letters, settings, "checkout")) as failures:
        wait_until(lambda: bool(failures), "the router to end")
    assert isinstance(failures[0], ContractError)
    return str(failures[0])


def letters(settings: KafkaSettings) -> list[RawRecord]:
    return committed(settings, "checkout.dead")


def test_an_event_that_no_router_can_read_is_passed_over_once_an_operator_has_said_so(
    settings: KafkaSettings, skip: Typing
) -> None:
    """The twin's routers do not ask, and stand still."""
    key = "broken"
    plant(settings, [(key, "p")], broken=True)
    plant(settings, [(key, "q")])
    said = refused(settings)
    place = said[: said.index(" cannot be routed to checkout: no orders.Placed.v1: ")]
    assert place.startswith(f"orders.events[{partition_of(key.encode(), app.partitions)}]@")
    assert f"have it passed over: leftfold log skip checkout '{place}' --reason WHY" in said
    assert key not in routed(settings), "what comes behind it waits for it"
    assert skip(place).code == 2, "why?"
    skip(place, "--reason", "ticket 4711").ended(2, "this event will never reach the process")
    assert refused(settings) == said
    assert letters(settings) == []
    skip(place, "--reason", "ticket 4711", "--by", "anna", "--yes").ended(0, "kept in checkout.dead")
    (letter,) = letters(settings)
    assert (letter.key, letter.value) == (key.encode(), b"{}")
    why = header(letter.headers, "dead_reason").decode()
    assert why.startswith("passed over by anna: ticket 4711; no orders.Placed.v1: ")
    with routing(settings) as failures:
        wait_until(lambda: bool(failures), "the twin's router to end")
    assert key not in routed(settings)
    with routing(settings, skipped=partial(skipped_letters, settings, "checkout")) as failures:
        wait_until(lambda: bool(failures) or key in routed(settings), "what comes behind it")
    assert not failures
    assert routed(settings).count(key) == 1, "of two, one is passed over"


def test_only_what_cannot_be_routed_is_passed_over(settings: KafkaSettings, skip: Typing) -> None:
    plant(settings, [("good", "p")])
    (good,) = [record for record in committed(settings, EVENTS) if record.key == b"good"]
    before = len(letters(settings))
    why = ("--reason", "by mistake", "--yes")
    for place, said in {
        f"orders.events[{good.partition}]@{good.offset}": "can be routed to checkout",
        f"orders.events/{good.partition}/{good.offset}": "can be routed to checkout",
        f"orders.events[{good.partition}]@{good.offset + 1_000}": "no committed record stands there",
        "orders.events[77]@0": "no committed record stands there",
        "nowhere.events[0]@0": "checkout does not listen to nowhere.events; it does to orders.events, ",
        "checkout.commands[0]@0": "does not listen",
        "orders.events": "is no place of an event; write it as routers tell it: 'orders.events[2]@7'",
        "orders.events[²]@7": "is no place of an event",
    }.items():
        reported = skip(place, *why)
        assert reported.code != 0
        assert said in reported.err, reported
    assert len(letters(settings)) == before


@pytest.mark.parametrize("checks", [True, False])
def test_foreign_events_with_strange_headers_end_no_router(
    settings: KafkaSettings, checks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin takes every time for one."""
    if not checks:
        monkeypatch.setattr(process_router, "time_in", lambda text: datetime.fromisoformat(text.decode()))
    key = f"behind-{checks}"
    strange: Any = [("ce_type", b"orders.Heard.v1"), ("ce_id", b"\xff"), ("ce_time", b"yesterday")]
    producer = Producer(settings.librdkafka())
    producer.produce(EVENTS, b"{", key.encode(), partition_of(key.encode(), app.partitions), headers=strange)
    assert not producer.flush(240.0)
    plant(settings, [(key, "p")])
    with routing(settings) as failures:
        wait_until(lambda: bool(failures) or key in routed(settings), "what comes behind it")
    assert bool(failures) is not checks
    assert (key in routed(settings)) is checks
