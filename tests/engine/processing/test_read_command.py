from __future__ import annotations

import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold import ContractError
from leftfold.engine.processing.command_wire import command_id, read_command
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Add
from tests.engine.bench import LaneBench

bench = LaneBench()
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
        ("ce_correlationid", b"x" * 2000), ("traceparent", b"x" * 2000),
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
