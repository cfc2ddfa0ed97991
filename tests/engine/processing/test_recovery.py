"""Streams and process instances that are folded again from events and inputs."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from leftfold import ContractError, InfrastructureError
from leftfold.engine.processing import worker_tasks as process_refold
from leftfold.engine.processing.process_wire import ACK, NACK
from leftfold.engine.processing.stream_state import MARK, SETTLED, ChangelogCheckpoint, answer
from leftfold.engine.processing.worker_tasks import Refold
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Add, Basket, CheckOut, Open, baskets
from tests.domains.trade import PAID, PLACED, RESERVED, Checkout, Input, Paid, Placed, checkout, checkout_with, react
from tests.engine.processor_bench import DUE, CommandBench, ProcessBench, home

COMMANDS = [
    Open(basket_id="b", household="h"),
    Add(basket_id="b", product="twice", price=Decimal(1)),
    CheckOut(basket_id="b"),
]


def history(bench: CommandBench) -> list[RawRecord]:
    batch = bench.send(*COMMANDS)
    return [RawRecord("baskets.events", 0, n, out.key, out.value, out.headers) for n, out in enumerate(batch.events)]


def test_folding_the_events_gives_the_state_of_the_processor() -> None:
    bench = CommandBench()
    refold = Refold(baskets, {})
    for record in history(bench):
        refold.add(record)
    stream, original = refold.stream("b"), bench.state("b")
    assert (stream.version, stream.state) == (original.version, original.state) == (4, original.state)
    assert {id_: (a.first, a.events) for id_, a in stream.answered.items()} == {
        id_: (a.first, a.events) for id_, a in original.answered.items()
    }


def test_a_processor_on_refolded_streams_still_knows_duplicates() -> None:
    bench = CommandBench()
    first = bench.record(COMMANDS[0], "c1")
    batch = bench.run(first)
    store: dict[str, bytes] = {}
    refold = Refold(baskets, store)
    refold.add(RawRecord("baskets.events", 0, 0, b"b", batch.events[0].value, batch.events[0].headers))
    refold.take(10)
    bench.processor.hold(first.partition, store, end=1)
    assert bench.run(first).counts == {"duplicates": 1}


def test_events_that_the_state_has_already_are_skipped() -> None:
    bench = CommandBench()
    records = history(bench)
    store: dict[str, bytes] = {}
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
    refold = Refold(baskets, {})
    for record in history(CommandBench()):
        refold.add(record)
    assert [key for key, _ in refold.take(10)] == ["b"]
    assert refold.take(10) == []


def test_what_ended_a_forgotten_transaction_is_no_event() -> None:
    bench = CommandBench()
    refold = Refold(baskets, {})
    for number, record in enumerate(history(bench)):
        refold.add(record)
        refold.add(RawRecord("baskets.events", 0, 100 + number, MARK, b"{}", SETTLED))
    assert refold.stream("b").state == bench.state("b").state
    assert set(refold.changed) == {"b"}


def test_a_gap_in_the_events_is_refused() -> None:
    records = history(CommandBench())
    refold = Refold(baskets, {})
    refold.add(records[0])
    with pytest.raises(
        InfrastructureError, match=r"baskets.events\[0\]@2: stream 'b' continues at version 3, but only 1"
    ):
        refold.add(records[2])


HEADERS = ("ce_sequence", "ce_decision", "ce_causationid", "ce_type")


@pytest.mark.parametrize(
    ("name", "value"), [*product(HEADERS, (b"\xff", None)), ("ce_sequence", b"9" * 4300), ("ce_decision", b"-1/1")]
)
def test_an_event_with_headers_that_no_worker_writes_is_refused(name: str, value: bytes | None) -> None:
    record = history(CommandBench())[0]
    headers: Any = [(n, value if n == name else v) for n, v in record.headers]
    with pytest.raises(ContractError, match="the partition is not served"):
        Refold(baskets, {}).add(record._replace(headers=headers))


def test_a_key_that_is_no_text_is_refused_and_not_a_crash() -> None:
    with pytest.raises(ContractError, match="the partition is not served"):
        Refold(baskets, {}).add(history(CommandBench())[0]._replace(key=b"\xff"))


def test_a_fold_that_fails_refuses_the_partition_loudly() -> None:
    record = history(CommandBench())[1]
    value = json.loads(record.value or b"") | {"product": "unfoldable"}
    sequence: Any = [(n, b"1" if n == "ce_sequence" else v) for n, v in record.headers]
    with pytest.raises(ContractError, match="baskets.evolve failed on .*the partition is not served"):
        Refold(baskets, {}).add(record._replace(value=json.dumps(value).encode(), headers=sequence))


def test_answers_and_origins_come_over_from_another_version_of_the_state() -> None:
    bench = CommandBench()
    bench.run(
        bench.record(
            COMMANDS[0], "c1", headers={"origin": b"checkout.commands/0/5/1", "reply_to": b"checkout.commands"}
        ),
        bench.record(COMMANDS[0], "c2", headers={"expected_version": b"9"}),
    )
    store: dict[str, bytes] = {}
    refold = Refold(baskets, store)
    partition = bench.record(COMMANDS[0]).partition
    refold.adopt("b", bench.processor.held[partition].store.get("b") or b"")
    stream = refold.stream("b")
    assert list(stream.answered) == ["c1", "c2"]
    assert stream.origins == {"checkout.commands/0": (5, 1)}
    assert stream.version == 0


@pytest.mark.parametrize(
    "record",
    [
        b"garbage", b"\xff", b"{}", b"[]", b"1", b"[" * 100_000, b'{"answered":[1],"origins":{}}',
        b'{"answered":[[1,"",1,1]],"origins":{}}', b'{"answered":[],"origins":{"a":1}}',
        b'{"answered":[],"origins":{"a":["x",1]}}', b'{"answered":[],"origins":{"a":[1e999,1]}}', b'{"answered":[]}',
    ],
)  # fmt: skip
def test_a_foreign_record_in_the_states_of_another_version_is_passed_over(record: bytes) -> None:
    refold = Refold(baskets, {})
    assert not refold.adopt("b", record)
    assert refold.changed == {}


def test_a_refold_remembers_as_many_answers_as_a_processor_would() -> None:
    """Answers in a record that is folded further count as given with the next event: no worker forgets them sooner."""
    hour, (first,) = 3_600_000, history(CommandBench())[:1]

    def event(version: int, time: int) -> RawRecord:
        about = {"ce_sequence": b"%d" % version, "ce_causationid": b"c%d" % version, "ce_decision": b"1/1"}
        return first._replace(headers=tuple((dict(first.headers) | about).items()), time=time)

    store: dict[str, bytes] = {}
    refold = Refold(baskets, store)
    for version in range(1, 101):
        refold.add(event(version, version * hour))
    assert list(refold.stream("b").answered) == [f"c{version}" for version in range(69, 101)]
    for version in range(101, 201):
        refold.add(event(version, 200 * hour))
    refold.take(1)
    assert len(refold.stream("b").answered) == 100
    later = Refold(baskets, store)
    later.add(event(201, 300 * hour))
    assert len(later.stream("b").answered) == 101


def test_folded_states_are_written_in_parts_by_weight_without_the_answers_that_do_not_fit() -> None:
    refold = Refold(baskets, {})
    for number in range(40):
        stream = refold.stream(f"b{number}")
        stream.state, stream.version = Basket(household="h" * 980_000), 1
        for answer_number in range(32):
            id_ = f"{answer_number}" + "c" * 1000
            stream.remember(id_, answer(id_, "", 1, 1, None, 0.0))
        refold.changed[f"b{number}"] = stream
    parts = []
    while refold.changed:
        parts.append(dict(refold.take(2000, 1_000_000)))
    assert [len(part) for part in parts] == [17, 17, 6]
    assert {len(json.loads(value)["answered"]) for part in parts for value in part.values()} == {17}
    assert all(len(value) < 1_000_000 for part in parts for value in part.values())
    assert len(refold.store) == 40


def test_a_changelog_checkpoint_compares_the_ids_of_topics_that_are_known() -> None:
    checkpoint = ChangelogCheckpoint(12, 34, topics={"shop.events": "A", "shop.commands": ""})
    assert ChangelogCheckpoint.decode(checkpoint.encode()) == checkpoint
    assert checkpoint.is_of("shop.events", {"shop.events": "A"})
    assert not checkpoint.is_of("shop.events", {"shop.events": "B"})
    assert checkpoint.is_of("shop.events", {"shop.events": ""})
    assert checkpoint.is_of("shop.commands", {"shop.commands": "B"})
    older = ChangelogCheckpoint.decode(b'{"commands":12,"events":34,"writer":"w","start":0}')
    assert older.is_of("shop.events", {"shop.events": "B"})


HOME = home(b"o")
NO = {"error": "OutOfStock", "message": "no p left", "fields": {"product": "p"}}
BROKEN = {"error": "DecisionFailed", "message": "stock failed on it", "fields": {}}


def fussy(given: Input, state: Checkout) -> Sequence[Any]:
    """Cannot react to payments."""
    if isinstance(given, Paid):
        raise KeyError("a bug")
    return react(given, state)


def test_dead_letters_stay_dead_whatever_newer_code_would_do() -> None:
    bench = ProcessBench(checkout_with(react=fussy))
    for event, topic in ((PLACED, "orders.events"), (RESERVED, "stock.events"), (PAID, "payments.events")):
        bench.take(bench.event(event, 1, topic))
    (state,) = bench.folded(checkout_with(version=2)).values()
    assert b'"paid":false' in state, "its Confirm was never sent"
    assert b'"finished":false' in state
    (without,) = bench.folded(checkout_with(version=2), letters=False).values()
    assert b'"finished":true' in without, "it would wait for nothing any more, and the order for ever"


def test_an_input_that_killed_its_worker_is_not_taken_when_inputs_are_folded_again() -> None:
    def kills(given: Input, state: Checkout) -> Sequence[Any]:
        if isinstance(given, Paid):
            raise SystemExit(1)
        return react(given, state)

    bench = ProcessBench(checkout_with(react=kills))
    bench.take(bench.event(PLACED, 1))
    bench.kill(bench.event(PAID, 1, "payments.events"))
    assert bench.folded() == bench.state()
    with pytest.raises(SystemExit):
        bench.folded(letters=False)
    assert bench.take(bench.event(PAID, 1, "payments.events")) == {"duplicates": 1}, "it is not asked to die again"


def test_an_input_that_killed_its_workers_is_buried_though_its_instance_cannot_be_read() -> None:
    """Else the burial kills the next one, with every partition that it has."""
    bench = ProcessBench()
    bench.take(bench.event(PLACED, 7))
    store = bench.stores[home(b"o")]
    store["o"] = store["o"].replace(b'"reserved":false', b'"reserved":"perhaps"')
    batch = bench.again().processor.bury(bench.event(PAID, 1, "payments.events"), "killed its workers")
    assert (len(batch.dead), batch.changed) == (1, set())


def test_a_timer_or_an_answer_that_killed_its_worker_is_over() -> None:
    bench = ProcessBench()
    bench.take(bench.event(PLACED, 1))
    (reserve,) = bench.sent
    (due,) = bench.processor.due_at(HOME, DUE)
    bench.kill(bench.record(due))
    bench.kill(bench.answer(reserve, ACK, {"version": 1, "events": 1}))
    assert b'"timers":{},"waiting":{}' in bench.state()["o"]
    assert bench.folded() == bench.state()


def test_an_event_that_only_a_newer_router_knows_is_dead_lettered() -> None:
    """A router of newer code was there before this worker ended; the newer worker does not take it for taken."""
    bench = ProcessBench()
    bench.take(bench.event(PLACED, 1))
    record = bench.event(PLACED, 2)
    newer = [(name, b"orders.Shipped.v1" if name == "ce_type" else value) for name, value in record.headers]
    assert bench.take(record._replace(headers=newer)) == {"dead": 1}
    (letter,) = bench.letters
    assert b"does not listen to orders.Shipped.v1" in dict(letter.headers)["dead_reason"]
    assert bench.folded() == bench.state()
    assert bench.take(record._replace(headers=newer)) == {"duplicates": 1}


def test_what_newer_code_cannot_take_is_counted() -> None:
    bench = ProcessBench()
    bench.take(bench.event(PLACED, 1), bench.event(PAID, 1, "payments.events"))
    bench.folded(checkout_with(react=fussy))
    assert bench.refused == 1
    bench.folded()
    assert bench.refused == 0


def random_inputs(chance: random.Random, bench: ProcessBench) -> None:
    """Some inputs of three instances, some of them twice, some deadly."""
    offsets = dict.fromkeys(("orders.events", "payments.events"), 0)
    answered = 0
    for _ in range(30):
        order = chance.choice(["o", "q", "r"])
        is_placed = chance.random() < 0.5
        event: Placed | Paid = Placed(order=order, product="p", at=PLACED.at) if is_placed else Paid(order=order)
        topic = "orders.events" if is_placed else "payments.events"
        offsets[topic] += chance.choice([0, 1, 1])
        deed = chance.random()
        if deed < 0.15:
            bench.kill(bench.event(event, offsets[topic], topic))
        elif deed < 0.5 and bench.sent:
            answered += 1
            command = chance.choice(bench.sent)
            said = chance.choice([(ACK, {"version": 1, "events": 1}), (NACK, NO), (NACK, BROKEN), (NACK, [])])
            bench.take(bench.answer(command, *said, offset=answered))
        elif deed < 0.6:
            for partition in range(4):
                bench.take(*[bench.record(due) for due in bench.processor.due_at(partition, DUE)])
        else:
            bench.take(bench.event(event, offsets[topic], topic))


@pytest.mark.parametrize("most", [1, 2000])
def test_folding_all_inputs_again_gives_the_state_of_the_processor(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_refold, "_OPEN", most)
    chance, differ = random.Random(5), 0
    for _ in range(40):
        bench = ProcessBench(checkout_with(react=fussy))
        random_inputs(chance, bench)
        assert bench.folded() == bench.state()
        differ += bench.folded(checkout, letters=False) != bench.state()
    assert differ > 4, "without their dead letters other states would come of it"
