from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold import ContractError, Position, Receipt

positions = st.builds(
    Position,
    st.dictionaries(
        st.sampled_from(["a.events", "b.events", "c"]),
        st.dictionaries(st.integers(0, 3), st.integers(0, 5)),
        max_size=3,
    ),
)


def same(one: Position, other: Position) -> bool:
    """Whether two positions cover each other: what is not named counts as 0."""
    return one.covers(other) and other.covers(one)


@given(positions, positions, positions)
def test_positions_are_a_lattice_under_covering(a: Position, b: Position, c: Position) -> None:
    before = a.to_json(), b.to_json()
    assert a.covers(a)
    assert a.covers(Position())
    assert not (a.covers(b) and b.covers(c)) or a.covers(c)
    assert (a | b).covers(a)
    assert (a | b).covers(b)
    assert not (c.covers(a) and c.covers(b)) or c.covers(a | b), "the least that covers both"
    assert a.covers(a & b)
    assert b.covers(a & b)
    assert not (a.covers(c) and b.covers(c)) or (a & b).covers(c), "the greatest that both cover"
    assert same(a | b, b | a)
    assert same(a & b, b & a)
    assert same(a | (b | c), (a | b) | c)
    assert same(a & (b & c), (a & b) & c)
    assert same(a | (a & b), a)
    assert same(a & (a | b), a)
    assert (a.to_json(), b.to_json()) == before


@given(positions)
def test_a_position_comes_back_from_its_one_json(position: Position) -> None:
    turned = Position({t: dict(sorted(ps.items())[::-1]) for t, ps in sorted(position.offsets.items())[::-1]})
    assert Position.from_json(position.to_json()) == position
    assert Position.from_json(position.to_json().encode()) == position
    assert turned.to_json() == position.to_json()
    assert " " not in position.to_json()


def test_how_far_ahead_a_position_is_counts_only_what_the_other_lacks() -> None:
    ends = Position({"a": {0: 5, 1: 3}, "b": {0: 2}})
    assert ends.ahead_of(Position({"a": {0: 1, 1: 9}})) == 4 + 0 + 2
    assert ends.ahead_of(Position()) == 10
    assert Position().ahead_of(ends) == 0


def test_only_keeps_what_is_asked_for() -> None:
    position = Position({"a": {0: 1, 1: 2}, "b": {1: 3}})
    assert position.only(["a"]) == Position({"a": {0: 1, 1: 2}})
    assert position.only(["a", "b"], 1) == Position({"a": {1: 2}, "b": {1: 3}})
    assert position.only([]) == Position()


def test_a_position_reads_as_a_line() -> None:
    assert str(Position({"b": {1: 2, 0: 1}, "a": {0: 9}})) == "a[0:9] b[0:1,1:2]"
    assert Position.at("a", 2, 7).next_offset("a", 2) == 7
    assert Position.at("a", 2, 7).next_offset("a", 1) == 0


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "1", "null", '"x"', '{"a":1}', '{"a":{"x":1}}', '{"a":{"0":"x"}}', '{"a":{"0":null}}',
        '{"a":{"0":-1}}', '{"a":{"0":1.5}}', '{"a":{"0":true}}', '{"a":{"0":NaN}}', '{"a":{"0":Infinity}}',
        '{"a":' * 100_000, b"\xff", '{"a":{"0":' + "9" * 5000 + "}}",
    ],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_a_text_that_is_no_position_breaks_the_contract(text: str | bytes) -> None:
    with pytest.raises(ContractError, match="is no position; it looks like"):
        Position.from_json(text)


def test_equal_positions_and_receipts_have_one_hash() -> None:
    one, other = Position({"a": {0: 1, 1: 2}, "b": {0: 3}}), Position({"b": {0: 3}, "a": {1: 2, 0: 1}})
    assert {one, other, Position()} == {one, Position()}
    assert {Receipt(one, 1), Receipt(other, 1)} == {Receipt(one, 1)}


def test_a_position_is_plain_json_for_other_languages() -> None:
    assert json.loads(Position.at("baskets.events", 3, 12).to_json()) == {"baskets.events": {"3": 12}}
