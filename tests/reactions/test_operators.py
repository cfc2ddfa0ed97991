"""Of two operators who retry what a reaction has parked the earlier one stops; what it handles no more is discarded."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from leftfold import App, Delivery, Reaction
from leftfold.errors import Fenced, LogGap
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.reactions.parked import ParkedEvents, ReactionRetry
from leftfold.kafka.reactions.start_offsets import RecordedPlaces, StartOffsets, is_started
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Outgoing
from leftfold.runtime.lifecycle import Outage, begin_reactions
from leftfold.runtime.operations.reactions import discard_parked, parked_events
from leftfold.runtime.project import Usage
from tests.domains.visits import Left, Paid, app_with, receipts_with
from tests.reactions.reacting import EVENTS, PARTITIONS, Acting, Post, acting_until_parked, done_up_to, made, write
from tests.reactions.shell import Shell
from tests.reports import Reports
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


def parked_with(settings: KafkaSettings, name: str, *others: dict[str, bytes]) -> tuple[App, ParkedEvents]:
    """An App whose reaction has parked an event; copies of that with other headers are parked behind it."""
    app = made(settings, name, fails, attempts=1)
    acting_until_parked(settings, app, name, Paid(visit="a"))
    events = ParkedEvents(name, settings)
    (record,) = events.read()
    for other in others:
        headers = list((dict(record.headers) | other).items())
        write_record(settings, names.dead(name), Outgoing(record.partition, record.key, record.value, headers))
    assert events.count() == 1 + len(others)
    return app, events


def test_an_event_that_was_parked_twice_is_tried_once_and_one_of_a_topic_that_was_made_again_is_another(
    settings: KafkaSettings,
) -> None:
    """That one is at the same place; its idempotency key is not the same."""
    name, post = "parked-twice", Post()
    _, events = parked_with(settings, name, {}, {"idempotency_key": b"other"})
    retry = ReactionRetry(app_with(receipts_with(post.act, name=name), partitions=PARTITIONS), name, settings)
    assert (retry.run().done, len(post.deliveries), events.count()) == (2, 2, 0)


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


def test_only_events_of_other_types_are_discarded_unnamed(settings: KafkaSettings) -> None:
    """Newer code handles the newer version, an archive may have what is lost, and what is broken can be read later."""
    lost = {"dead_reference": b"true", "dead_source": b"visits.events/0/987654321"}
    others = [{"ce_type": b"visits.Left.v1"}, {"ce_type": b"visits.Paid.v9"}, lost, {"ce_time": b"never"}]
    app, events = parked_with(settings, "unnamed", *others)
    before = list(events.read())
    assert discard_parked(app, "unnamed", settings.bootstrap_servers, (), why="ticket 1", who="ann") == 1
    assert list(events.read()) == [one for one in before if header(one.headers, "ce_type") != b"visits.Left.v1"]
    assert events.count() == 4


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


def test_a_tombstone_and_a_foreign_record_among_the_recorded_offsets_are_passed_over(settings: KafkaSettings) -> None:
    """Neither the run of the whole App ends at them, nor what reads parked events."""
    app = made(settings, "littered", fails, attempts=1)
    places, outage = RecordedPlaces(names.begun("littered"), settings), Outage(Reports(), threading.Event())
    begin_reactions(app, settings, outage)
    recorded = places.read()
    assert set(recorded) == {(EVENTS, p) for p in range(PARTITIONS)}
    for key, value in ((b"x", b"hello"), (b"x/0", b'{"offset":Infinity}'), (f"{EVENTS}/0".encode(), None)):
        write_record(settings, names.begun("littered"), Outgoing(0, key, value, ()))
    begin_reactions(app, settings, outage)
    assert places.read() == recorded
    acting_until_parked(settings, app, "littered", Paid(visit="a"))
    assert (ParkedEvents("littered", settings).count(), is_started(settings, "littered", EVENTS)) == (1, True)


def test_a_reaction_begins_at_no_offset_that_its_topic_has_lost(settings: KafkaSettings, tmp_path: Path) -> None:
    """It would meet the gap for ever. The last test of this module: it trims the topic that they share."""
    name, post = "trimmed", Post()
    shell, app = (
        Shell("tests.reactions.posting:app", settings, tmp_path, {}),
        made(settings, name, post.act, since="start"),
    )
    group, starts = names.reacting(app.name, name), StartOffsets(app, app.reaction(name), settings)
    shell("topics", "ensure").ok()
    write(settings, *(Paid(visit=f"lost-{number}") for number in range(9)))
    shell("log", "archive", "visits", "--to", "past").ok()
    with ClusterAdmin(settings) as cluster:
        ends = cluster.ends([EVENTS]).offsets[EVENTS]
        assert min(ends.values()) > 0
        cluster.delete_records(EVENTS, ends)
    write(settings, *(Paid(visit=one, number=2) for one in VISITS))

    with pytest.raises(LogGap, match=rf"{name} would begin at .*@0, .* leftfold reactions begin {name} --since start"):
        starts.begin()
    assert max(done_up_to(settings, group).values()) < 0
    assert not is_started(settings, name, EVENTS)
    other = names.reacting("posting", "telling")
    before, begin = (
        done_up_to(settings, other),
        ("reactions", "begin", "telling", "--yes", "--archive", "past", "--since"),
    )
    shell(*begin, "2020-01-01T00:00:00Z").ended(
        69, "reactions read no archive", "reactions begin telling --since start"
    )
    assert done_up_to(settings, other) == before

    held = {f"{EVENTS}/{partition}": end for partition, end in ends.items()}
    assert shell.tell(*begin, "start") == (0, [{"reaction": "telling", "offsets": held}])
    assert starts.again("start") == {(EVENTS, partition): end for partition, end in ends.items()}
    with Acting(app, name, settings):
        wait_until(lambda: len(post.deliveries) == len(VISITS), lambda: f"what is left: {post.deliveries}")
    assert [post.numbers(one) for one in VISITS] == [[2]] * len(VISITS)
