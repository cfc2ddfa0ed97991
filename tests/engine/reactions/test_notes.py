"""What is noted of a partition always fits into what a broker keeps with an offset."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leftfold.engine.reactions.executor import DEATHS, PoisonPillTracker
from tests.engine.reactions.test_suspects import PLACE, left_by, pending

MOST = 4095
"""What a broker takes: below `offset.metadata.max.bytes`, which is 4,096."""
AT_ONCE = 64
HIGH = 1 << 62
offsets = st.integers(0, HIGH)
begun = st.sets(offsets, max_size=AT_ONCE)
known = st.dictionaries(offsets, st.integers(1, DEATHS), max_size=400)
high = frozenset(range(HIGH - AT_ONCE, HIGH))


def told(
    suspects: PoisonPillTracker, at: set[int] | frozenset[int], hanging: set[int] | frozenset[int]
) -> tuple[str, dict[int, int]]:
    """A note, and the deaths that it tells."""
    note = suspects.note(PLACE, 0, at, *([hanging] if hanging else []))
    return note, {int(offset): count for offset, count in json.loads(note).get("deaths", {}).items()}


@given(known, begun, st.sets(offsets, max_size=400))
@example(dict.fromkeys(range(HIGH - 400, HIGH), 2), set(high), set(range(HIGH - 800, HIGH - 400)))
def test_a_note_always_fits_and_says_all_that_is_under_way(
    deaths: dict[int, int], under_way: set[int], hanging: set[int]
) -> None:
    suspects = left_by(json.dumps({"deaths": deaths, "at": []}))
    note, kept = told(suspects, under_way, hanging)
    assert len(note) <= MOST
    at = json.loads(note)["at"]
    assert at == sorted(set(at))
    assert under_way <= set(at) <= under_way | hanging
    assert kept.items() <= deaths.items()
    assert kept.keys() >= deaths.keys() & under_way, "what may die again is counted on"
    assert len(suspects.handoff_metadata(PLACE, 0)) <= MOST


@given(known)
@example(dict.fromkeys(range(HIGH - 400, HIGH), 2))
@example({HIGH - number: 1 + number % DEATHS for number in range(400)})
def test_where_not_all_deaths_fit_the_highest_counts_stay_and_then_the_lowest_offsets(deaths: dict[int, int]) -> None:
    _, kept = told(left_by(json.dumps({"deaths": deaths, "at": []})), set(), set())
    ranked = sorted(deaths, key=lambda offset: (-deaths[offset], offset))
    assert set(kept) == set(ranked[: len(kept)])
    assert len(kept) >= min(len(deaths), 120)


@given(st.lists(begun, max_size=8), begun)
@example([frozenset(range(HIGH - number - AT_ONCE, HIGH - number)) for number in range(0, 8 * AT_ONCE, AT_ONCE)], high)
def test_however_many_processes_die_in_a_row_the_next_one_can_note_what_it_begins(
    lives: list[set[int]], last: set[int]
) -> None:
    note = "w"
    for at in lives:
        note = left_by(note).note(PLACE, 0, at)
    suspects = left_by(note)
    assert suspects.room(0) >= AT_ONCE
    assert len(suspects.note(PLACE, 0, last)) <= MOST


@given(known, st.integers(0, HIGH))
def test_an_event_that_is_tried_alone_is_parked_in_the_end_however_many_others_are_suspect(
    deaths: dict[int, int], guilty: int
) -> None:
    note = json.dumps({"deaths": {str(offset): count for offset, count in deaths.items()}, "at": []})
    for died in range(1, DEATHS + 1):
        note = left_by(note).note(PLACE, 0, {guilty})
        assert left_by(note).deaths(pending(guilty)) == deaths.get(guilty, 0) + died


@pytest.mark.parametrize("note", ['{"at":[1e999]}', '{"deaths":{"²":1},"at":[]}', "[" * 4000, '{"a":' * 800])
def test_a_note_that_somebody_else_wrote_hurts_nobody(note: str) -> None:
    assert left_by(note).deaths(pending(3)) == 0
