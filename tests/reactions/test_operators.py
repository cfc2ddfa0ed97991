"""Of two operators who retry what a reaction has parked the earlier one stops; what it handles no more is discarded."""

from __future__ import annotations

import threading
from pathlib import Path

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
from tests.reactions.shell import Shell
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
    app = app_with(receipts_with(post.act, name=name, at_once=1, timeout=WAIT_SECONDS), partitions=PARTITIONS)
    if not noted:
        monkeypatch.setattr(ReactionRetry, "_note", lambda self: True)
    with Background(lambda stop: ReactionRetry(app, name, settings).run(), raises=False) as earlier:
        wait_until(first.is_set, lambda: f"its first try: {earlier.failures}")
        try:
            later = ReactionRetry(app, name, settings).run()
        finally:
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


def test_an_event_of_a_topic_that_was_made_again_is_another_one_at_the_same_place(settings: KafkaSettings) -> None:
    name = "made-again"
    acting_until_parked(settings, made(settings, name, fails, attempts=1), name, Paid(visit="a"))
    (record,) = ParkedEvents(name, settings).read()
    headers = [(key, b"other" if key == "idempotency_key" else value) for key, value in record.headers]
    write_record(settings, names.dead(name), Outgoing(record.partition, record.key, record.value, headers))
    post = Post()
    retry = ReactionRetry(app_with(receipts_with(post.act, name=name), partitions=PARTITIONS), name, settings)
    assert (retry.run().done, len(post.deliveries)) == (2, 2)


def test_a_retry_that_has_nothing_to_try_writes_no_copy_once_another_one_is_at_work(settings: KafkaSettings) -> None:
    name = "copied"
    acting_until_parked(settings, made(settings, name, fails, attempts=1), name, Paid(visit="a"))
    other = app_with(Reaction(name, events=Left, act=lambda event, delivery: None), partitions=PARTITIONS)
    earlier = ReactionRetry(other, name, settings)
    ends, its_own = ParkedEvents(name, settings)._range()[1], app_with(receipts_with(fails, name=name))
    assert discard_parked(its_own, name, settings.bootstrap_servers, (), why="ticket 1", who="ann") == 0
    # Who has found nothing to discard has ended no other's work.
    earlier._events.passed({(names.dead(name), 0): 0}, earlier._producer)
    later = ParkedEvents(name, settings).taken()
    with pytest.raises(Fenced, match="another operator is at work on copied.dead, and this one stopped"):
        earlier.run()
    assert ParkedEvents(name, settings)._range()[1] == ends
    ParkedEvents(name, settings).passed({}, later)


@pytest.mark.parametrize(
    ("headers", "discarded"),
    [
        ({"ce_type": b"visits.Left.v1"}, 1),
        ({"ce_type": b"visits.Paid.v9"}, 0),
        ({"dead_reference": b"true", "dead_source": b"visits.events/0/987654321"}, 0),
        ({"ce_time": b"never"}, 0),
    ],
    ids=["another type", "a newer version", "lost", "broken"],
)
def test_only_events_of_other_types_are_discarded_unnamed(
    settings: KafkaSettings, headers: dict[str, bytes], discarded: int, request: pytest.FixtureRequest
) -> None:
    """Newer code handles the newer version, and an archive may have what is lost."""
    name = request.node.callspec.id.replace(" ", "-")
    app = made(settings, name, fails, attempts=1)
    acting_until_parked(settings, app, name, Paid(visit="a"))
    events = ParkedEvents(name, settings)
    (record,) = events.read()
    changed = list((dict(record.headers) | headers).items())
    write_record(settings, names.dead(name), Outgoing(record.partition, record.key, record.value, changed))
    kafka = settings.bootstrap_servers
    assert discard_parked(app, name, kafka, (), why="ticket 1", who="ann") == discarded
    assert events.count() == 2 - discarded


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


def test_a_discard_is_asked_for_signed_and_counted(settings: KafkaSettings, tmp_path: Path) -> None:
    """The App's own reaction handles what is parked here; another's record is parked beside it."""
    shell = Shell("tests.reactions.posting:app", settings, tmp_path, {})
    app = made(settings, "telling", fails, attempts=1)
    acting_until_parked(settings, app, "telling", Paid(visit="a"))
    write_record(settings, names.dead("telling"), Outgoing(0, b"a", b"{}", ()))
    code, parked = shell.tell("reactions", "parked", "telling")
    assert (code, len(parked)) == (1, 2)
    words = ("reactions", "discard", "telling")
    assert shell(*words, stdin="").ended(2, "--reason")
    signed = ("--reason", "ticket 1", "--by", "ann")
    shell(*words, *signed).ended(2, "--yes")
    assert ParkedEvents("telling", settings).count() == 2, "it was not agreed to"
    assert shell.tell(*words, *signed, "--yes") == (0, [{"reaction": "telling", "discarded": 1}])
    assert "telling: 0 events discarded" in shell(*words, *signed, "--yes").ok().out
    shell(*words, "nowhere/0/1", *signed, "--yes").ended(
        2, "nowhere/0/1 is not parked", "leftfold reactions parked telling"
    )
    (event,) = (row["event"] for row in parked if str(row["event"]).startswith("visits.events/"))
    assert "telling: 1 event discarded" in shell(*words, event, *signed, "--yes").ok().out
    assert shell.tell("reactions", "parked", "telling") == (0, [])
