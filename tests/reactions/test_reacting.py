"""What reaches the outside world: committed events from the beginning on, each stream in order, none lost."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from leftfold import ContractError, Delivery, InfrastructureError
from leftfold.engine.reactions.delivery import Frontier
from leftfold.kafka import group_member
from leftfold.kafka.reactions.start_offsets import StartOffsets
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.codec import header
from tests.domains.visits import Paid
from tests.process.trading import committed
from tests.reactions.reacting import EVENTS, PARTITIONS, Post, acting, done_up_to, made, notes, write
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


def numbered(visit: str, *numbers: int) -> list[Paid]:
    return [Paid(visit=visit, number=number) for number in numbers]


def test_a_new_reaction_begins_at_the_end_and_goes_on_where_it_was(settings: KafkaSettings) -> None:
    post = Post()
    app = made(settings, "begins", post.act)
    write(settings, *numbered("begins", 1))
    with acting(app, "begins", settings):
        write(settings, *numbered("begins", 2))
        wait_until(lambda: post.numbers("begins") == [2], lambda: f"the second: {post.numbers('begins')}")
    write(settings, *numbered("begins", 3))
    with acting(app, "begins", settings):
        wait_until(lambda: post.numbers("begins") == [2, 3], lambda: f"the third, once: {post.numbers('begins')}")


def test_run_says_where_a_reaction_begins_before_anybody_acts(settings: KafkaSettings) -> None:
    post = Post()
    app = made(settings, "early", post.act)
    write(settings, *numbered("early", 1))
    StartOffsets(app, app.reaction("early"), settings).begin()
    write(settings, *numbered("early", 2))
    StartOffsets(app, app.reaction("early"), settings).begin()
    with acting(app, "early", settings):
        wait_until(lambda: post.numbers("early") == [2], lambda: f"what came since: {post.numbers('early')}")


@pytest.mark.parametrize("since", ["start", datetime(2020, 1, 1, tzinfo=UTC)], ids=["start", "date"])
def test_who_wants_the_past_says_so(settings: KafkaSettings, since: Any) -> None:
    post, name = Post(), f"past-{'start' if since == 'start' else 'date'}"
    write(settings, *numbered(name, 1))
    app = made(settings, name, post.act, since=since)
    with acting(app, name, settings):
        wait_until(lambda: post.numbers(name) == [1], "the past")


def test_an_event_of_a_transaction_that_is_open_at_the_beginning_happens_after_it(settings: KafkaSettings) -> None:
    from confluent_kafka import Producer

    post = Post()
    app = made(settings, "open", post.act)
    producer = Producer({**settings.librdkafka(), "transactional.id": "open"})
    producer.init_transactions(60)
    producer.begin_transaction()
    headers: Any = [
        ("ce_id", b"open"), ("ce_type", b"visits.Paid.v1"), ("ce_time", b"2026-01-01T00:00:00Z"),
        ("ce_sequence", b"1"), ("ce_decision", b"1/1"),
    ]  # fmt: skip
    producer.produce(EVENTS, Paid(visit="open").model_dump_json().encode(), b"open", 0, headers=headers)
    producer.flush(240.0)
    StartOffsets(app, app.reaction("open"), settings).begin()
    producer.commit_transaction(60)
    with acting(app, "open", settings):
        wait_until(lambda: post.numbers("open") == [1], "the event")


def test_an_aborted_event_reaches_nobody(settings: KafkaSettings) -> None:
    post = Post()
    app = made(settings, "aborts", post.act)
    with acting(app, "aborts", settings):
        write(settings, *numbered("aborts", 1), commit=False)
        write(settings, *numbered("aborts", 2))
        wait_until(lambda: bool(post.numbers("aborts")), "the committed event")
    assert post.numbers("aborts") == [2]


def test_read_as_it_stands_in_the_log_an_aborted_event_would_arrive(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    careful = group_member.member_config

    def careless(*given: Any) -> dict[str, Any]:
        return {**careful(*given), "isolation.level": "read_uncommitted"}

    monkeypatch.setattr(group_member, "member_config", careless)
    post = Post()
    app = made(settings, "careless", post.act)
    with acting(app, "careless", settings):
        write(settings, *numbered("careless", 1), commit=False)
        wait_until(lambda: post.numbers("careless") == [1], "the aborted event")


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
    good = [f"good-{number}" for number in range(6)]
    with acting(app, "order", settings) as one:
        for number in range(1, 8):
            write(settings, *(Paid(visit=visit, number=number) for visit in ["bad", *good]))
        wait_until(
            lambda: len(post.deliveries) == 7 * len(good) + 6,
            lambda: f"all but one: {len(post.deliveries)} {one.failures} {one.reports[-3:]}",
        )
        ends = {r.partition: r.offset + 1 for r in committed(settings, EVENTS)}
        group = names.reacting(app.name, "order")
        wait_until(
            lambda: all(done_up_to(settings, group)[p] >= end for p, end in ends.items()),
            lambda: f"all to be done: {done_up_to(settings, group)} of {ends}",
        )
    assert [post.numbers(visit) for visit in good] == [list(range(1, 8))] * len(good)
    assert post.numbers("bad") == [1, 3, 4, 5, 6, 7]
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
    with acting(app, name, settings):
        write(settings, *numbered(name, 1))
        wait_until(lambda: post.numbers(name) == [1], "the first")
    write(settings, *numbered(name, 2))
    forget(settings, names.reacting(app.name, name))
    with acting(app, name, settings, fails=is_recorded) as one:
        if is_recorded:
            wait_until(lambda: bool(one.failures), "the refusal")
            assert isinstance(one.failures[0], InfrastructureError)
            assert f"leftfold reactions begin {name} --since" in str(one.failures[0])
        else:
            write(settings, *numbered(name, 3))
            wait_until(lambda: 3 in post.numbers(name), "what comes behind the loss")
    assert post.numbers(name) == ([1] if is_recorded else [1, 3])


def forget(settings: KafkaSettings, group: str) -> None:
    """Removes a group's offsets, as brokers do by themselves when nobody uses it for a week."""
    admin = AdminClient(settings.librdkafka())
    for future in admin.delete_consumer_groups([group]).values():
        future.result(240.0)


def test_two_processes_share_the_partitions_and_nothing_is_lost_when_one_leaves(settings: KafkaSettings) -> None:
    post = Post()
    app = made(settings, "shared", post.act)
    visits = [f"shared-{number}" for number in range(8)]

    def all_sent(upto: int) -> bool:
        return all(set(post.numbers(visit)) == set(range(1, upto + 1)) for visit in visits)

    with acting(app, "shared", settings) as first:
        from tests.reactions.reacting import Acting

        second = Acting(app, "shared", settings)
        wait_until(
            lambda: [len(one.reacting.served) for one in (first, second)] == [1, 1],
            lambda: f"one partition each: {first.reports} {second.reports} {second.failures}",
        )
        for number in (1, 2):
            write(settings, *(Paid(visit=visit, number=number) for visit in visits))
        wait_until(lambda: all_sent(2), lambda: f"all: {post.deliveries}")
        second.end()
        write(settings, *(Paid(visit=visit, number=3) for visit in visits))
        wait_until(lambda: all_sent(3), lambda: f"all: {post.deliveries}")
    assert not second.failures
    assert [post.numbers(visit) for visit in visits] == [[1, 2, 3]] * len(visits), "both left in order"
    assert max(Counter(post.keys()).values()) == 1


def test_what_is_under_way_is_finished_when_it_is_told_to_stop(settings: KafkaSettings) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(event: Paid, delivery: Delivery) -> None:
        begun.set()
        assert go_on.wait(240.0)

    post = Post(hold)
    app = made(settings, "finishes", post.act)
    with acting(app, "finishes", settings) as one:
        write(settings, *numbered("finishes", 1))
        assert begun.wait(240.0)
        one.stop.set()
        go_on.set()
    with acting(app, "finishes", settings):
        write(settings, *numbered("finishes", 2))
        wait_until(lambda: 2 in post.numbers("finishes"), "the next one")
    assert post.numbers("finishes") == [1, 2]


def test_who_leaves_in_order_leaves_no_suspicion_though_something_is_under_way(settings: KafkaSettings) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(event: Paid, delivery: Delivery) -> None:
        begun.set()
        go_on.wait(240.0)

    app = made(settings, "orderly", Post(hold).act)
    group = names.reacting(app.name, "orderly")
    try:
        with acting(app, "orderly", settings):
            write(settings, *numbered("orderly", 1))
            assert begun.wait(240.0)
            home = partition_of(b"orderly", PARTITIONS)
            assert notes(settings, group)[home] == "w", "before anything began"
        assert set(notes(settings, group).values()) == {""}
    finally:
        go_on.set()


@pytest.mark.parametrize("ours", [True, False])
def test_what_is_not_done_is_not_committed_whatever_comes_behind_it(
    settings: KafkaSettings, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever dies then loses nothing; the twin takes what is read for done."""
    go_on, name = threading.Event(), f"held-{ours}".lower()

    def hold(event: Paid, delivery: Delivery) -> None:
        assert event.visit != held or go_on.wait(240.0)

    if not ours:
        monkeypatch.setattr(Frontier, "offsets", lambda self: dict(self._reached))
    visits = [f"{name}-{number}" for number in range(100)]
    held, behind = [visit for visit in visits if partition_of(visit.encode(), PARTITIONS) == 0][:2]
    other = next(visit for visit in visits if partition_of(visit.encode(), PARTITIONS) == 1)
    post = Post(hold)
    app = made(settings, name, post.act)
    group = names.reacting(app.name, name)
    with acting(app, name, settings):
        for visit in (held, behind, other):
            write(settings, Paid(visit=visit))
        at = {(r.key or b"").decode(): r.offset for r in committed(settings, EVENTS)}
        wait_until(lambda: post.numbers(behind) == [1], "what comes behind")
        wait_until(lambda: done_up_to(settings, group)[1] > at[other], "the other partition")
        if not ours:
            wait_until(lambda: done_up_to(settings, group)[0] > at[behind], "the loss")
        passed = done_up_to(settings, group)[0] > at[held]
        go_on.set()
    assert passed is not ours


def test_a_broken_event_is_parked_and_a_newer_one_is_waited_at(settings: KafkaSettings) -> None:
    """The last test of this module: nobody could get past the newer event."""
    post = Post()
    app = made(settings, "newer", post.act)
    with acting(app, "newer", settings, fails=True) as one:
        wait_until(lambda: len(one.reacting.served) == PARTITIONS, "the partitions")
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
