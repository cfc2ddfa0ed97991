"""What reaches the outside world: committed events from the beginning on, each stream in order, none lost."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from leftfold import ConfigurationError, ContractError, Delivery, InfrastructureError
from leftfold.kafka import consumer_group
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.reactions.start_offsets import RecordedPlaces, StartOffsets
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import header
from tests.domains.visits import Paid
from tests.planted import as_written, open_transaction
from tests.reactions.reacting import EVENTS, PARTITIONS, Acting, Post, done_up_to, made, write
from tests.settled import committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


def numbered(visit: str, *numbers: int) -> list[Paid]:
    return [Paid(visit=visit, number=number) for number in numbers]


def test_a_reaction_begins_at_the_end_or_where_it_is_said_to_and_continues_where_it_was(
    settings: KafkaSettings,
) -> None:
    """`leftfold run` says where each of them begins before it starts any."""
    visit, posts = "begins", {name: Post() for name in ("begins", "early", "past", "dated")}
    since = {"past": "start", "dated": datetime(2020, 1, 1, tzinfo=UTC)}
    apps = {name: made(settings, name, post.act, since=since.get(name, "end")) for name, post in posts.items()}
    write(settings, *numbered(visit, 1))
    StartOffsets(apps["early"], apps["early"].reaction("early"), settings).begin()
    with Acting(apps["begins"], "begins", settings):
        write(settings, *numbered(visit, 2))
        wait_until(lambda: posts["begins"].numbers(visit) == [2], lambda: f"the second: {posts['begins'].deliveries}")
    write(settings, *numbered(visit, 3))
    StartOffsets(apps["early"], apps["early"].reaction("early"), settings).begin()
    for name, numbers in {"begins": [2, 3], "early": [2, 3], "past": [1, 2, 3], "dated": [1, 2, 3]}.items():
        with Acting(apps[name], name, settings):
            wait_until(partial(_has, posts[name], visit, numbers), lambda: f"all since the beginning: {posts}")


def _has(post: Post, visit: str, numbers: list[int]) -> bool:
    return post.numbers(visit) == numbers


def test_an_event_of_a_transaction_that_is_open_at_the_beginning_happens_after_it(settings: KafkaSettings) -> None:
    post = Post()
    app = made(settings, "open", post.act)
    producer = open_transaction(settings, EVENTS, [as_written(Paid(visit="open"), PARTITIONS)])
    StartOffsets(app, app.reaction("open"), settings).begin()
    producer.commit_transaction(60)
    with Acting(app, "open", settings):
        wait_until(lambda: post.numbers("open") == [1], "the event")


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_an_aborted_event_is_not_acted_on(
    settings: KafkaSettings, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin reads the log as it stands."""
    careful, name = consumer_group.member_config, isolation.replace("_", "-")
    monkeypatch.setattr(
        consumer_group, "member_config", lambda *given: {**careful(*given), "isolation.level": isolation}
    )
    post = Post()
    with Acting(made(settings, name, post.act), name, settings):
        write(settings, *numbered(name, 1), commit=False)
        write(settings, *numbered(name, 2))
        wait_until(lambda: 2 in post.numbers(name), "the committed event")
    assert post.numbers(name) == ([2] if isolation == "read_committed" else [1, 2])


def test_the_order_of_a_stream_holds_while_some_are_tried_again_and_what_fails_is_parked(
    settings: KafkaSettings,
) -> None:
    def refuse(event: Paid, delivery: Delivery) -> None:
        if event.visit == "bad" and event.number == 2:
            raise OSError("https://me:hunter2@hook/bad?token=SEKRET is no address")
        if delivery.attempt < 1 + event.number % 3:
            raise OSError("not now")

    post = Post(refuse)
    app = made(settings, "order", post.act, attempts=4)
    good = [f"good-{number}" for number in range(3)]
    with Acting(app, "order", settings) as one:
        for number in range(1, 5):
            write(settings, *(Paid(visit=visit, number=number) for visit in ["bad", *good]))
        wait_until(
            lambda: len(post.deliveries) == 4 * len(good) + 3,
            lambda: f"all but one: {len(post.deliveries)} {one.failures} {one.reports[-3:]}",
        )
        ends = {r.partition: r.offset + 1 for r in committed(settings, EVENTS)}
        group = names.reacting(app.name, "order")
        wait_until(
            lambda: all(done_up_to(settings, group)[p] >= end for p, end in ends.items()),
            lambda: f"all to be done: {done_up_to(settings, group)} of {ends}",
        )
    assert [post.numbers(visit) for visit in good] == [[1, 2, 3, 4]] * len(good)
    assert post.numbers("bad") == [1, 3, 4]
    (dead,) = committed(settings, names.dead("order"))
    assert (dead.key, header(dead.headers, "dead_reason")) == (
        b"bad",
        b"OSError: https://***@hook/bad?token=*** is no address",
    )
    assert not any(secret in f"{one.reports}{dead.headers}" for secret in ("hunter2", "SEKRET"))
    assert header(dead.headers, "attempts") == b"4"
    assert header(dead.headers, "dead_source").startswith(b"visits.events/")
    assert header(dead.headers, "ce_type") == b"visits.Paid.v1"


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_reaction_that_has_lost_its_place_does_not_begin_elsewhere(
    settings: KafkaSettings, is_recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_recorded:
        monkeypatch.setattr(StartOffsets, "record", lambda self, offsets: None)
    post, name = Post(), f"lost-{is_recorded}".lower()
    app = made(settings, name, post.act)
    with Acting(app, name, settings):
        write(settings, *numbered(name, 1))
        wait_until(lambda: post.numbers(name) == [1], "the first")
    write(settings, *numbered(name, 2))
    forget(settings, names.reacting(app.name, name))
    with Acting(app, name, settings, fails=is_recorded) as one:
        if is_recorded:
            wait_until(lambda: bool(one.failures), "the refusal")
            assert isinstance(one.failures[0], InfrastructureError)
            assert f"leftfold reactions begin {name} --since" in str(one.failures[0])
        else:
            write(settings, *numbered(name, 3))
            wait_until(lambda: 3 in post.numbers(name), "what comes behind the loss")
    assert post.numbers(name) == ([1] if is_recorded else [1, 3])


def forget(settings: KafkaSettings, group: str) -> None:
    """Removes a group's offsets, as brokers do by themselves when no consumer uses it for a week."""
    admin = AdminClient(settings.librdkafka())

    def is_deleted() -> bool:
        try:
            admin.delete_consumer_groups([group])[group].result(240.0)
        except KafkaException as error:
            # Its member ended just now, and the broker may not have heard so.
            if error.args[0].code() != KafkaError.NON_EMPTY_GROUP:
                raise
            return False
        return True

    wait_until(is_deleted, f"the end of {group}")


def test_what_is_under_way_is_finished_when_it_is_asked_to_stop(settings: KafkaSettings) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(event: Paid, delivery: Delivery) -> None:
        begun.set()
        assert go_on.wait(240.0)

    post = Post(hold)
    app = made(settings, "finishes", post.act)
    with Acting(app, "finishes", settings) as one:
        write(settings, *numbered("finishes", 1))
        assert begun.wait(240.0)
        one.stop.set()
        go_on.set()
    with Acting(app, "finishes", settings):
        write(settings, *numbered("finishes", 2))
        wait_until(lambda: 2 in post.numbers("finishes"), "the next one")
    assert post.numbers("finishes") == [1, 2]


def test_a_topic_that_is_another_one_or_ends_before_what_was_done_is_refused(settings: KafkaSettings) -> None:
    """What was recorded before topics had ids gets one first."""
    app = made(settings, "moved", Post().act)
    places = RecordedPlaces(names.begun("moved"), settings)

    def begin() -> None:
        StartOffsets(app, app.reaction("moved"), settings).begin()

    begin()
    places.write(places.read())
    begin()
    again = RecordedPlaces(names.begun("moved"), settings)
    with ClusterAdmin(settings) as cluster:
        assert again.read().keys() == again.ids.keys()
        assert set(again.ids.values()) == {cluster.identity(EVENTS)}
    places.write({(EVENTS, 0): 0}, {EVENTS: "another"})
    with pytest.raises(ConfigurationError, match=r"with id another, .* leftfold reactions begin moved --since TIME"):
        begin()
    StartOffsets(app, app.reaction("moved"), settings).again("end")
    begin()
    with Consumer({**settings.librdkafka(), "group.id": names.reacting(app.name, "moved")}) as consumer:
        consumer.commit(offsets=[TopicPartition(EVENTS, 0, 1_000_000)], asynchronous=False)
    with pytest.raises(ConfigurationError, match=r"ends at \d+, but reaction moved has read it up to offset 1000000"):
        begin()


def test_a_broken_event_is_parked_and_a_newer_one_is_waited_at(settings: KafkaSettings) -> None:
    """The last test of this module: no later one could get past the newer event."""
    post = Post()
    app = made(settings, "newer", post.act)
    with Acting(app, "newer", settings, fails=True) as one:
        wait_until(one.serves_all, "the partitions")
        write(settings, *numbered("newer", 1), broken=True)
        write(settings, *numbered("newer", 2))
        wait_until(lambda: post.numbers("newer") == [2], "what comes behind the broken one")
        write(settings, *numbered("newer", 3), type_=b"visits.Paid.v2")
        wait_until(lambda: bool(one.failures), "the end")
    assert isinstance(one.failures[0], ContractError)
    (dead,) = committed(settings, names.dead("newer"))
    assert b"no visits.Paid.v1" in header(dead.headers, "dead_reason")
    at = [r for r in committed(settings, EVENTS) if header(r.headers, "ce_type") == b"visits.Paid.v2"][-1]
    assert done_up_to(settings, names.reacting(app.name, "newer"))[at.partition] <= at.offset
    elsewhere = next(v for v in map("v{}".format, range(99)) if partition_of(v.encode(), PARTITIONS) != at.partition)
    write(settings, *numbered(elsewhere, 1))
    with Acting(app, "newer", settings, fails=True) as again:
        wait_until(lambda: bool(again.failures), "the end")
    assert post.numbers(elsewhere) == [1], "what was read together with it is done before the process ends"
