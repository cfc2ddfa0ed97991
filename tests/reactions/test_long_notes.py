"""A broker keeps what a reaction notes, however many of its processes have died in a row."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from leftfold import Delivery
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from tests.domains.visits import Paid
from tests.reactions.reacting import EVENTS, PARTITIONS, Post, acting, made, notes, write
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

AT_ONCE, FAR = 64, 10**17


def left_behind(settings: KafkaSettings, group: str, note: str) -> None:
    """A process has died at the first event of partition 0."""
    consumer = Consumer({**settings.librdkafka(), "group.id": group, "enable.auto.commit": False})
    try:
        done = consumer.commit(offsets=[TopicPartition(EVENTS, 0, 0, note)], asynchronous=False)
        assert not any(tp.error for tp in done or ())
    finally:
        consumer.close()


def visits_of_the_first_partition() -> Iterator[str]:
    """As many as are acted on at once."""
    found = (visit for number in range(100_000) if partition_of((visit := f"v{number}").encode(), PARTITIONS) == 0)
    return (next(found) for _ in range(AT_ONCE))


def test_a_reaction_begins_though_its_predecessors_have_left_all_that_a_broker_takes(settings: KafkaSettings) -> None:
    hang = threading.Event()

    def wait(event: Paid, delivery: Delivery) -> None:
        begun.append(event.visit)
        hang.wait(240.0)

    name, begun, post = "verbose", list[str](), Post(wait)
    app = made(settings, name, post.act, since="start", at_once=AT_ONCE)
    group = names.reacting(app.name, name)
    suspects = {str(FAR + number): 1 for number in range(115)}
    at = [FAR + 115 + number for number in range(AT_ONCE)]
    left_behind(settings, group, json.dumps({"deaths": suspects, "at": at}, separators=(",", ":")))
    write(settings, *(Paid(visit=visit) for visit in visits_of_the_first_partition()))
    try:
        with acting(app, name, settings):
            wait_until(lambda: len(begun) == AT_ONCE, lambda: f"all of them: {len(begun)}, {notes(settings, group)}")
            note = json.loads(notes(settings, group)[0])
            assert len(note["at"]) == AT_ONCE
            assert set(note["deaths"].values()) == {1}
            assert min(note["deaths"]) == str(FAR), "the lowest are kept"
            hang.set()
            wait_until(lambda: len(post.deliveries) == AT_ONCE, "their ends")
    finally:
        hang.set()
