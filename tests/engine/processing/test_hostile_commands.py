"""No bytes that a client may write stop a processor for others, or make it write where its App does not."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from leftfold import Command, Decider, DomainError, Event
from leftfold.engine.processing.command_wire import LONGEST, MOST, SMALL, to_error
from leftfold.engine.processing.process_wire import NACK
from leftfold.errors import ConfigurationError, ContractError
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import header as first
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Add, Open, app
from tests.domains.trade import PLACED
from tests.engine.processor_bench import END, PARTITIONS, CommandBench, ProcessBench, header
from tests.hostility import worsened

OPEN = Open(basket_id="b", household="h")
TO = b"checkout.commands"
FROM_CHECKOUT = {"reply_to": TO, "reply_key": b"order-1", "origin": b"checkout.commands/0/7/0"}
BEYOND = datetime.max.replace(tzinfo=timezone(-timedelta(hours=23, minutes=59)))


class Said(Event, category="talks", key="who"):
    who: str
    text: str
    late: bool = False


class TooLong(DomainError, message="{text}"):
    text: str


class Say(Command, category="talks", key="who", rejects=(TooLong,)):
    who: str
    text: str
    late: bool = False


@dataclass(frozen=True)
class Talk:
    times: int = 0
    until: datetime = datetime(2026, 1, 1, tzinfo=UTC)


def say(command: Say, state: Talk) -> list[Said]:
    if len(command.text) > 20:
        raise TooLong(text=command.text)
    return [Said(who=command.who, text=command.text, late=command.late)]


def heard(state: Talk, event: Said) -> Talk:
    return Talk(state.times + 1, BEYOND if event.late else state.until)


talks = Decider("talks", commands=Say, events=Said, state=Talk, initial_state=Talk(), decide=say, evolve=heard)


@pytest.fixture
def bench() -> CommandBench:
    return CommandBench()


@pytest.mark.parametrize(
    "to",
    [
        b"a\x00b.commands", b"\x00.commands", b"x" * 900 + b".commands", b"\xff.commands", b"../x.commands",
        b"a b.commands", b"orders.commands", b"baskets.commands", b"checkout.events", b".commands",
        b"checkout.commands/0", b"x.replies/0",
    ],
)  # fmt: skip
@pytest.mark.parametrize("body", [None, b"{"])
def test_only_declared_processes_are_answered(bench: CommandBench, to: bytes, body: bytes | None) -> None:
    asked: list[str] = []
    bench.processor._partitions = lambda topic: asked.append(topic) or PARTITIONS  # type: ignore[func-returns-value]
    forged = bench.record(OPEN, headers={**FROM_CHECKOUT, "reply_to": to})
    batch = bench.run(forged if body is None else forged._replace(value=body), bench.record(OPEN))
    assert batch.counts == {"dead": 1, "replies_unanswerable": 1, "accepted": 1}
    assert (batch.sent, asked) == ({}, [])


def test_a_declared_process_is_answered_once_and_its_repeats_are_seen(bench: CommandBench) -> None:
    batch = bench.run(bench.record(OPEN, headers=FROM_CHECKOUT), bench.record(OPEN, headers=FROM_CHECKOUT))
    assert batch.counts == {"accepted": 1, "duplicates": 1}
    assert [header(answer, "ce_subject") for answer in batch.sent[TO.decode()]] == [b"order-1"] * 2


@pytest.mark.parametrize(
    "changed",
    [
        {"origin": b"checkout.commands/0/%d/0" % END},
        {"origin": b"checkout.commands/0/%d/0" % (2**62)},
        {"origin": b"checkout.commands/%d/7/0" % PARTITIONS},
        {"origin": b"checkout.commands/-1/7/0"},
        {"origin": b"supplier.commands/0/7/0"},
        {"origin": b"checkout.commands/0/7"},
        {"reply_to": ...},
        {"reply_to": b"supplier.commands"},
    ],
)
def test_a_forged_origin_suppresses_no_true_command(bench: CommandBench, changed: dict[str, Any]) -> None:
    forged = bench.record(OPEN, headers={**FROM_CHECKOUT, **changed})
    true = bench.record(OPEN, headers={**FROM_CHECKOUT, "origin": b"checkout.commands/0/8/0"})
    batch = bench.run(forged, true)
    assert {name: batch.counts[name] for name in ("dead", "accepted")} == {"dead": 1, "accepted": 1}


def test_a_forged_origin_below_the_end_of_inputs_suppresses_true_ones_below_it(bench: CommandBench) -> None:
    """Not promised otherwise: writers of commands can forge those of a declared sender (decision 49)."""
    ahead = bench.record(OPEN, headers={**FROM_CHECKOUT, "origin": b"checkout.commands/0/%d/0" % (END - 1)})
    assert bench.run(ahead).counts == {"accepted": 1}
    add = Add(basket_id="b", product="p", price=Decimal(1))
    assert bench.run(bench.record(add, headers=FROM_CHECKOUT)).counts == {"duplicates": 1}
    beyond = {**FROM_CHECKOUT, "origin": b"checkout.commands/1/7/0"}
    assert bench.run(bench.record(add, headers=beyond)).counts == {"accepted": 1}, "of another partition of its inputs"


def test_twin_a_forged_origin_that_is_believed_suppresses_the_true_command() -> None:
    bench = CommandBench()
    bench.processor._end = lambda topic, partition: 2**63
    forged = bench.record(OPEN, headers={**FROM_CHECKOUT, "origin": b"checkout.commands/0/%d/0" % (2**62)})
    true = bench.record(Add(basket_id="b", product="p", price=Decimal(1)), headers=FROM_CHECKOUT)
    assert bench.run(forged, true).counts == {"accepted": 1, "duplicates": 1}


def test_where_inputs_end_is_asked_once_for_what_was_fetched_together(bench: CommandBench) -> None:
    origins = [b"checkout.commands/0/%d/0" % n for n in (*range(END + 5, END), 3, END, END + 1, END + 2, 4)]
    bench.run(*(bench.record(OPEN, headers={**FROM_CHECKOUT, "origin": origin}) for origin in origins))
    assert bench.asked == 1
    bench.run(bench.record(OPEN, headers=FROM_CHECKOUT))
    assert bench.asked == 1, "it is known to reach so far"


@pytest.mark.parametrize(
    "name", ["ce_id", "ce_time", "ce_correlationid", "traceparent", "ce_authid", "reply_to", "reply_key", "origin", "x"]
)
def test_every_header_has_a_limit(bench: CommandBench, name: str) -> None:
    long = bench.record(OPEN, headers={**FROM_CHECKOUT, name: b"1" * LONGEST})
    batch = bench.run(long, bench.record(OPEN))
    assert batch.counts["dead"] == batch.counts["accepted"] == 1
    assert b"has more than 1024 bytes" in header(batch.dead[0], "dead_reason")


def test_the_number_of_headers_has_a_limit(bench: CommandBench) -> None:
    few = bench.record(OPEN)
    many = few._replace(headers=[*few.headers, *[("x", b"")] * MOST])
    assert bench.run(many, few).counts == {"dead": 1, "accepted": 1}


@pytest.mark.parametrize("deadline", [b"9" * 400, b"-" + b"9" * 400, b"9" * 19, b"x", b"", None])
def test_a_deadline_that_is_no_time_is_a_letter_and_its_neighbours_are_decided(
    bench: CommandBench, deadline: bytes | None
) -> None:
    wrong = bench.record(OPEN)
    headers: Any = [*wrong.headers, ("deadline", deadline)]
    batch = bench.run(wrong._replace(headers=headers), bench.record(OPEN))
    assert batch.counts == {"dead": 1, "accepted": 1}


@pytest.mark.parametrize("type_", [None, b""])
def test_an_input_without_a_type_is_a_letter_and_is_skipped_in_folds(type_: bytes | None) -> None:
    bench = ProcessBench()
    good = bench.event(PLACED, 0)
    headers: Any = [(name, type_ if name == "ce_type" else value) for name, value in good.headers]
    assert bench.take(good._replace(headers=headers), bench.event(PLACED, 1)) == {"dead": 1, "taken": 1, "sent": 1}
    assert bench.folded() == bench.state()


def test_the_last_of_two_equal_headers_counts_everywhere(bench: CommandBench) -> None:
    record = bench.record(OPEN, "first")
    record = record._replace(headers=[*record.headers, ("ce_id", b"last"), ("reply_to", b"last.replies/0")])
    (reply,) = bench.run(record).replies
    assert (reply.to, reply.command_id) == (b"last.replies/0", b"last")
    assert first(record.headers, "ce_id") == b"last"


def _refused(n: int, size: int) -> Say:
    return Say(who="w", text=str(n) * size)


def test_a_large_rejection_is_answered_whole_and_remembered_without_details() -> None:
    bench = CommandBench(talks)
    large = bench.record(_refused(1, 300_000), "large")
    (reply,) = bench.run(large).replies
    assert reply.error is not None
    assert to_error(reply.error, Say) == TooLong(text="1" * 300_000)
    assert len(bench.state("w").answered["large"].encoded) < SMALL
    (again,) = bench.run(large).replies
    assert again.error is not None
    assert isinstance(to_error(again.error, Say), ContractError)
    assert "its details were too large to be kept" in str(to_error(again.error, Say))
    (small,) = bench.run(bench.record(_refused(1, 21), "small")).replies
    assert small.error == bench.state("w").answered["small"].error


def test_large_answers_of_an_earlier_version_are_dropped_before_a_command_is_refused() -> None:
    bench = CommandBench(talks)
    bench.send(Say(who="w", text="hello"))
    partition = partition_of(b"w", PARTITIONS)
    state = json.loads(bench.processor.held[partition].store.get("w") or b"")
    state["answered"] = [
        [f"old{n}", "", 1, {"error": "TooLong", "message": "x" * 490_000, "fields": {}}] for n in (1, 2)
    ]
    store: dict[str, bytes] = {}
    store["w"] = json.dumps(state).encode()
    bench.processor.hold(partition, store, end=0)
    assert bench.send(*[Say(who="w", text="hello")] * 3).counts == {"accepted": 3}


def test_an_answer_to_a_process_is_small_enough_to_be_written() -> None:
    bench = CommandBench(talks)
    refused = bench.record(_refused(1, 800_000), headers=FROM_CHECKOUT)
    (answer,) = bench.run(refused).sent[TO.decode()]
    assert header(answer, "ce_type") == NACK
    assert len(answer.value or b"") < 400_000
    assert json.loads(answer.value or b"")["error"] == "TooLong"


def test_a_state_that_cannot_be_encoded_refuses_its_command() -> None:
    bench = CommandBench(talks)
    batch = bench.send(
        Say(who="w", text="a"), Say(who="w", text="b", late=True), Say(who="w", text="c"), Say(who="v", text="d")
    )
    assert batch.counts == {"accepted": 3, "failed": 1}
    assert bench.state("w").state.times == 2
    errors = [reply.error["error"] for reply in batch.replies if reply.error]
    assert errors == ["DecisionFailed"]
    assert "cannot be written down" in next(iter(batch.failures.values())).why


@pytest.mark.parametrize("wrong", [None, Talk(times=0.5), Talk(until=datetime(2026, 1, 1))])  # type: ignore[arg-type]  # noqa: DTZ001
def test_a_state_that_would_not_be_read_again_refuses_its_command(wrong: Any) -> None:
    def evolve(state: Talk, event: Said) -> Any:
        return wrong if event.late else replace(state, times=state.times + 1)

    bench = CommandBench(
        Decider("talks", commands=Say, events=Said, state=Talk, initial_state=Talk(), decide=say, evolve=evolve)
    )
    batch = bench.send(Say(who="w", text="a"), Say(who="w", text="b", late=True), Say(who="w", text="c"))
    assert batch.counts == {"accepted": 2, "failed": 1}
    assert bench.state("w").state == Talk(times=2)
    assert "cannot be written down" in next(iter(batch.failures.values())).why


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_a_time_that_utc_cannot_express_is_refused(bench: CommandBench, text: str) -> None:
    class Meet(Command, category="talks", key="who"):
        who: str
        at: datetime

    with pytest.raises(ValidationError):
        Meet(who="w", at=datetime.fromisoformat(text))
    for last in ("9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00Z", "9999-12-31T22:59:59-01:00"):
        assert Meet.model_validate_json(f'{{"who": "w", "at": "{last}"}}').at == datetime.fromisoformat(last)
    assert bench.run(bench.record(OPEN, headers={"ce_time": text.encode()})).counts["dead"] == 1


@pytest.mark.parametrize("senders", ["checkout", [1], ["Checkout"], ["a b"]])
def test_senders_are_names_of_processes(senders: Any) -> None:
    from leftfold import App

    with pytest.raises(ConfigurationError, match="senders="):
        App("shop", deciders=app.deciders, senders=senders)


def test_forty_batches_of_worse_and_worse_records_stop_nothing_for_others(bench: CommandBench) -> None:
    rng = random.Random(15)
    for _ in range(40):
        bad = [worsened(rng, bench.record(OPEN, headers=rng.choice([{}, FROM_CHECKOUT]))) for _ in range(100)]
        records: Sequence[RawRecord] = [*bad, bench.record(Open(basket_id="n", household=f"{bench.offset}"), "mine")]
        batch = bench.run(*rng.sample(records, len(records)))
        assert b"mine" in {reply.command_id for reply in batch.replies}
        assert batch.sent.keys() <= {TO.decode()}
        assert all(sum(len(v) for _, v in out.headers) + len(out.value or b"") < 1_000_000 for out in batch.dead)
        bench.now += 120


def test_thousands_of_worse_and_worse_commands_are_buried_without_an_error(bench: CommandBench) -> None:
    """What is buried may be what no code could read: a worker died at it, or a broker refused what it made."""
    rng = random.Random(5)
    for number in range(3_000):
        good = bench.record(OPEN, headers=rng.choice([{}, FROM_CHECKOUT]))
        batch = bench.processor.bury(
            worsened(rng, good), "a worker died 3 times at this command", silent=number % 2 == 1
        )
        (letter,) = batch.dead
        assert header(letter, "dead_source") == b"baskets.commands/%d/%d" % (good.partition, good.offset)
        assert sum(len(v) for _, v in letter.headers) + len(letter.value or b"") < 1_000_000
        assert (batch.events, batch.states) == ([], [])
        assert batch.sent.keys() <= ({TO.decode()} if number % 2 == 0 else set())


def test_thousands_of_worse_and_worse_inputs_are_buried_without_an_error() -> None:
    rng, bench = random.Random(5), ProcessBench()
    for number in range(3_000):
        good = bench.event(PLACED, number)
        batch = bench.processor.bury(worsened(rng, good), "a worker died 3 times at this command")
        (letter,) = batch.dead
        assert header(letter, "dead_source") == b"checkout.commands/%d/%d" % (good.partition, good.offset)
        assert sum(len(v) for _, v in letter.headers) + len(letter.value or b"") < 1_000_000
        assert sum(len(state.value or b"") for state in batch.states) < 1_000_000
        bench.processor.commit(batch, {})


@pytest.mark.parametrize("at_home", [True, False])
def test_an_input_whose_key_leaves_no_room_for_a_state_is_a_letter_and_the_others_are_taken(at_home: bool) -> None:
    bench, key = ProcessBench(), b"k" * 600_000
    good = bench.event(PLACED, 0)
    large = good._replace(key=key, partition=partition_of(key, PARTITIONS) if at_home else good.partition)
    assert bench.take(large, good) == {"dead": 1, "taken": 1, "sent": 1}
