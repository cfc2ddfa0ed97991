"""What a process notes of events that may have killed it, and which events its successors suspect."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leftfold import Delivery
from leftfold.engine.reactions.deadline_executor import CLEAN, DEATHS, PoisonPillTracker
from leftfold.engine.reactions.pending import PendingDelivery, PendingReader
from leftfold.engine.reactions.reaction_processor import Handoff, ReactionProcessor
from tests.domains.visits import Paid, paid, receipts_with
from tests.waiting import wait_until

PLACE = ("visits.events", 0)


def pending(offset: int) -> PendingDelivery:
    found = PendingReader(receipts_with(lambda event, delivery: None)).read(paid("v", offset))
    assert found is not None
    return found


def left_by(note: str) -> PoisonPillTracker:
    suspects = PoisonPillTracker()
    suspects.hold(PLACE, note)
    return suspects


@pytest.mark.parametrize("note", [CLEAN, "something else", "{", "[]", '{"at": 3}', '{"deaths": [], "at": []}'])
def test_a_clean_or_unreadable_note_leaves_no_suspect(note: str) -> None:
    assert left_by(note).deaths(pending(3)) == 0


def test_offsets_are_noted_only_after_a_death() -> None:
    assert left_by(CLEAN).note(PLACE, 0, {3}) == left_by(CLEAN).note(PLACE, 0, ())
    first = left_by(left_by(CLEAN).note(PLACE, 0, {3}))
    assert first.deaths(pending(3)) == 0, "no note says what was under way"
    assert json.loads(first.note(PLACE, 0, {5, 3})) == {"at": [3, 5]}


def test_events_under_way_at_a_death_are_suspect_until_an_attempt_ends() -> None:
    second = left_by('{"at":[3,5]}')
    assert [second.deaths(pending(offset)) for offset in (3, 4, 5)] == [1, 0, 1]
    third = left_by(second.note(PLACE, 0, {3}))
    assert [third.deaths(pending(offset)) for offset in (3, 5)] == [2, 1]
    third.cleared(pending(3))
    assert [third.deaths(pending(offset)) for offset in (3, 5)] == [0, 1]
    assert json.loads(third.handoff_metadata(PLACE, 0)) == {"deaths": {"5": 1}, "at": []}
    assert third.handoff_metadata(PLACE, 6) == CLEAN, "what is done is no suspect"


def test_events_under_way_at_an_orderly_end_are_no_suspects() -> None:
    suspects = left_by('{"deaths":{"3":1},"at":[]}')
    suspects.note(PLACE, 0, {3})
    assert left_by(suspects.handoff_metadata(PLACE, 0)).deaths(pending(3)) == 1


def test_behind_a_great_many_events_nothing_is_noted_any_more() -> None:
    suspects = left_by("w")
    for _ in range(20_000):
        assert suspects.note(PLACE, 0, {3}) != "w"
        suspects.took(PLACE)
    assert suspects.note(PLACE, 0, {3}) == "w"


@given(st.lists(st.sets(st.integers(0, 5), max_size=4), max_size=12), st.integers(0, 5))
def test_an_event_counts_the_deaths_in_a_row_at_which_it_was_noted(lives: list[set[int]], one: int) -> None:
    """Each life begins some events, ends those that are odd in number, and dies."""
    note, expected = "w", 0
    for at in lives:
        suspects = left_by(note)
        assert suspects.deaths(pending(one)) == expected
        for offset in at:
            if offset % 2:
                suspects.cleared(pending(offset))
        note = suspects.note(PLACE, 0, {offset for offset in at if offset % 2 == 0})
        if one in at:
            expected = 0 if one % 2 else expected + 1


class Begun:
    """Acts that end at once, and what was under way beside each."""

    def __init__(self) -> None:
        self.beside: list[tuple[int, str]] = []
        self.notes: list[Mapping[tuple[str, int], Handoff]] = []
        self.parked: list[tuple[int, str]] = []

    def acting(self) -> ReactionProcessor:
        """With notes that are always written."""

        def act(event: Paid, delivery: Delivery) -> None:
            self.beside.append((event.number, self.notes[-1][PLACE].note))

        def note() -> bool:
            self.notes.append(acting.left())
            return True

        def park(pending: PendingDelivery, error: BaseException) -> None:
            self.parked.append((pending.record.offset, str(error)))

        acting = ReactionProcessor(receipts_with(act), park, note=note)
        return acting


def test_suspects_are_tried_one_by_one_and_the_third_death_is_the_last() -> None:
    begun = Begun()
    acting = begun.acting()
    acting.hold(PLACE, Handoff(0, f'{{"deaths":{{"1":{DEATHS - 1},"2":1}},"at":[1,3]}}'))
    for offset in range(5):
        acting.take(paid(f"v{offset}", offset))

    def is_done() -> bool:
        acting.step(0.01)
        return acting.left()[PLACE].offset == 5

    wait_until(is_done, "all of them")
    assert begun.parked == [(1, f"the process died {DEATHS} times in a row while it acted")]
    at = {number: json.loads(note)["at"] for number, note in begun.beside}
    assert (at[2], at[3]) == ([2], [3])
    assert at.keys() == {0, 2, 3, 4}


def test_an_act_that_cannot_be_noted_does_not_begin() -> None:
    tried: list[int] = []
    written = [False]
    acting = ReactionProcessor(
        receipts_with(lambda event, delivery: tried.append(event.number)),
        lambda pending, error: None,
        note=lambda: written[0],
    )
    acting.hold(PLACE, Handoff(0, "w"))
    acting.take(paid("a", 0))
    acting.take(paid("b", 1))
    for _ in range(3):
        assert not acting.step(0.01)
    assert tried == []
    written[0] = True
    wait_until(lambda: (acting.step(0.01) and False) or len(tried) == 2, "both")
    assert sorted(tried) == [0, 1]


MOST = 4095
"""What a broker takes: below `offset.metadata.max.bytes`, which is 4,096."""
AT_ONCE = 64
HIGH = 1 << 62
offsets = st.integers(0, HIGH)
begun = st.sets(offsets, max_size=AT_ONCE)
known_deaths = st.dictionaries(offsets, st.integers(1, DEATHS), max_size=400)
highest = frozenset(range(HIGH - AT_ONCE, HIGH))


def noted(
    suspects: PoisonPillTracker, at: set[int] | frozenset[int], hanging: set[int] | frozenset[int]
) -> tuple[str, dict[int, int]]:
    """A note, and the deaths in it."""
    note = suspects.note(PLACE, 0, at, *([hanging] if hanging else []))
    return note, {int(offset): count for offset, count in json.loads(note).get("deaths", {}).items()}


@given(known_deaths, begun, st.sets(offsets, max_size=400))
@example(dict.fromkeys(range(HIGH - 400, HIGH), 2), set(highest), set(range(HIGH - 800, HIGH - 400)))
def test_a_note_always_fits_and_holds_all_that_is_under_way(
    deaths: dict[int, int], under_way: set[int], hanging: set[int]
) -> None:
    suspects = left_by(json.dumps({"deaths": deaths, "at": []}))
    note, kept = noted(suspects, under_way, hanging)
    assert len(note) <= MOST
    at = json.loads(note)["at"]
    assert at == sorted(set(at))
    assert under_way <= set(at) <= under_way | hanging
    assert kept.items() <= deaths.items()
    assert kept.keys() >= deaths.keys() & under_way, "what may die again is counted on"
    assert len(suspects.handoff_metadata(PLACE, 0)) <= MOST


@given(known_deaths)
@example(dict.fromkeys(range(HIGH - 400, HIGH), 2))
@example({HIGH - number: 1 + number % DEATHS for number in range(400)})
def test_a_full_note_keeps_the_highest_counts_and_then_the_lowest_offsets(deaths: dict[int, int]) -> None:
    _, kept = noted(left_by(json.dumps({"deaths": deaths, "at": []})), set(), set())
    ranked = sorted(deaths, key=lambda offset: (-deaths[offset], offset))
    assert set(kept) == set(ranked[: len(kept)])
    assert len(kept) >= min(len(deaths), 120)


@given(st.lists(begun, max_size=8), begun)
@example(
    [frozenset(range(HIGH - number - AT_ONCE, HIGH - number)) for number in range(0, 8 * AT_ONCE, AT_ONCE)], highest
)
def test_after_any_number_of_deaths_the_next_process_can_note_its_acts(lives: list[set[int]], last: set[int]) -> None:
    note = "w"
    for at in lives:
        note = left_by(note).note(PLACE, 0, at)
    suspects = left_by(note)
    assert suspects.room(0) >= AT_ONCE
    assert len(suspects.note(PLACE, 0, last)) <= MOST


@given(known_deaths, st.integers(0, HIGH))
def test_an_event_that_is_tried_alone_is_parked_in_the_end(deaths: dict[int, int], guilty: int) -> None:
    note = json.dumps({"deaths": {str(offset): count for offset, count in deaths.items()}, "at": []})
    for died in range(1, DEATHS + 1):
        note = left_by(note).note(PLACE, 0, {guilty})
        assert left_by(note).deaths(pending(guilty)) == deaths.get(guilty, 0) + died


@pytest.mark.parametrize("note", ['{"at":[1e999]}', '{"deaths":{"²":1},"at":[]}', "[" * 4000, '{"a":' * 800])
def test_a_foreign_note_leaves_no_suspect(note: str) -> None:
    assert left_by(note).deaths(pending(3)) == 0
