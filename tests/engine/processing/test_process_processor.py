from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from leftfold import DecisionFailed, InfrastructureError
from leftfold.engine.processing.process_instance import Due
from leftfold.engine.processing.process_reactor import checked_effects
from leftfold.engine.processing.process_wire import ACK, NACK, due_record
from leftfold.ports.codec import header
from leftfold.ports.outgoing import Batch
from leftfold.testing import check_redelivery
from tests.domains.trade import (
    NOW,
    PAID,
    PLACED,
    RESERVED,
    Checkout,
    Input,
    Paid,
    Placed,
    Reserve,
    Sends,
    checkout,
    checkout_with,
)
from tests.engine.processor_bench import DUE, ProcessBench, home


@pytest.fixture
def bench() -> ProcessBench:
    return ProcessBench()


def test_a_command_of_a_process_carries_its_origin_and_reply_address(bench: ProcessBench) -> None:
    record = bench.event(PLACED, 7)
    assert bench.take(record) == {"taken": 1, "sent": 1}
    (command,) = bench.sent
    said = dict(command.headers)
    assert said["origin"] == f"checkout.commands/{record.partition}/{record.offset}/0".encode()
    assert (said["reply_to"], said["reply_key"]) == (b"checkout.commands", b"o")
    assert said["ce_causationid"] == header(record.headers, "ce_id")
    assert said["ce_correlationid"] == b"orders.events7" == header(record.headers, "ce_causationid")
    assert said["ce_type"] == b"stock.Reserve.v1"


def test_an_input_delivered_again_does_nothing_even_to_another_processor(bench: ProcessBench) -> None:
    bench.take(bench.event(PLACED, 7))
    assert bench.take(bench.event(PLACED, 7)) == {"duplicates": 1}
    assert bench.again().take(bench.event(PLACED, 7)) == {"duplicates": 1}
    assert bench.take(bench.event(PLACED, 6)) == {"duplicates": 1}, "what came before what is known was there, too"


def test_without_its_origin_an_input_would_count_twice(bench: ProcessBench) -> None:
    bench.take(bench.event(PLACED, 7))
    assert bench.take(bench.event(PLACED, 7, topic="elsewhere")) == {"taken": 1, "sent": 1}
    bare = bench.event(PLACED, 8)._replace(headers=())
    assert bench.take(bare) == {"dead": 1}
    record = bench.event(PLACED, 9)
    without = [(name, value) for name, value in record.headers if name != "origin"]
    assert bench.take(record._replace(headers=without)) == {"dead": 1}
    assert "header 'origin' is missing" in bench.dead[-1]


def test_an_answer_counts_once_and_only_for_a_command_that_waits(bench: ProcessBench) -> None:
    bench.take(bench.event(PLACED, 7))
    (reserve,) = bench.sent
    no = {"error": "OutOfStock", "message": "no p left", "fields": {"product": "p"}}
    assert bench.take(bench.answer(reserve, NACK, no)) == {"taken": 1, "sent": 1}
    assert [header(out.headers, "ce_type") for out in bench.sent] == [b"orders.Drop.v1"]
    assert bench.take(bench.answer(reserve, NACK, no)) == {"duplicates": 1}
    assert bench.take(bench.answer(reserve, NACK, no, offset=1)) == {"unasked": 1}


@pytest.mark.parametrize("time", [10**17, -(10**17), 1])
def test_an_input_may_claim_to_be_written_at_any_time(bench: ProcessBench, time: int) -> None:
    assert bench.take(bench.event(PLACED, 7)._replace(time=time)) == {"taken": 1, "sent": 1}


def test_an_acknowledged_command_is_forgotten(bench: ProcessBench) -> None:
    bench.take(bench.event(PLACED, 7))
    (reserve,) = bench.sent
    assert b"stock.Reserve" in (bench.stores[home(b"o")].get("o") or b"")
    bench.take(bench.answer(reserve, ACK, {"version": 1, "events": 1}))
    assert b"stock.Reserve" not in (bench.stores[home(b"o")].get("o") or b"")


def test_an_answer_without_an_input_for_it_is_dead_lettered_with_command_and_reason(bench: ProcessBench) -> None:
    bench.take(bench.event(PLACED, 7))
    (reserve,) = bench.sent
    failed = {"error": "DecisionFailed", "message": "stock failed on it", "fields": {}}
    assert bench.take(bench.answer(reserve, NACK, failed)) == {"dead": 1}
    assert bench.dead == ["Reserve was not decided: DecisionFailed: stock failed on it"]
    assert bench.take(bench.answer(reserve, NACK, failed, offset=1)) == {"unasked": 1}


def test_a_due_timer_sends_its_command_once_and_an_older_setting_nothing(bench: ProcessBench) -> None:
    bench.take(bench.event(PLACED, 7))
    partition = home(b"o")
    assert bench.processor.due_at(partition, DUE - timedelta(microseconds=1)) == []
    (due,) = bench.processor.due_at(partition, DUE)
    assert bench.processor.due_at(partition, DUE) == [due], "until it is written it is due"
    bench.processor.commit(Batch(sent={"checkout.commands": [due]}), {})
    assert bench.processor.due_at(partition, DUE) == []
    setting = Due("2026-01-01T01:00:00Z", "orders.Drop.v1", "{}", "c", "another input")
    older = due_record("trade", "checkout", "o", "patience", setting, partition)
    assert bench.take(bench.record(older)) == {"cancelled": 1}
    assert bench.take(bench.record(due)) == {"taken": 1, "sent": 1}
    assert [header(out.headers, "ce_type") for out in bench.sent] == [b"orders.Drop.v1"]
    assert bench.take(bench.record(due)) == {"cancelled": 1}


def test_a_processor_that_takes_over_knows_the_timers(bench: ProcessBench) -> None:
    bench.take(bench.event(PLACED, 7))
    other = bench.again()
    assert [due.key for due in other.processor.due_at(home(b"o"), DUE)] == [b"o"]
    bench.take(bench.event(RESERVED, 1, "stock.events"), bench.event(PAID, 1, "payments.events"))
    assert bench.again().processor.due_at(home(b"o"), DUE) == []


def test_an_input_that_cannot_be_reacted_to_is_dead_lettered_and_the_rest_continues() -> None:
    def fails(given: Input, state: Checkout) -> list[Sends]:
        if isinstance(given, Placed):
            raise KeyError("no such product")
        return []

    process = checkout_with(react=fails)
    bench = ProcessBench(process)
    assert bench.take(bench.event(PLACED, 7), bench.event(PAID, 0, "payments.events")) == {"dead": 1, "taken": 1}
    assert "process checkout failed on Placed(" in bench.dead[0]
    assert "no such product" in bench.dead[0]
    assert ["in fails" in trace and "KeyError: 'no such product'" in trace for trace in bench.traces] == [True]
    assert bench.take(bench.event(PLACED, 7)) == {"duplicates": 1}, "it was dealt with"


def test_a_state_that_is_too_heavy_is_refused_and_the_instance_stays_as_it_was() -> None:
    def grows(state: Checkout, given: Input) -> Checkout:
        return replace(state, product="x" * 3000)

    process = checkout_with(evolve=grows)
    bench = ProcessBench(process, max_bytes=4096)
    assert bench.take(bench.event(PLACED, 7)) == {"dead": 1}
    assert "the state would be too large" in bench.dead[0]
    assert bench.take(bench.event(PLACED, 7)) == {"duplicates": 1}, "it was dealt with"
    assert b"xxx" not in (bench.stores[home(b"o")].get("o") or b"")


def test_a_missing_topic_stops_the_processor_before_anything_is_written(bench: ProcessBench) -> None:
    bench.missing = "orders.commands"
    bench.take(bench.event(PLACED, 7))
    bench.take(bench.event(RESERVED, 0, "stock.events"))
    with pytest.raises(InfrastructureError, match=r"orders\.commands does not exist"):
        bench.take(bench.event(PAID, 0, "payments.events"))


def test_a_history_in_any_order_and_with_any_repetition_leaves_one_effect_of_each() -> None:
    chance = random.Random(7)
    for _ in range(50):
        bench, commands = ProcessBench(), []
        paid, reserved = bench.event(PAID, 3, "payments.events"), bench.event(RESERVED, 5, "stock.events")
        for record in [bench.event(PLACED, 7), *chance.sample([paid, reserved], 2)]:
            for _ in range(chance.randint(1, 3)):
                bench.take(record)
                commands += [header(out.headers, "ce_type") for out in bench.sent]
                if chance.random() < 0.3:
                    bench = bench.again()
        assert commands == [b"stock.Reserve.v1", b"orders.Confirm.v1"]


def test_redelivery_is_a_property_to_check_with_histories_of_your_own() -> None:
    check_redelivery(checkout, [PLACED, PAID, RESERVED])
    with pytest.raises(AssertionError, match="belongs to another instance"):
        check_redelivery(checkout, [PLACED, Paid(order="other")])


def test_redelivery_finds_a_process_that_looks_at_a_clock() -> None:
    ticks = iter(range(100))

    def impure(given: Input, state: Checkout) -> list[Sends]:
        return [Reserve(product=str(next(ticks)), order=given.order)] if isinstance(given, Placed) else []

    process = checkout_with(react=impure)
    with pytest.raises(AssertionError, match="react must be pure"):
        check_redelivery(process, [PLACED])


def test_what_is_no_effect_fails() -> None:
    with pytest.raises(DecisionFailed, match="a process gives commands, Timer, Cancel and Finished only"):
        checked_effects("checkout", [Placed(order="o", product="p", at=NOW)], checkout.sends)
