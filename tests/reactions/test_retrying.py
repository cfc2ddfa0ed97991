"""What is parked is tried again, streams at once and each in its order; notes of deaths fit into what brokers keep."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from threading import BrokenBarrierError

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from leftfold import Delivery
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.reactions.parked import ParkedEvents, ReactionRetry
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.outgoing import Outgoing
from tests.domains.visits import Paid, app_with, receipts_with
from tests.reactions.reacting import EVENTS, PARTITIONS, Acting, Post, acting_until_parked, made, notes, write
from tests.servers import alter_topic
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.servers

VISITS = [f"visit-{number}" for number in range(3)]
EACH = 2
AT_ONCE, FAR = 64, 10**17


@pytest.mark.parametrize("at_once", [len(VISITS), 1], ids=["at once", "one by one"])
def test_streams_are_tried_at_once_and_each_in_its_order(settings: KafkaSettings, at_once: int) -> None:
    """Every act waits until all streams are at the same number; the twin does them one by one."""
    is_repaired, together = threading.Event(), threading.Barrier(len(VISITS), timeout=240.0 if at_once > 1 else 1.0)

    def meet(event: Paid, delivery: Delivery) -> None:
        if not is_repaired.is_set():
            raise OSError("down")
        together.wait()

    post, name = Post(meet), f"retried-{at_once}"
    app = made(settings, name, post.act, attempts=1, at_once=at_once, timeout=240.0)
    events = ParkedEvents(name, settings)
    with Acting(app, name, settings):
        for number in range(1, EACH + 1):
            write(settings, *(Paid(visit=visit, number=number) for visit in VISITS))
        wait_until(lambda: events.count() == EACH * len(VISITS), lambda: f"all to be parked: {events.count()}")
    is_repaired.set()
    counts: list[int] = []
    done, parked = ReactionRetry(app, name, settings).run(counts.append)
    if at_once > 1:
        assert (done, parked, counts[-1]) == (EACH * len(VISITS), {}, EACH * len(VISITS))
        assert [post.numbers(visit) for visit in VISITS] == [list(range(1, EACH + 1))] * len(VISITS)
        assert events.count() == 0
    else:
        assert set(parked.values()) == {BrokenBarrierError.__name__}
        assert (done, len(parked), events.count()) == (0, EACH * len(VISITS), EACH * len(VISITS))


def test_one_try_each_also_of_what_hangs_and_what_was_done_is_not_tried_again(settings: KafkaSettings) -> None:
    is_repaired, is_over = threading.Event(), threading.Event()

    def hang(event: Paid, delivery: Delivery) -> None:
        if not is_repaired.is_set():
            raise OSError("down")
        if event.visit == "hangs":
            assert not is_over.wait(240.0)

    post = Post(hang)
    app = made(settings, "hung", post.act, attempts=2, timeout=4.0)
    events = ParkedEvents("hung", settings)
    with Acting(app, "hung", settings):
        write(settings, Paid(visit="hangs"), Paid(visit="good"))
        wait_until(lambda: events.count() == 2, lambda: f"both to be parked: {events.count()}")
    is_repaired.set()
    try:
        done, parked = ReactionRetry(app, "hung", settings).run()
        assert (done, list(parked.values())) == (1, ["TimeoutError: no end within 4 s"])
        assert events.count() == 1
        assert post.numbers("good") == [1]
    finally:
        is_over.set()


def fails(event: Paid, delivery: Delivery) -> None:
    raise OSError("down")


def test_what_cannot_be_read_is_parked_again_and_what_is_behind_it_is_tried(settings: KafkaSettings) -> None:
    app = made(settings, "strange", fails, attempts=1)
    events = ParkedEvents("strange", settings)
    with Acting(app, "strange", settings):
        write(settings, Paid(visit="before"))
        wait_until(lambda: events.count() == 1, "the first to be parked")
        foreign = partition_of(b"before", PARTITIONS)
        write_record(settings, names.dead("strange"), Outgoing(foreign, b"before", b"{}", ()))
        write(settings, Paid(visit="before", number=2))
        wait_until(lambda: events.count() == 3, "the second to be parked")
    post = Post()
    corrected = app_with(receipts_with(post.act, name="strange"), partitions=PARTITIONS)
    for done, numbers in ((2, [1, 2]), (0, [1, 2])):
        tried = ReactionRetry(corrected, "strange", settings).run()
        assert (tried.done, post.numbers("before")) == (done, numbers)
        (why,) = tried.parked.values()
        assert "dead_source is b''" in why
        assert events.count() == 1


def test_offsets_of_a_deleted_topic_of_parked_events_hide_none_in_the_next_one(settings: KafkaSettings) -> None:
    app, dead = made(settings, "again", fails, attempts=1), names.dead("again")
    with Acting(app, "again", settings):
        for number in range(3):
            write(settings, Paid(visit="v", number=number))
        events = ParkedEvents("again", settings)
        wait_until(lambda: events.count() == 3, "them to be parked")
    post = Post()
    corrected = app_with(receipts_with(post.act, name="again"), partitions=PARTITIONS)
    assert ReactionRetry(corrected, "again", settings).run().done == 3
    admin = AdminClient(settings.librdkafka())
    admin.delete_topics([dead])[dead].result(WAIT_SECONDS)
    wait_until(lambda: dead not in admin.list_topics(timeout=WAIT_SECONDS).topics, "the end of the topic")
    ensure(app, settings)
    with Acting(app, "again", settings):
        write(settings, Paid(visit="v", number=4))
        wait_until(lambda: events.count() == 1, lambda: f"the next one to be parked: {events.count()}")


def test_an_event_whose_copy_would_be_too_large_is_parked_without_it_and_read_from_the_log(
    settings: KafkaSettings,
) -> None:
    app, visit, post = made(settings, "heavy", fails, attempts=1), "v" * 5000, Post()
    alter_topic(settings, names.dead("heavy"), {"max.message.bytes": "8000"})
    acting_until_parked(settings, app, "heavy", Paid(visit=visit, number=1))
    (copy,) = ParkedEvents("heavy", settings).read()
    assert copy.value is None
    corrected = app_with(receipts_with(post.act, name="heavy"), partitions=PARTITIONS)
    assert ReactionRetry(corrected, "heavy", settings).run() == (1, {})
    assert post.numbers(visit) == [1]


def left_behind(settings: KafkaSettings, group: str, note: str) -> None:
    """A process has died at the first event of partition 0 and has done all of the others."""
    consumer = Consumer({**settings.librdkafka(), "group.id": group, "enable.auto.commit": False})
    try:
        others = [TopicPartition(EVENTS, partition) for partition in range(1, PARTITIONS)]
        for place in others:
            _, place.offset = consumer.get_watermark_offsets(place, WAIT_SECONDS)
        done = consumer.commit(offsets=[TopicPartition(EVENTS, 0, 0, note), *others], asynchronous=False)
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
    visits = set(visits_of_the_first_partition())
    write(settings, *(Paid(visit=visit) for visit in visits))
    try:
        with Acting(app, name, settings):
            wait_until(lambda: len(begun) == AT_ONCE, lambda: f"all of them: {len(begun)}, {notes(settings, group)}")
            note = json.loads(notes(settings, group)[0])
            assert len(note["at"]) == AT_ONCE
            assert set(note["deaths"].values()) == {1}
            assert min(note["deaths"]) == str(FAR), "the lowest are kept"
            hang.set()
            # Events of other tests may lie before these in the topic.
            wait_until(lambda: all(map(post.numbers, visits)), lambda: f"their ends: {post.keys()}, {begun}")
    finally:
        hang.set()
