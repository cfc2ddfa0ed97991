"""Of two operators who retry what a reaction has parked the earlier one stops; what it handles no more is discarded."""

from __future__ import annotations

import threading

import pytest

from leftfold import Delivery, Reaction
from leftfold.errors import Fenced
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.reactions.parked import ParkedEvents, ReactionRetry
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.outgoing import Outgoing
from leftfold.runtime.operations.reactions import discard_parked, parked_events
from leftfold.runtime.project import Usage
from tests.domains.visits import Left, Paid, app_with, receipts_with
from tests.reactions.reacting import PARTITIONS, Post, acting_until_parked, made
from tests.threads import Background
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.servers

VISITS = ["a", "b", "c"]


def fails(event: Paid, delivery: Delivery) -> None:
    raise OSError("down")


@pytest.mark.parametrize("noted", [True, False], ids=["noted", "twin"])
def test_of_two_retries_the_earlier_one_stops_before_its_next_try(
    settings: KafkaSettings, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin notes nothing before a try: both act on every event."""
    name, first, go_on = f"retried-{'noted' if noted else 'twin'}", threading.Event(), threading.Event()

    def wait(event: Paid, delivery: Delivery) -> None:
        if not first.is_set():
            first.set()
            assert go_on.wait(WAIT_SECONDS)

    acting_until_parked(settings, made(settings, name, fails, attempts=1), name, *(Paid(visit=one) for one in VISITS))
    post, events = Post(wait), ParkedEvents(name, settings)
    app = app_with(receipts_with(post.act, name=name, at_once=1), partitions=PARTITIONS)
    if not noted:
        monkeypatch.setattr(ReactionRetry, "_note", lambda self: True)
    with Background(lambda stop: ReactionRetry(app, name, settings).run(), raises=False) as earlier:
        wait_until(first.is_set, lambda: f"its first try: {earlier.failures}")
        later = ReactionRetry(app, name, settings).run()
        go_on.set()
    assert (later.done, later.parked) == (len(VISITS), {})
    assert len(post.deliveries) == len(VISITS) + (1 if noted else len(VISITS))
    assert len(set(post.keys())) == len(VISITS), "a second try has the same idempotency key"
    assert [(type(error), "leftfold reactions parked" in str(error)) for error in earlier.failures] == (
        [(Fenced, True)] if noted else []
    )
    assert (events.count() == 0) is noted


def test_an_event_that_was_parked_twice_is_tried_once(settings: KafkaSettings) -> None:
    name = "parked-twice"
    acting_until_parked(settings, made(settings, name, fails, attempts=1), name, Paid(visit="a"))
    events = ParkedEvents(name, settings)
    (record,) = events.read()
    write_record(settings, names.dead(name), Outgoing(record.partition, record.key, record.value, record.headers))
    assert events.count() == 2
    post = Post()
    retry = ReactionRetry(app_with(receipts_with(post.act, name=name), partitions=PARTITIONS), name, settings)
    assert (retry.run().done, len(post.deliveries), events.count()) == (1, 1, 0)


def test_what_is_not_handled_any_more_is_discarded_and_the_rest_is_tried(settings: KafkaSettings) -> None:
    """Without that, each retry parks it again, and nothing ever clears it."""
    name, post = "discarded", Post()
    acting_until_parked(settings, made(settings, name, fails, attempts=1), name, *(Paid(visit=one) for one in VISITS))
    foreign = Outgoing(0, b"a", b"{}", ())
    write_record(settings, names.dead(name), foreign)
    events, kafka, signed = ParkedEvents(name, settings), settings.bootstrap_servers, {"why": "ticket 1", "who": "ann"}
    other = app_with(Reaction(name, events=Left, act=lambda event, delivery: None), partitions=PARTITIONS)
    retried = ReactionRetry(other, name, settings).run()
    assert (retried.done, len(retried.parked), events.count()) == (0, 4, 4), "a retry alone clears nothing"

    listed = [row["event"] for row in parked_events(name, kafka)]
    with pytest.raises(Usage, match="visits.events/9/9 is not parked; see what is: leftfold reactions parked"):
        discard_parked(other, name, kafka, ["visits.events/9/9"], **signed)
    corrected = app_with(receipts_with(post.act, name=name), partitions=PARTITIONS)
    assert discard_parked(corrected, name, kafka, (), **signed) == 1, "the foreign record"
    one = next(event for event in listed if event.startswith("visits.events/"))
    assert discard_parked(corrected, name, kafka, [one], **signed) == 1
    assert events.count() == 2
    assert one not in [row["event"] for row in parked_events(name, kafka)]
    assert ReactionRetry(corrected, name, settings).run().done == 2
    assert (len(post.deliveries), events.count()) == (2, 0)
    assert discard_parked(other, name, kafka, (), **signed) == 0
