"""A processor that decides batches of commands: what it writes, answers, remembers and dead-letters."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from leftfold.engine.processing import partition_processor
from leftfold.engine.processing.command_wire import DELIVERY_SECONDS, deadline_header, to_error
from leftfold.engine.processing.process_wire import NO_INPUT
from leftfold.engine.processing.stream_state import KEEP, KEEP_BYTES, KEEP_SECONDS
from leftfold.errors import OutcomeUnknown
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import event_id
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Add, CheckOut, Open
from tests.engine.processor_bench import PARTITIONS, CommandBench, header, headers

ONE = Decimal(1)


@pytest.fixture
def bench() -> CommandBench:
    return CommandBench()


def add(basket: str = "b", product: str = "p", price: Decimal = ONE) -> Add:
    return Add(basket_id=basket, product=product, price=price)


def test_a_batch_decides_each_command_on_what_those_before_it_did(bench: CommandBench) -> None:
    batch = bench.send(Open(basket_id="b", household="h"), add(), CheckOut(basket_id="b"), add())
    assert headers(batch.events, "ce_type") == [b"baskets.Opened.v1", b"baskets.Added.v1", b"baskets.CheckedOut.v1"]
    assert headers(batch.events, "ce_sequence") == [b"1", b"2", b"3"]
    assert [reply.error and reply.error["error"] for reply in batch.replies] == [None, None, None, "Closed"]
    assert batch.counts == {"accepted": 3, "rejected": 1}


def test_events_carry_the_headers_of_the_format(bench: CommandBench) -> None:
    twice = bench.record(
        add(product="twice"), "c1", headers={"ce_correlationid": b"corr", "traceparent": b"00-t", "ce_authid": b"ann"}
    )
    first, second = bench.run(twice).events
    assert dict(second.headers) == {
        "ce_specversion": b"1.0",
        "ce_id": event_id("baskets", "b", "c1", 1).encode(),
        "ce_source": b"/shop/baskets",
        "ce_type": b"baskets.Added.v1",
        "ce_subject": b"b",
        "ce_time": b"2026-01-01T00:00:00Z",
        "ce_sequence": b"2",
        "ce_decision": b"2/2",
        "ce_correlationid": b"corr",
        "ce_causationid": b"c1",
        "content-type": b"application/json",
        "traceparent": b"00-t",
        "ce_authid": b"ann",
    }
    assert header(first, "ce_decision") == b"1/2"
    assert (first.key, first.partition) == (b"b", partition_of(b"b", PARTITIONS))


def test_a_record_that_ends_a_forgotten_transaction_is_no_command(bench: CommandBench) -> None:
    """What ends a transaction that a broker forgot is one."""
    none = RawRecord("baskets.commands", 0, 7, b"@", b"{}", NO_INPUT)
    assert bench.processor.process([none]).counts == {}
    assert bench.processor.process([none._replace(headers=())]).counts == {"dead": 1}


def test_nothing_has_happened_until_a_batch_is_committed(bench: CommandBench) -> None:
    record = bench.record(add())
    discarded, again = bench.processor.process([record]), bench.processor.process([record])
    assert discarded.events == again.events
    assert headers(again.events, "ce_sequence") == [b"1"]
    assert bench.state("b").version == 0
    bench.processor.commit(again, {})
    assert bench.state("b").version == 1


def test_the_latest_state_of_each_touched_stream_is_written_once(bench: CommandBench) -> None:
    batch = bench.send(add("a"), add("b"), add("a"), CheckOut(basket_id="a"))
    assert sorted(state.key or b"" for state in batch.states) == [b"a", b"b"]
    assert {state.key: json.loads(state.value or b"")["version"] for state in batch.states} == {b"a": 3, b"b": 1}


def test_a_duplicate_writes_nothing_and_is_answered_as_before(bench: CommandBench) -> None:
    record = bench.record(add(product="twice"), "c1")
    bench.run(record)
    bench.send(add())
    batch = bench.run(record)
    assert (batch.events, batch.states, batch.dead) == ([], [], [])
    ((to, id_, _, version, events, error, _),) = batch.replies
    assert (to, id_, version, events, error) == (b"replies/0", b"c1", 2, 2, None)
    assert batch.counts == {"duplicates": 1}


def test_a_rejection_and_a_conflict_are_remembered_in_the_state(bench: CommandBench) -> None:
    dear = bench.record(add(price=Decimal(500)), "c1")
    late = bench.record(add(), "c2", headers={"expected_version": b"7"})
    batch = bench.run(dear, late)
    (state,) = batch.states
    assert [entry[0] for entry in json.loads(state.value or b"")["answered"]] == ["c1", "c2"]
    assert batch.counts == {"rejected": 2}
    assert not batch.events
    again = bench.run(dear, late)
    assert [reply.error and reply.error["error"] for reply in again.replies] == ["TooDear", "ConflictError"]
    assert again.states == []


def test_a_failed_decision_is_answered_counted_and_not_remembered(bench: CommandBench) -> None:
    record = bench.record(add(product="crash"), "c1")
    batch = bench.run(record)
    assert (batch.states, batch.dead, batch.counts) == ([], [], {"failed": 1})
    assert batch.replies[0].error is not None
    assert batch.replies[0].error["error"] == "DecisionFailed"
    assert bench.run(bench.record(add(), "c1")).counts == {"accepted": 1}


def test_an_unreadable_command_is_dead_lettered_with_its_original_bytes(bench: CommandBench) -> None:
    broken = bench.record(add(), "c1", headers={"x-own": b"\xff"})._replace(value=b"\xff{", offset=41)
    batch = bench.run(broken, bench.record(add("other")))
    (dead,) = batch.dead
    assert (dead.partition, dead.key, dead.value) == (broken.partition, b"b", b"\xff{")
    assert list(dead.headers)[: len(broken.headers)] == list(broken.headers)
    assert header(dead, "dead_source") == b"baskets.commands/%d/41" % broken.partition
    assert b"no baskets.Add.v1" in header(dead, "dead_reason")
    refusal, other = batch.replies
    assert refusal.error is not None
    assert (refusal.command_id, refusal.error["error"], other.error) == (b"c1", "ContractError", None)
    assert batch.counts == {"dead": 1, "accepted": 1}


@pytest.mark.parametrize("key", [None, b"", b"@", b"\xff\xfe", b"x" * 70_000, b"b"])
def test_a_command_with_a_broken_key_or_on_the_wrong_partition_is_dead_lettered(
    bench: CommandBench, key: bytes | None
) -> None:
    record = bench.record(add())
    batch = bench.run(record._replace(key=key, partition=(record.partition + (key == b"b")) % PARTITIONS))
    assert (batch.counts, batch.events, batch.dead[0].key) == ({"dead": 1}, [], key)
    assert key != b"b" or b"belongs to partition" in header(batch.dead[0], "dead_reason")


def test_an_id_used_twice_with_two_bodies_is_dead_lettered(bench: CommandBench) -> None:
    batch = bench.run(bench.record(add(), "c1"), bench.record(add(product="q"), "c1"))
    assert batch.counts == {"accepted": 1, "dead": 1}
    assert b"belongs to another command" in header(batch.dead[0], "dead_reason")


def test_an_event_too_heavy_for_a_record_is_refused_and_the_rest_flows() -> None:
    bench = CommandBench(max_bytes=5_000)
    heavy = add(product="p" * 4_000)
    batch = bench.send(heavy, add())
    assert batch.counts == {"dead": 1, "accepted": 1}
    assert headers(batch.events, "ce_sequence") == [b"1"]
    assert header(batch.dead[0], "dead_reference") == b"true"
    assert batch.dead[0].value is None


def test_a_state_grown_too_heavy_refuses_the_command_that_made_it_so() -> None:
    bench = CommandBench(max_bytes=5_000)
    batch = bench.send(
        *(add(product=f"{n}" * 100) for n in range(1, 9)), add("other"), *(add(product=f"{n}" * 900) for n in range(3))
    )
    for state in batch.states:
        assert len(state.value or b"") <= 5_000 - 2048
    assert batch.counts["dead"] >= 1
    assert batch.counts["accepted"] + batch.counts["dead"] == 12
    assert bench.state("other").version == 1
    assert bench.state("b").version == batch.counts["accepted"] - 1
    assert any(b"the state would be too large" in header(dead, "dead_reason") for dead in batch.dead)


def test_a_long_key_counts_three_times_in_what_a_record_weighs() -> None:
    bench = CommandBench(max_bytes=10_000)
    batch = bench.send(*(add("k" * count, product="p" * 1_000) for count in (2_400, 2_000)))
    assert batch.counts == {"dead": 1, "accepted": 1}
    (event,) = batch.events
    size = len(event.key or b"") + len(event.value or b"") + sum(len(n) + len(v) for n, v in event.headers)
    assert 3 * 2_000 + 1_000 < size <= 10_000 - 2048


def test_a_command_without_a_return_address_is_decided_and_not_answered(bench: CommandBench) -> None:
    batch = bench.run(bench.record(add(), headers={"reply_to": ...}))
    assert (len(batch.events), batch.replies) == (1, [])


def test_a_dropped_partition_forgets_and_a_held_one_restores_from_its_records(bench: CommandBench) -> None:
    bench.send(add())
    partition = partition_of(b"b", PARTITIONS)
    store = bench.processor.held[partition].store
    bench.processor.drop(partition)
    bench.processor.hold(partition, store, end=5)
    assert (bench.state("b").version, bench.processor.held[partition].end) == (1, 5)
    bench.processor.hold(partition, {}, end=0)
    assert bench.state("b").version == 0


def test_a_client_command_behind_its_deadline_is_refused_and_not_remembered(bench: CommandBench) -> None:
    deadline = {"deadline": b"%d" % (1000 * bench.now)}
    bench.now += 0.001
    late = bench.run(bench.record(add(), "c1", headers=deadline))
    (reply,) = late.replies
    error = to_error(reply.error or {}, Add)
    assert isinstance(error, OutcomeUnknown)
    assert error.command_id == "c1"
    assert "behind its deadline" in str(error)
    assert (late.events, late.states, late.dead, late.counts) == ([], [], [], {"late": 1})
    assert bench.run(bench.record(add(), "c1")).counts == {"accepted": 1}, "sent again, it is decided"
    assert bench.run(bench.record(add(), "c1", headers=deadline)).counts == {"duplicates": 1}, "its answer is known"


@pytest.mark.parametrize(("dated", "decided"), [(True, "late"), (False, "accepted")])
def test_an_original_behind_its_forgotten_repeat_is_refused(bench: CommandBench, dated: bool, decided: str) -> None:
    """The twin has no deadline, as from an older client: it is decided a second time."""
    sent = dict([deadline_header(bench.now)]) if dated else {}
    bench.run(bench.record(add(), "pay-1"))
    bench.now += KEEP_SECONDS
    bench.run(*(bench.record(add()) for _ in range(KEEP)))
    bench.now += 1
    bench.send(add())
    assert "pay-1" not in bench.state("b").answered
    assert bench.run(bench.record(add(), "pay-1", headers=sent)).counts == {decided: 1}


def test_delivery_ends_well_within_what_is_remembered() -> None:
    assert DELIVERY_SECONDS * 2 <= KEEP_SECONDS


def test_a_pause_of_the_worker_does_not_shorten_the_answered_window(bench: CommandBench) -> None:
    """Whenever it takes them: commands that the broker appended within a minute know each other."""
    bench.run(bench.record(add(), "first"))
    bench.now += KEEP_SECONDS
    others = [bench.record(add()) for _ in range(3 * KEEP)]
    again = bench.record(add(), "first")
    bench.now += 3600
    assert bench.run(*others, again).counts == {"accepted": 3 * KEEP, "duplicates": 1}


@pytest.mark.parametrize(
    ("knows_the_time", "counts"), [(True, {"accepted": 67, "duplicates": 1}), (False, {"accepted": 68})]
)
def test_what_was_repeated_for_longer_than_the_window_while_no_worker_ran_is_decided_once(
    bench: CommandBench, knows_the_time: bool, counts: dict[str, int]
) -> None:
    """An outage of workers; the twin counts an answer as given when its command was appended, long before it was."""
    backlog = [bench.record(add(), "first")]
    for _ in range(2):
        bench.now += KEEP_SECONDS
        backlog += [bench.record(add()) for _ in range(KEEP + 1)]
    backlog.append(bench.record(add(), "first"))
    bench.now += KEEP_SECONDS
    bench.clock = bench.now if knows_the_time else 0.0
    assert bench.run(*backlog).counts == counts


def test_streams_that_do_not_stay_decoded_forget_answers_like_others(
    bench: CommandBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_processor, "_RECENT", 2)
    ids = [id_ for id_ in map("b{}".format, range(100)) if partition_of(id_.encode(), PARTITIONS) == 0][:3]
    for pause in (1, 3600):
        for _ in range(40):
            bench.now += pause
            for id_ in ids:
                bench.send(add(id_))
        kept = {len(bench.state(id_).answered) for id_ in ids}
        assert kept == {40} if pause == 1 else max(kept) <= KEEP + 1


def test_ends_of_events_are_what_the_commit_says(bench: CommandBench) -> None:
    batch = bench.processor.process([bench.record(add())])
    bench.processor.commit(batch, {partition_of(b"b", PARTITIONS): 12, 99: 1})
    assert bench.processor.held[partition_of(b"b", PARTITIONS)].end == 12


@pytest.mark.parametrize("max_bytes", [1_000_000, 20_000])
def test_long_rejections_are_dropped_from_a_state_before_another_command_is_refused(max_bytes: int) -> None:
    bench = CommandBench(max_bytes=max_bytes)
    dear = Decimal("9" * 600)
    batches = [bench.send(*[add(price=dear) for _ in range(50)]) for _ in range(16)]
    assert sum(batch.counts["rejected"] for batch in batches) == 800
    last = bench.send(*[add() for _ in range(60)])
    assert last.counts["accepted"] == 60
    assert not any(batch.dead for batch in [*batches, last])
    weights = [len(state.value or b"") for batch in [*batches, last] for state in batch.states]
    assert max(weights) < min(max_bytes, KEEP_BYTES + 10_000)
    kept = len(bench.state("b").answered)
    assert sum(sum(batch.answers_dropped.values()) for batch in [*batches, last]) >= 860 - kept - KEEP > 0


def test_a_state_that_is_too_heavy_by_itself_is_refused_and_the_answers_stay() -> None:
    bench = CommandBench(max_bytes=10_000)
    bench.send(add(price=Decimal(500)), add())
    batch = bench.send(*[add(product="p" * 3_000) for _ in range(4)])
    assert (batch.counts["accepted"], batch.counts["dead"]) == (2, 2)
    assert list(bench.state("b").answered)[-2:] == ["c3", "c4"]


def test_exceptions_of_a_decider_are_noted_once_per_kind_with_their_traceback(bench: CommandBench) -> None:
    batch = bench.send(*[add(product="crash") for _ in range(1000)], add(product="undeclared"), add())
    assert sorted(failure.times for failure in batch.failures.values()) == [1, 1000]
    most = max(batch.failures.values(), key=lambda failure: failure.times)
    assert "Traceback (most recent call last)" in most.trace
    assert "in decide" in most.trace
    assert most.why == (batch.replies[0].error or {})["message"]
