from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from leftfold import ContractError, InfrastructureError
from leftfold.engine.processing.recovery import Refold
from leftfold.engine.processing.stream_state import MARK, SETTLED, ChangelogCheckpoint
from leftfold.memory import MemoryStates
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Add, CheckOut, Open, baskets
from tests.engine.bench import LaneBench

COMMANDS = [
    Open(basket_id="b", household="h"),
    Add(basket_id="b", product="twice", price=Decimal(1)),
    CheckOut(basket_id="b"),
]


def history(bench: LaneBench) -> list[RawRecord]:
    batch = bench.send(*COMMANDS)
    return [RawRecord("baskets.events", 0, n, out.key, out.value, out.headers) for n, out in enumerate(batch.events)]


def test_folding_the_events_gives_the_state_the_lane_had() -> None:
    bench = LaneBench()
    refold = Refold(baskets, MemoryStates())
    for record in history(bench):
        refold.add(record)
    stream, original = refold.stream("b"), bench.state("b")
    assert (stream.version, stream.state) == (original.version, original.state) == (4, original.state)
    assert {id_: (a.first, a.events) for id_, a in stream.answered.items()} == {
        id_: (a.first, a.events) for id_, a in original.answered.items()
    }


def test_a_lane_on_refolded_streams_still_tells_duplicates() -> None:
    bench = LaneBench()
    first = bench.record(COMMANDS[0], "c1")
    batch = bench.run(first)
    store = MemoryStates()
    refold = Refold(baskets, store)
    refold.add(RawRecord("baskets.events", 0, 0, b"b", batch.events[0].value, batch.events[0].headers))
    refold.take(10)
    bench.processor.hold(first.partition, store, end=1)
    assert bench.run(first).counts == {"duplicates": 1}


def test_events_that_the_state_has_already_are_skipped() -> None:
    bench = LaneBench()
    records = history(bench)
    store = MemoryStates()
    once = Refold(baskets, store)
    for record in records[:2]:
        once.add(record)
    once.take(10)
    again = Refold(baskets, store)
    for record in records:
        again.add(record)
    assert again.stream("b").state == bench.state("b").state
    assert len(again.stream("b").state.lines) == 2


def test_only_what_changed_is_taken_and_only_once() -> None:
    refold = Refold(baskets, MemoryStates())
    for record in history(LaneBench()):
        refold.add(record)
    assert [key for key, _ in refold.take(10)] == ["b"]
    assert refold.take(10) == []


def test_what_ended_a_forgotten_transaction_is_no_event() -> None:
    bench = LaneBench()
    refold = Refold(baskets, MemoryStates())
    for number, record in enumerate(history(bench)):
        refold.add(record)
        refold.add(RawRecord("baskets.events", 0, 100 + number, MARK, b"{}", SETTLED))
    assert refold.stream("b").state == bench.state("b").state
    assert set(refold.changed) == {"b"}


def test_a_gap_in_the_events_is_refused() -> None:
    records = history(LaneBench())
    refold = Refold(baskets, MemoryStates())
    refold.add(records[0])
    with pytest.raises(
        InfrastructureError, match=r"baskets.events\[0\]@2: stream 'b' continues at version 3, but only 1"
    ):
        refold.add(records[2])


@pytest.mark.parametrize("name", ["ce_sequence", "ce_decision", "ce_causationid", "ce_type"])
def test_an_event_with_broken_headers_is_refused(name: str) -> None:
    record = history(LaneBench())[0]
    broken: Any = [(n, b"\xff" if n == name else v) for n, v in record.headers]
    with pytest.raises(ContractError):
        Refold(baskets, MemoryStates()).add(record._replace(headers=broken))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ce_sequence", None), ("ce_sequence", b"9" * 4300), ("ce_decision", None), ("ce_decision", b"-1/1"),
        ("ce_causationid", None), ("ce_type", None),
    ],
)  # fmt: skip
def test_headers_that_no_worker_writes_are_refused_and_not_a_crash(name: str, value: bytes | None) -> None:
    record = history(LaneBench())[0]
    headers: Any = [(n, value if n == name else v) for n, v in record.headers]
    with pytest.raises(ContractError, match="the partition is not served"):
        Refold(baskets, MemoryStates()).add(record._replace(headers=headers))


def test_a_key_that_is_no_text_is_refused_and_not_a_crash() -> None:
    with pytest.raises(ContractError, match="the partition is not served"):
        Refold(baskets, MemoryStates()).add(history(LaneBench())[0]._replace(key=b"\xff"))


def test_a_fold_that_fails_refuses_the_partition_loudly() -> None:
    record = history(LaneBench())[1]
    value = json.loads(record.value or b"") | {"product": "unfoldable"}
    sequence: Any = [(n, b"1" if n == "ce_sequence" else v) for n, v in record.headers]
    with pytest.raises(ContractError, match="baskets.evolve failed on .*the partition is not served"):
        Refold(baskets, MemoryStates()).add(record._replace(value=json.dumps(value).encode(), headers=sequence))


def test_answers_and_origins_come_over_from_another_version_of_the_state() -> None:
    bench = LaneBench()
    bench.run(
        bench.record(
            COMMANDS[0], "c1", headers={"origin": b"checkout.commands/0/5/1", "reply_to": b"checkout.commands"}
        ),
        bench.record(COMMANDS[0], "c2", headers={"expected_version": b"9"}),
    )
    store = MemoryStates()
    refold = Refold(baskets, store)
    partition = bench.record(COMMANDS[0]).partition
    refold.adopt("b", bench.processor.held[partition].store.get("b") or b"")
    stream = refold.stream("b")
    assert list(stream.answered) == ["c1", "c2"]
    assert stream.origins == {"checkout.commands/0": (5, 1)}
    assert stream.version == 0


def test_a_state_mark_comes_back_from_its_record() -> None:
    checkpoint = ChangelogCheckpoint(commands=12, events=34, writer="shop.baskets.x.0")
    assert ChangelogCheckpoint.decode(checkpoint.encode()) == checkpoint


def test_a_mark_knows_its_topics_as_far_as_both_ids_are_known() -> None:
    checkpoint = ChangelogCheckpoint(12, 34, topics={"shop.events": "A", "shop.commands": ""})
    assert ChangelogCheckpoint.decode(checkpoint.encode()) == checkpoint
    assert checkpoint.is_of("shop.events", {"shop.events": "A"})
    assert not checkpoint.is_of("shop.events", {"shop.events": "B"})
    assert checkpoint.is_of("shop.events", {"shop.events": ""})
    assert checkpoint.is_of("shop.commands", {"shop.commands": "B"})
    older = ChangelogCheckpoint.decode(b'{"commands":12,"events":34,"writer":"w","start":0}')
    assert older.is_of("shop.events", {"shop.events": "B"})
