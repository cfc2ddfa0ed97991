"""Commands and answers as records: read as they were written, or refused."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from leftfold import Command, DomainError
from leftfold.engine.processing.command_wire import ack, command_id, nack, read_command, read_reply, to_error
from leftfold.errors import ConflictError, ContractError, LeftfoldError
from leftfold.model.position import Position, Receipt
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Add
from tests.engine.processor_bench import CommandBench

bench = CommandBench()
ADD = Add(basket_id="b", product="p", price=Decimal(1))


def read(record: RawRecord) -> Any:
    return read_command(bench.codec, record)


def test_a_command_reads_as_it_was_sent() -> None:
    found = read(bench.record(ADD, "id-1", headers={"expected_version": b"3", "traceparent": b"00-x"}))
    assert (found.command, found.key, found.id, found.expected_version) == (ADD, "b", "id-1", 3)
    assert (found.correlation, found.traceparent, found.reply_to) == (b"id-1", b"00-x", b"replies/0")


def test_the_origin_names_topic_partition_offset_and_index() -> None:
    assert read(bench.record(ADD, headers={"origin": b"a/b.events/3/17/2"})).origin == ("a/b.events/3", 17, 2)
    assert read(bench.record(ADD)).origin is None


def test_the_digest_covers_body_and_expected_version() -> None:
    one = read(bench.record(ADD))
    assert one.digest == read(bench.record(ADD)).digest
    assert one.digest != read(bench.record(ADD, headers={"expected_version": b"0"})).digest
    assert one.digest != read(bench.record(ADD.model_copy(update={"price": Decimal(2)}))).digest


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ce_id", ...), ("ce_id", b""), ("ce_id", None), ("ce_id", b"\xff"), ("ce_id", b"x" * 2000),
        ("ce_time", ...), ("ce_time", b""), ("ce_time", None), ("ce_time", b"yesterday"),
        ("ce_time", b"2026-01-01T00:00:00"), ("ce_time", b"\xff"), ("ce_time", b"2026-13-01T00:00:00Z"),
        ("ce_type", ...), ("ce_type", b""), ("ce_type", None), ("ce_type", b"baskets.Steal.v1"),
        ("ce_type", b"baskets.Add.v2"), ("ce_type", b"\xff"), ("ce_type", b"baskets.Added.v1"),
        ("expected_version", b""), ("expected_version", b"x"), ("expected_version", b"1.5"),
        ("expected_version", b"9" * 5000),
        ("origin", b""), ("origin", b"a/b/c"), ("origin", b"t/x/1/1"), ("origin", b"t/1/1/x"),
        ("origin", None), ("origin", b"\xff"),
        ("deadline", None), ("deadline", b""), ("deadline", b"soon"), ("deadline", b"9" * 5000),
        ("ce_correlationid", b"x" * 2000), ("traceparent", b"x" * 2000), ("ce_authid", b"x" * 2000),
    ],
    ids=lambda value: repr(value)[:24],
)  # fmt: skip
def test_forged_headers_break_the_contract(name: str, value: Any) -> None:
    with pytest.raises(ContractError):
        read(bench.record(ADD, headers={name: value}))


@pytest.mark.parametrize("key", [None, b"", b"@", b"\xff", b"another", b"B"])
def test_a_key_that_is_missing_reserved_or_not_the_bodys_breaks_the_contract(key: bytes | None) -> None:
    with pytest.raises(ContractError):
        read(bench.record(ADD)._replace(key=key))


@pytest.mark.parametrize(
    "value", [None, b"", b"{}", b"[" * 10_000, b"\xff", b'{"basket_id":"b","product":"p","price":1,"x":1}']
)
def test_a_body_that_is_no_such_command_breaks_the_contract(value: bytes | None) -> None:
    with pytest.raises(ContractError):
        read(bench.record(ADD)._replace(value=value))


def test_headers_that_may_be_empty_or_null_count_as_absent() -> None:
    found = read(bench.record(ADD, "i", headers={"ce_correlationid": None, "traceparent": None, "reply_to": None}))
    assert (found.correlation, found.traceparent, found.reply_to) == (b"i", b"", b"")


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ce_id", "ce_time", "ce_type", "origin", "expected_version", "x"]), st.none() | st.binary()
        )
    ),
    st.none() | st.binary(),
    st.none() | st.binary(),
)
def test_any_record_at_all_is_a_command_or_a_contract_error(
    headers: list[tuple[str, Any]], key: bytes | None, value: bytes | None
) -> None:
    with pytest.raises(ContractError):
        read(RawRecord("baskets.commands", 0, 0, key, value, headers))


def test_command_ids_are_uuid7_and_sort_by_time() -> None:
    ids = [command_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert all(uuid.UUID(one).version == 7 for one in ids)
    assert [one[:10] for one in ids] == sorted(one[:10] for one in ids)


PARTITIONS = 3


class NoSeats(DomainError, message="show {show_id} has {left} seats left, at {price}"):
    show_id: str
    left: int
    price: Decimal


class Reserve(Command, category="shows", key="show_id", rejects=(NoSeats,)):
    show_id: str


GOOD: dict[str, Any] = {"position": {"shows.events": {"2": 7}}, "version": 1, "events": 1}
DEEP = "[" * 10_000
LONG = "9" * 5000
names = st.sampled_from(["error", "message", "fields", "position", "version", "events", "shows.events", "0", "3", "-1"])
answer_texts = st.one_of(
    names, st.sampled_from(["NoSeats", "ConflictError", "OutcomeUnknown", "show_id", "key", "why"]), st.text()
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), answer_texts, st.just("\ud800")),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(answer_texts, inner, max_size=5)),
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


def read_answer(value: bytes) -> Receipt | LeftfoldError | None:
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
    read_answer(value)


@given(st.one_of(values, nacks, acks))
@example([])
@example({"error": "NoSeats"})
@example({"error": "NoSeats", "message": "", "fields": {"show_id": [], "left": "x", "price": {}}})
@example({"error": "ConflictError", "message": "", "fields": {"key": 1, "expected": "", "actual": None}})
@example({"error": ["NoSeats"], "message": {}, "fields": 1})
def test_json_is_an_answer_or_refused(value: Any) -> None:
    read_answer(json.dumps(value).encode())
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
def test_positions_that_no_worker_writes_are_refused(position: Any) -> None:
    with pytest.raises(ContractError, match="no answer that this code can read"):
        read_reply(json.dumps({**GOOD, "position": position}).encode(), Reserve, PARTITIONS)


def test_answers_of_workers_are_read() -> None:
    assert read_answer(json.dumps(GOOD).encode()) == Receipt(Position.at("shows.events", 2, 7), 1, 1)
    assert read_answer(ack(3, 0, "{}")) == Receipt(Position(), 3, 0)
    error = ConflictError("s", 1, 2)
    reported = read_answer(json.dumps(nack(error)).encode())
    assert (type(reported), str(reported)) == (ConflictError, str(error))
    refusal = {"error": "NoSeats", "message": "m", "fields": {"show_id": "s", "left": 1, "price": "2", "new": 1}}
    assert isinstance(read_answer(json.dumps(refusal).encode()), NoSeats)


class Limit(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    amount: Decimal
    until: date


class TooFar(DomainError):
    limit: Limit
    half: str = "\ud800"


class Drive(Command, category="trips", key="id", rejects=(TooFar,)):
    id: str


def test_an_error_with_fields_of_strict_types_is_read_from_its_answer() -> None:
    error = TooFar(limit=Limit(amount=Decimal("1.5"), until=date(2026, 1, 1)))
    assert to_error(json.loads(json.dumps(nack(error))), Drive) == error
