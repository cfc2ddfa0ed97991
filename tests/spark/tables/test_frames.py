"""The log as DataFrames, and the state topic against the fold of the events."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

import pytest
from confluent_kafka import Producer

from leftfold import App, Command, Decider, Event
from leftfold.engine.processing.state_check import StateCheck, check_locally
from leftfold.engine.processing.stream_state import Stream, StreamCodec
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.bulk_log import KafkaBulkLog
from leftfold.model.keys import state
from leftfold.spark import events, states
from leftfold.spark.core.task_io import spark_checks
from tests.domains.ledger import app, by_owner, ledgers
from tests.spark.conftest import Shop
from tests.spark.oracle import truth

pytestmark = pytest.mark.servers


def test_events_are_a_typed_frame_of_what_is_committed(shop: Shop) -> None:
    frame = events(shop.spark, app, "ledgers", shop.kafka.java())
    frame.createOrReplaceTempView("ledgers")
    rows = shop.spark.sql(
        "SELECT owner, sum(amount) AS total FROM ledgers WHERE amount IS NOT NULL GROUP BY owner"
    ).collect()
    totals = {row.owner: row.total for row in rows}
    assert totals == {key: row.total for key, row in truth(shop, by_owner).items()}, "what was aborted is not there"
    assert dict(frame.dtypes)["_time"] == "timestamp"


class Switched(Event, category="lamps", key="lamp"):
    lamp: str


class Press(Command, category="lamps", key="lamp"):
    lamp: str


@dataclass(frozen=True)
class Off:
    presses: int = 0


@dataclass(frozen=True)
class On:
    presses: int
    watts: Decimal


lamps = Decider(
    "lamps",
    commands=Press,
    events=Switched,
    state=Off | On | None,
    initial_state=None,
    decide=lambda command, state: [Switched(lamp=command.lamp)],
    evolve=lambda state, event: On(1, Decimal("7.5")),
)


def test_a_state_that_is_one_of_several_classes_has_the_columns_of_all(shop: Shop) -> None:
    lit = App("lamps", partitions=1, deciders=[lamps])
    ensure(lit, shop.kafka)
    codec, producer = StreamCodec(lamps.state, lamps.initial_state), Producer(shop.kafka.librdkafka())
    held: dict[str, Off | On | None] = {"a": Off(2), "b": On(3, Decimal("7.5")), "c": None}
    for key, state_ in held.items():
        producer.produce(state("lamps", 1), codec.encode(Stream(4, state_, {}, {})), key.encode(), 0)
    producer.flush(240.0)
    frame = states(shop.spark, lit, "lamps", shop.kafka.java())
    rows = {row._key: (row._type, row._version, row.presses, row.watts) for row in frame.collect()}
    assert rows == {"a": ("Off", 4, 2, None), "b": ("On", 4, 3, Decimal("7.5")), "c": (None, 4, None, None)}


def test_states_are_the_latest_and_agree_with_the_events_until_something_else_writes_to_their_topic(
    shop: Shop,
) -> None:
    found = {row._key: row for row in states(shop.spark, app, "ledgers", shop.kafka.java()).collect()}
    moved = events(shop.spark, app, "ledgers", shop.kafka.java()).where("_type = 'Moved.v1'").groupBy("_key").count()
    assert {row._key: row["count"] for row in moved.collect()} == {
        key: row.moves for key, row in found.items() if row.moves
    }
    check = StateCheck.plan(ledgers, partial(KafkaBulkLog, shop.kafka))
    for checks in (list(check_locally(check, lambda count: None)), spark_checks(shop.spark)(check, lambda count: None)):
        assert sum(one.streams for one in checks) == len(found) >= 30
        assert not [one for one in checks if one.differences]
    topic, place = state("ledgers", 1), found["l-3"]
    forged = {"version": place._version, "state": {"moves": 999_999}, "answered": [], "origins": {}}
    producer = Producer(shop.kafka.librdkafka())
    producer.produce(topic, json.dumps(forged, separators=(",", ":")).encode(), b"l-3", place._partition)
    producer.flush(240.0)
    again = StateCheck.plan(ledgers, partial(KafkaBulkLog, shop.kafka))
    (difference,) = [d for one in spark_checks(shop.spark)(again, lambda count: None) for d in one.differences]
    assert difference.key == "l-3"
    assert "999999" in difference.found
    assert "999999" not in difference.expected
