"""What looks like a number, a name or an answer and is none ends as a dead letter, wherever records are read."""

from __future__ import annotations

from typing import Any

import pytest

from leftfold import Command, ContractError, Decider, Event
from leftfold.cli.data.events import fields_of
from leftfold.engine.causation import step_of
from leftfold.engine.processing.log_time import Watermark
from leftfold.engine.processing.process_wire import NACK
from leftfold.engine.processing.worker_tasks import ProcessRefold
from leftfold.engine.reactions.pending import PendingReader
from leftfold.engine.rebuild.planner import between_decisions
from leftfold.kafka.worker.poison_pills import read_metadata
from leftfold.model.position import Position
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Open
from tests.domains.trade import PLACED, checkout
from tests.domains.visits import paid, receipts_with
from tests.engine.processor_bench import CommandBench, ProcessBench

STRANGE = ["²", "９", "٣", "9" * 20, "9" * 5000, "1_0", "+1", " 1", "-1", "1.0", "", "x"]
"""What `isdigit` or `int` takes for a number, or almost."""


def named(headers: Any, name: str, value: bytes) -> list[tuple[str, bytes]]:
    """Headers with one of them replaced."""
    return [*((key, old) for key, old in headers if key != name), (name, value)]


MOST = 10**4300 - 1
"""The largest number that Python reads; it writes larger ones."""


class Counted(Event, category="counts", key="counter"):
    counter: str
    units: int


class Count(Command, category="counts", key="counter"):
    counter: str
    units: int


@pytest.mark.parametrize(
    "decide",
    [
        lambda command, total: [Counted(counter=command.counter, units=command.units + total)],
        lambda command, total: [Counted(counter=command.counter, units=command.units)],
    ],
    ids=["an event", "a state"],
)
def test_a_number_that_no_reader_takes_is_never_written(decide: Any) -> None:
    total: dict[str, Any] = {"state": int, "initial_state": 0, "evolve": lambda total, event: total + event.units}
    bench = CommandBench(Decider("counts", commands=Count, events=Counted, decide=decide, **total))
    assert bench.send(Count(counter="c", units=MOST)).counts == {"accepted": 1}
    assert bench.send(Count(counter="c", units=1)).counts == {"failed": 1}
    assert (bench.state("c").version, bench.state("c").state) == (1, MOST)


@pytest.mark.parametrize("version", STRANGE)
def test_an_event_whose_version_is_no_number_is_parked_by_a_reaction(version: str) -> None:
    reader = PendingReader(receipts_with(lambda event, delivery: None))
    broken = reader.read(paid("v", 7, type_=f"visits.Paid.v{version}".encode()))
    assert broken is not None
    assert "is not one of 1..1" in str(broken.error)


@pytest.mark.parametrize("version", STRANGE)
def test_an_input_whose_version_is_no_number_is_dead_lettered_by_a_process(version: str) -> None:
    bench = ProcessBench()
    record = bench.event(PLACED, 7)
    strange = record._replace(headers=named(record.headers, "ce_type", f"orders.Placed.v{version}".encode()))
    assert bench.take(strange) == {"dead": 1}
    assert bench.dead[0].startswith(("orders.Placed version ", "header 'ce_type' has more than 1024 bytes"))


@pytest.mark.parametrize("number", ["²", "9" * 5000, "x"])
@pytest.mark.parametrize("name", ["ce_type", "expected_version", "origin"])
def test_a_command_with_a_broken_number_is_dead_lettered(number: str, name: str) -> None:
    bench, stem = CommandBench(), {"ce_type": "baskets.Open.v", "expected_version": "", "origin": "t/0/0/"}[name]
    record = bench.record(Open(basket_id="b", household="h"), headers={name: f"{stem}{number}".encode()})
    assert bench.run(record).counts == {"dead": 1}


@pytest.mark.parametrize("number", STRANGE)
def test_a_dead_letter_with_a_broken_source_offset_is_read(number: str) -> None:
    source = ("dead_source", f"checkout.commands/0/{number}".encode())
    letter = RawRecord("checkout.dead", 0, 3, b"o", b"{}", [("ce_id", b"1"), source])
    ProcessRefold(checkout, {}).skip(letter)
    step = step_of(letter)
    assert step is None or step.at.offset == 3


@pytest.mark.parametrize("number", STRANGE)
def test_an_event_with_a_broken_version_is_shown_without_it(number: str) -> None:
    record = paid("v", 7)
    strange = record._replace(headers=named(record.headers, "ce_sequence", number.encode()))
    assert fields_of(strange)["version"] is None


class OneRecord:
    """A log that holds one record."""

    def __init__(self, decision: bytes) -> None:
        self._headers = [("ce_decision", decision)]

    def stable_ends(self, topics: Any) -> Position:
        return Position.at("visits.events", 0, 8)

    def read(self, part: Any) -> Any:
        yield [self]

    def headers(self) -> Any:
        return self._headers

    def offset(self) -> int:
        return 7


@pytest.mark.parametrize("number", [*STRANGE[:5], "2"])
def test_a_position_between_decisions_is_found_despite_a_broken_header(number: str) -> None:
    log: Any = OneRecord(f"{number}/3".encode())
    offset = between_decisions(log, Position.at("visits.events", 0, 8)).next_offset("visits.events", 0)
    assert offset == (6 if number == "2" else 8)


NO_ZONE = b'{"sources":{"a":{"end":"2026-01-01T00:00:00"}},"inputs":{}}'


@pytest.mark.parametrize("value", [b'{"sources":{},"inputs":{"0":1e999}}', b"[" * 100_000, NO_ZONE])
def test_a_watermark_with_a_broken_time_breaks_the_contract(value: bytes) -> None:
    with pytest.raises(ContractError, match="says no time"):
        Watermark.decode(value)


@pytest.mark.parametrize(("name", "value"), [("ce_type", b"\xff"), ("ce_id", b"\xff"), ("reply_key", b"\xff")])
def test_a_process_is_answered_despite_broken_headers(name: str, value: bytes) -> None:
    bench = CommandBench()
    bench.processor._partitions = lambda topic: 4
    reported = {"ce_type": b"baskets.None.v1", "reply_to": b"checkout.commands", "reply_key": b"k", name: value}
    batch = bench.run(bench.record(Open(basket_id="b", household="h"), headers=reported))
    assert batch.counts == {"dead": 1}
    assert len(batch.sent["checkout.commands"]) == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({}, "an error without 'error'"),
        ({"error": "ConflictError", "message": "", "fields": {}}, "an error without 'expected'"),
        ({"error": []}, "error is [], and no str"),
    ],
)
def test_a_rejection_without_an_error_is_dead_lettered(body: Any, why: str) -> None:
    bench = ProcessBench()
    bench.take(bench.event(PLACED, 7))
    (reserve,) = bench.sent
    assert bench.take(bench.answer(reserve, NACK, body)) == {"dead": 1}
    assert why in bench.dead[0]


@pytest.mark.parametrize("time", [1 << 62, -(1 << 62)])
def test_a_broken_event_of_an_impossible_time_is_parked(time: int) -> None:
    broken = PendingReader(receipts_with(lambda event, delivery: None)).read(
        paid("v", 7)._replace(value=b"", time=time)
    )
    assert broken is not None
    assert broken.error is not None


@pytest.mark.parametrize("number", STRANGE)
def test_attempts_that_are_no_number_count_as_0(number: str) -> None:
    assert read_metadata(f"a:{number}").attempts == 0
