"""Answers that somebody else wrote: whatever stands in one, it is an answer, an error of the contract, or refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leftfold.engine.processing.command_wire import ack, nack, read_reply, to_error
from leftfold.errors import ConflictError, ContractError, LeftfoldError
from leftfold.model.position import Position, Receipt
from tests.kafka.shop import NoSeats, Reserve

PARTITIONS = 3
GOOD: dict[str, Any] = {"position": {"shows.events": {"2": 7}}, "version": 1, "events": 1}
DEEP = "[" * 10_000
LONG = "9" * 5000
names = st.sampled_from(["error", "message", "fields", "position", "version", "events", "shows.events", "0", "3", "-1"])
texts = st.one_of(
    names, st.sampled_from(["NoSeats", "ConflictError", "OutcomeUnknown", "show_id", "key", "why"]), st.text()
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts, st.just("\ud800")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)
nacks = st.fixed_dictionaries(
    {
        "error": st.one_of(values, st.sampled_from(["NoSeats", "ConflictError", "OutcomeUnknown", "DecisionFailed"])),
        "message": st.one_of(values, st.text()),
    },
    optional={
        "fields": st.one_of(
            values,
            st.dictionaries(
                st.sampled_from(["show_id", "left", "price", "key", "expected", "actual", "command_id", "why"]), values
            ),
        )
    },
)
acks = st.fixed_dictionaries({"position": values, "version": values, "events": values})


def read(value: bytes) -> Receipt | LeftfoldError | None:
    """What a client makes of an answer; None where it refuses it, for nothing else is ever raised."""
    try:
        found = read_reply(value, Reserve, PARTITIONS)
    except ContractError as error:
        str(error).encode()
        return None
    if isinstance(found, LeftfoldError):
        str(found).encode()
        return found
    assert set(found.position.offsets) <= {"shows.events"}
    for partition, offset in found.position.offsets.get("shows.events", {}).items():
        assert 0 <= partition < PARTITIONS
        assert type(offset) is int
        assert 0 <= offset < 1 << 63
    assert type(found.version) is type(found.events) is int
    assert min(found.version, found.events) >= 0
    return found


@given(st.binary())
@example(b"\xff\xfe")
@example(DEEP.encode())
@example(b'{"position":' + DEEP.encode())
@example(b'{"version":' + LONG.encode() + b"}")
def test_bytes_are_an_answer_or_refused(value: bytes) -> None:
    read(value)


@given(st.one_of(values, nacks, acks))
@example([])
@example({"error": "NoSeats"})
@example({"error": "NoSeats", "message": "", "fields": {"show_id": [], "left": "x", "price": {}}})
@example({"error": "ConflictError", "message": "", "fields": {"key": 1, "expected": "", "actual": None}})
@example({"error": ["NoSeats"], "message": {}, "fields": 1})
def test_json_is_an_answer_or_refused(value: Any) -> None:
    read(json.dumps(value).encode())
    if isinstance(value, dict):
        with suppress(ContractError):
            to_error(value, Reserve)


@pytest.mark.parametrize(
    "position",
    [
        {"others.events": {"0": 1}}, {"shows.commands": {"0": 1}}, {"shows.events": {"3": 1}}, {"shows.events": []},
        {"shows.events": {"-1": 1}}, {"shows.events": {"²": 1}}, {"shows.events": {"0": -1}}, [],
        {"shows.events": {"0": 1 << 63}}, {"shows.events": {"0": True}}, {"shows.events": {"0": 1.0}}, None,
    ],
)  # fmt: skip
def test_positions_that_no_worker_tells_are_refused(position: Any) -> None:
    with pytest.raises(ContractError, match="no answer that this code can read"):
        read_reply(json.dumps({**GOOD, "position": position}).encode(), Reserve, PARTITIONS)


def test_answers_of_workers_are_believed() -> None:
    assert read(json.dumps(GOOD).encode()) == Receipt(Position.at("shows.events", 2, 7), 1, 1)
    assert read(ack(3, 0, "{}")) == Receipt(Position(), 3, 0)
    error = ConflictError("s", 1, 2)
    told = read(json.dumps(nack(error)).encode())
    assert (type(told), str(told)) == (ConflictError, str(error))
    refusal = {"error": "NoSeats", "message": "m", "fields": {"show_id": "s", "left": 1, "price": "2", "new": 1}}
    assert isinstance(read(json.dumps(refusal).encode()), NoSeats)
