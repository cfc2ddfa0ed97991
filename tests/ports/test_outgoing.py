"""Dead letters as values: what checkpoints say of them, and what is sent again."""

from __future__ import annotations

import pytest

from leftfold.engine.processing.worker_tasks import Refold
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import (
    DISCARDED,
    PASSED,
    SENDING,
    SENT,
    Letter,
    Outgoing,
    dead_letter,
    handled_marker,
    letters_in,
    offset_in,
    sent_again,
    skip_marker,
)
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import baskets
from tests.domains.trade import PLACED, Checkout, Input, Sends, checkout, checkout_with
from tests.engine.processor_bench import ProcessBench
from tests.hostility import weight

COMMAND = RawRecord(
    "baskets.commands", 1, 5, b"b-1", b'{"basket":"b-1"}',
    [
        ("ce_id", b"7"), ("ce_type", b"baskets.Open.v1"), ("reply_to", b"shop.replies/0"), ("deadline", b"1"),
        ("origin", b"x.commands/0/3/0"), ("ce_correlationid", b"c"),
    ],
)  # fmt: skip

MOST = 1_048_588
"""What a broker takes by default."""


def stored(out: Outgoing, offset: int) -> RawRecord:
    """A record as it stands in the topic of dead letters."""
    return RawRecord("baskets.dead", out.partition, offset, out.key, out.value, out.headers)


LETTER = stored(dead_letter(COMMAND, "no such product", 1, 1_000_000), 0)


def test_a_letter_waits_until_a_later_marker_says_that_it_was_handled() -> None:
    (letter,) = letters_in([LETTER])
    assert (letter.handled, letter.reason, letter.source) == ("", "no such product", "baskets.commands/1/5")
    begun = stored(handled_marker(letter, SENDING, "ann: corrected"), 1)
    assert letters_in([LETTER, begun]) == [Letter(LETTER)]
    sent, late = (
        stored(handled_marker(letter, SENT, "ann: corrected"), 2),
        stored(handled_marker(letter, DISCARDED, "bob: late"), 3),
    )
    assert letters_in([LETTER, begun, sent, late]) == [Letter(LETTER, SENT, "ann: corrected")]


@pytest.mark.parametrize(
    ("headers", "key"), [([("x", b"")] * 349_000, b"k"), ([("x", b"y" * 20)] * 45_550, b"k"), ([], b"k" * 1_040_000)]
)
def test_a_letter_fits_wherever_the_record_did(headers: list[tuple[str, bytes]], key: bytes) -> None:
    """Each header has two lengths besides, and by reference the key is all that is left."""
    record = RawRecord("baskets.commands", 1, 5, key, b"{}", headers)
    assert MOST - 10_000 < weight(Outgoing(1, key, b"{}", headers)) <= MOST, "a broker took it"
    letter = dead_letter(record, "why " * 1000, 1, 1_000_000 - 2048)
    assert weight(letter) <= MOST
    assert header(letter.headers, "dead_reference") == b"true"
    assert (letter.key or b"") == key[:2000]


def test_markers_count_for_letters_of_their_own_partition_only() -> None:
    other = stored(dead_letter(COMMAND, "no such product", 2, 1_000_000), 0)
    found = letters_in([LETTER, other, stored(handled_marker(Letter(other), DISCARDED, "ann: old"), 1)])
    assert [letter.handled for letter in found] == ["", DISCARDED]


def test_only_what_was_to_be_decided_here_can_be_sent_again() -> None:
    parked = stored(dead_letter(COMMAND._replace(topic="orders.events"), "skipped", 1, 1_000_000), 0)
    assert [letter.is_input for letter in letters_in([LETTER])] == [True]
    assert [letter.is_input for letter in letters_in([parked])] == [False]


def test_a_command_is_sent_with_its_bytes_and_id_and_without_what_was_of_the_first_sending() -> None:
    out = sent_again(LETTER, 3)
    assert (out.partition, out.key, out.value) == (3, COMMAND.key, COMMAND.value)
    assert list(out.headers) == [("ce_id", b"7"), ("ce_type", b"baskets.Open.v1"), ("ce_correlationid", b"c")]
    assert header(sent_again(LETTER, 3, id_="new").headers, "ce_id") == b"new"


def test_a_command_of_a_process_keeps_its_id_since_the_process_waits_for_an_answer_to_that() -> None:
    asked = LETTER._replace(headers=[*LETTER.headers, ("reply_key", b"order-1")])
    out = sent_again(asked, 3, id_="new")
    assert [header(out.headers, name) for name in ("ce_id", "reply_key")] == [b"7", b"order-1"]


def test_an_input_that_failed_is_taken_under_a_new_origin_once_and_never_under_its_own() -> None:
    """The second of the three is the twin: the old origin counts as seen, so the input would be lost silently."""

    def fail(given: Input, state: Checkout) -> list[Sends]:
        raise ValueError("no such product")

    bench = ProcessBench(checkout_with(react=fail))
    record = bench.event(PLACED, 7)
    assert bench.take(record) == {"dead": 1}
    letter = stored(dead_letter(record, "no such product", record.partition, 1_000_000), 0)
    corrected = bench.again(checkout)
    origin = "checkout.dead/0/1/0"
    old = sent_again(letter, record.partition, origin=header(record.headers, "origin").decode())
    new = sent_again(letter, record.partition, origin=origin)
    assert corrected.take(corrected.record(old)) == {"duplicates": 1}
    assert corrected.take(corrected.record(new), corrected.record(new)) == {"taken": 1, "sent": 1, "duplicates": 1}


def test_headers_of_a_sender_mark_no_letter_as_handled() -> None:
    forged = [("dead_how", PASSED.encode()), ("dead_source", b"baskets.events/1/3"), ("dead_handled", b"0")]
    letter = stored(dead_letter(COMMAND._replace(headers=[*COMMAND.headers, *forged]), "no", 1, 1_000_000), 1)
    assert [found.handled for found in letters_in([LETTER, letter])] == ["", ""]
    assert offset_in(letter, "baskets.events") is None
    refold = Refold(baskets, {})
    refold.skip(letter)
    assert (refold.noted, refold.passed) == ({}, set())


def test_an_event_is_passed_over_once_a_later_marker_says_so() -> None:
    event = RawRecord("baskets.events", 1, 3, b"b", b"{}", ())
    noted = stored(dead_letter(event, "no event", 1, 1_000_000), 7)
    refold = Refold(baskets, {})
    refold.skip(noted)
    assert (refold.noted, refold.passed) == ({3: 7}, set())
    mark_ = stored(skip_marker(Letter(noted), "by ann: forged"), 8)
    refold.skip(mark_)
    assert refold.passed == {3}
    assert [found.handled for found in letters_in([LETTER, noted, mark_])] == ["", PASSED]
