from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from leftfold import ConfigurationError, DecisionFailed, DomainError, InfrastructureError, Timer
from leftfold.engine.processing.process_instance import Due, InstanceCodec
from leftfold.engine.processing.process_reactor import checked_effects
from leftfold.engine.processing.process_wire import ACK, NACK, due_record
from leftfold.engine.processing.stream_state import StreamCodec
from leftfold.engine.processing.worker_tasks import task_for
from leftfold.ports.message_codec import header
from leftfold.ports.outgoing import Batch
from leftfold.testing import check_redelivery
from tests.domains.trade import (
    NOW,
    PAID,
    PLACED,
    RESERVED,
    Checkout,
    Confirmed,
    Drop,
    Input,
    Paid,
    Placed,
    Reserve,
    Sends,
    app,
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
    assert bench.take(bench.answer(reserve, NACK, no)) == {"unasked": 1}
    assert bench.take(bench.answer(reserve, NACK, no, offset=1)) == {"unasked": 1}


def test_answers_count_when_the_topic_of_their_commands_was_made_again() -> None:
    """The second one lies before the first, in a topic that has begun at 0 meanwhile."""
    bench = ProcessBench(checkout_with(react=reserving_twice))
    bench.take(bench.event(PLACED, 7))
    one, two = bench.sent
    done = {"version": 1, "events": 1}
    assert bench.take(bench.answer(one, ACK, done, offset=5000)) == {"taken": 1}
    assert bench.take(bench.answer(two, ACK, done, offset=3)) == {"taken": 1}


def reserving_twice(given: Input, state: Checkout) -> list[Sends]:
    return [Reserve(product=name, order=given.order) for name in ("p", "q")] if isinstance(given, Placed) else []


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


def with_timers(timers: object) -> bytes:
    """A state record with these timers, as another client may write it."""
    fields = {"version": 1, "state": {}, "origins": {}, "timers": timers, "waiting": {}, "finished": False}
    return json.dumps(fields, separators=(",", ":")).encode()


SET = {"at": "2026-01-01T01:00:00Z", "type": "orders.Drop.v1", "value": "{}", "correlation": "c", "by": "e"}


def test_a_worker_takes_only_records_of_instances_for_states_of_a_process(bench: ProcessBench) -> None:
    bench.take(bench.event(PLACED, 7), bench.event(PAID, 1, "payments.events"))
    (own,) = bench.state().values()
    process = task_for(app, "checkout")
    codec: InstanceCodec[Checkout] = InstanceCodec(checkout.state, checkout.initial_state)
    new = codec.encode(codec.new())
    assert all(map(process.is_state, (own, new, with_timers({}), with_timers({"patience": SET}))))
    stream: StreamCodec[Checkout] = StreamCodec(checkout.state, checkout.initial_state)
    assert task_for(app, "orders").is_state(stream.encode(stream.new())), "a decider's record is one of a decider"
    for foreign in (b'{"version":1,"state":1}', stream.encode(stream.new()), *UNREADABLE_TIMERS):
        assert not process.is_state(foreign), foreign


@pytest.mark.parametrize(
    ("length", "correlation", "fits"), [(1008, b"", True), (1009, b"", False), (1010, b"c", True), (1011, b"c", False)]
)
def test_an_input_whose_id_does_not_fit_what_follows_from_it_is_dead_lettered(
    bench: ProcessBench, length: int, correlation: bytes, fits: bool
) -> None:
    """Its timer would be read when it is due, and by every worker that takes over."""
    record = bench.event(PLACED, 7)
    headers = dict(record.headers) | {"ce_id": b"i" * length, "ce_correlationid": correlation}
    assert bench.take(record._replace(headers=tuple(headers.items()))) == (
        {"taken": 1, "sent": 1} if fits else {"dead": 1}
    )
    due = bench.processor.due_at(home(b"o"), DUE)
    bench.processor.commit(Batch(sent={"checkout.commands": due}), {})
    assert len(due) == fits


def test_a_timer_that_such_an_input_has_set_before_ends_no_worker(bench: ProcessBench) -> None:
    partition = home(b"o")
    bench.stores[partition]["o"] = with_timers({"patience": SET | {"by": "i" * 1011}})
    other = bench.again()
    (due,) = other.processor.due_at(partition, DUE)
    other.processor.commit(Batch(sent={"checkout.commands": [due]}), {})
    assert other.processor.due_at(partition, DUE) == []
    assert other.take(other.record(due)) == {"dead": 1}


UNREADABLE_TIMERS = [
    with_timers(3),
    with_timers(["patience"]),
    with_timers({"patience": {}}),
    with_timers({"patience": SET | {"at": "soon"}}),
    with_timers({"patience": SET | {"at": "2026-01-01T01:00:00"}}),
    with_timers({"patience": SET | {"by": [1]}}),
    with_timers({"patience": SET | {"correlation": "\ud800"}}),
]


def test_a_record_without_timers_does_not_end_the_processor_that_restores_it(bench: ProcessBench) -> None:
    bench.take(bench.event(PLACED, 7))
    assert not InstanceCodec.has_timers(b'{"version":1,"state":1}')
    bench.stores[home(b"o")]["other"] = b'{"version":1,"state":1}'
    assert [due.key for due in bench.again().processor.due_at(home(b"o"), DUE)] == [b"o"]


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


class Mute(DomainError):
    """A refusal that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("error", [ConfigurationError("no such product"), Mute()], ids=["settings", "mute"])
def test_whatever_react_raises_is_dead_lettered(error: Exception) -> None:
    def fails(given: Input, state: Checkout) -> list[Sends]:
        raise error

    bench = ProcessBench(checkout_with(react=fails))
    assert bench.take(bench.event(PLACED, 7)) == {"dead": 1}


def test_a_refusal_with_a_type_that_is_no_text_is_dead_lettered(bench: ProcessBench) -> None:
    bench.take(bench.event(PLACED, 7))
    (reserve,) = bench.sent
    no = {"error": "OutOfStock", "message": "no p left", "fields": {"product": "p"}, "type": "\ud800"}
    assert bench.take(bench.answer(reserve, NACK, no)) == {"dead": 1}


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("late", datetime(9999, 12, 31, 23, 59, tzinfo=timezone(-timedelta(hours=5)))),
        ("early", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))),
        ("\ud800", NOW),
    ],
    ids=["behind the last year", "before the first", "no text"],
)
def test_a_timer_that_cannot_be_written_down_is_dead_lettered(name: str, at: datetime) -> None:
    timer = Timer(name=name, at=at, command=Drop(order="o", why="late"))
    bench = ProcessBench(checkout_with(react=lambda given, state: [timer]))
    assert bench.take(bench.event(PLACED, 7)) == {"dead": 1}
    assert bench.stores[home(b"o")].get("o"), "the input was dealt with"


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
    with pytest.raises(AssertionError, match="Confirmed.* is no input of process checkout"):
        check_redelivery(checkout, [Confirmed(order="o")])


@pytest.mark.parametrize("key", [None, 7, "", "@"])
def test_redelivery_finds_keys_that_name_no_instance(key: Any) -> None:
    with pytest.raises(AssertionError, match=rf"checkout.correlate gave {key!r}.* for Placed"):
        check_redelivery(checkout_with(correlate=lambda given: key), [PLACED])


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
