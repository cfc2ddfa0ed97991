"""What nobody can decide goes to the dead letters, whole and once, and its neighbours never notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaException

from leftfold.model import keys as names
from leftfold.ports.codec import header
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.operations.cluster_state import ClusterState
from tests.waiting import wait_until
from tests.worker.audit import facts
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.hostile import ACCOUNT, Letter, good, hostile
from tests.worker.raw_headers import produce_with_header
from tests.worker.running import Running
from tests.worker.shop import Haste

pytestmark = pytest.mark.servers

UNANSWERABLE = [
    b"nowhere.replies/0",
    b"%b.replies/99",
    b"%b.events/0",
    b"%b.replies",
    b"%b.replies/",
    b"%b.replies/-1",
    b"%b.replies/\xc2\xb2",
    b"%b.replies/" + b"9" * 900,
    b".replies/0",
    b"/0",
    b"\x00.replies/0",
    b"a\x00b.replies/0",
    b"\xff.replies/0",
    b"a b.replies/0",
    b"../x.replies/0",
    b"x" * 500 + b".replies/0",
]


@pytest.fixture
def bank(broker: Broker) -> Bank:
    return broker.bank()


def test_each_bad_record_becomes_one_dead_letter_and_its_neighbours_flow(broker: Broker, bank: Bank) -> None:
    reply_to = f"{names.replies(bank.name)}/0".encode()
    bad = hostile(bank, reply_to)
    neighbours = [good(bank, f"neighbour-{n}", bank.deposit(ACCOUNT), reply_to) for n in range(len(bad) + 1)]
    _post(broker, bank, [neighbours[0], *(one for pair in zip(bad, neighbours[1:], strict=True) for one in pair)])
    for _ in range(2):
        _decide_all(broker, bank)
    events = facts(broker.records(names.events(bank.name)))
    assert [(fact.command, fact.version) for fact in events] == [(one.name, n + 1) for n, one in enumerate(neighbours)]
    sources = {f"{r.topic}/{r.partition}/{r.offset}": r for r in broker.records(names.commands(bank.name))}
    dead = [(sources[header(r.headers, "dead_source").decode()], r) for r in broker.records(names.dead(bank.name))]
    assert sorted(_case(source) for source, _ in dead) == sorted(one.name for one in bad)
    reasons = {one.name: one.reason for one in bad}
    assert [wrong for source, record in dead if (wrong := _wrong(reasons[_case(source)], source, record))] == []
    answers = {header(r.headers, "ce_causationid"): r.value or b"" for r in broker.records(names.replies(bank.name))}
    asked = {dict(one.headers).get("ce_id") or b"" for one in bad} - {b""}
    assert {id_ for id_, answer in answers.items() if b"ContractError" in answer} == asked
    assert {id_ for id_, answer in answers.items() if b"version" in answer} >= {one.name.encode() for one in neighbours}


def test_an_answer_that_cannot_be_sent_is_counted_and_the_command_decided(broker: Broker, bank: Bank) -> None:
    places = [to.replace(b"%b", bank.name.encode()) for to in UNANSWERABLE]
    _post(broker, bank, [good(bank, f"command-{n}", bank.deposit(ACCOUNT), to) for n, to in enumerate(places)])
    counts = _decide_all(broker, bank)
    assert (counts["accepted"], counts["replies_unanswerable"], counts["aborted"]) == (len(places), len(places), 0)
    assert len(broker.records(names.events(bank.name))) == len(places)


def test_a_header_whose_name_is_no_text_harms_nobody(broker: Broker, bank: Bank) -> None:
    topic, (first, second) = names.commands(bank.name), (good(bank, f"n{n}", bank.deposit(ACCOUNT)) for n in range(2))
    _post(broker, bank, [first])
    produce_with_header(broker.address, topic, first.partition, ACCOUNT.encode(), b"{}", b"\xff\xfe")
    _post(broker, bank, [second])
    assert _decide_all(broker, bank) == {"accepted": 2, "dead": 1}
    (dead,) = broker.records(names.dead(bank.name))
    assert (dead.key, dead.value) == (ACCOUNT.encode(), b"{}")


def test_a_record_too_large_takes_its_transaction_along_when_nobody_weighs_it(broker: Broker, bank: Bank) -> None:
    """The twin: the neighbours of a record that is only found too large by the producer."""
    producer = broker.producer(transactional_id=f"careless.{bank.name}")
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(names.events(bank.name), b"neighbour", partition=0)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        producer.produce(names.events(bank.name), b"x" * 1_100_000, partition=0)
    producer.abort_transaction(SECONDS)
    assert broker.records(names.events(bank.name)) == []


@pytest.mark.parametrize("way", ["room is asked for", "found one by one", "neither"])
def test_a_topic_that_allows_less_than_usual_gets_less_or_stops_everything(
    broker: Broker, bank: Bank, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker refuses a whole batch of records by its weight, though each of them is small enough."""
    broker.alter(names.events(bank.name), max_message_bytes="100000")
    small = [good(bank, f"small-{n}", bank.swell(ACCOUNT, "event", 10_000)) for n in range(30)]
    large = good(bank, "large", bank.swell(ACCOUNT, "event", 150_000))
    _post(broker, bank, [*small, large, good(bank, "last", bank.deposit(ACCOUNT))])
    if way == "room is asked for":
        assert _decide_all(broker, bank) == {"accepted": 31, "dead": 1}
        return
    if way == "neither":
        monkeypatch.setattr("leftfold.kafka.worker.worker.REFUSED", frozenset[int]())
    with Running(bank, broker.address, haste=Haste(asks_room=False)) as running:
        if way == "neither":
            wait_until(lambda: running.worker.counts["aborted"] >= 3, "the same transaction, again and again")
            assert not running.worker.counts["accepted"]
            return
        wait_until(lambda: running.worker.counts["accepted"] == 31, lambda: f"{running.reports}")
        assert running.worker.counts["dead"] == 1
    (dead,) = broker.records(names.dead(bank.name))
    assert b"what it makes cannot be written" in header(dead.headers, "dead_reason")


def test_dead_letters_failures_of_a_decider_and_answers_that_leave_early_are_in_the_log(
    broker: Broker, bank: Bank
) -> None:
    failing = [good(bank, f"failing-{n}", bank.strike(ACCOUNT, "raise")) for n in range(50)]
    bad = hostile(bank, b"")[0]
    _post(broker, bank, [bad, *failing, *(good(bank, f"poor-{n}", bank.withdraw(ACCOUNT)) for n in range(1_100))])
    with Running(bank, broker.address) as running:
        wait_until(lambda: running.going and running.worker.counts["rejected"] == 1_100, lambda: f"{running.reports}")
        assert running.worker.counts["failed"] == 50
        seen = running.worker.counts["answers_dropped"]
        # What a transaction cost stands in the `@` of the next one.
        _one_by_one(broker, bank, running, 10)
    failed, dropped = running.told("decide failed")[0], running.told("answers dropped")[0]
    (dead,) = running.told("dead letters")
    assert bad.reason in dead["why"]
    assert (dead["do"], dead["times"]) == (f"leftfold dead list {bank.name}", 1)
    assert "failed on Strike(" in failed["why"]
    assert failed["exception"].endswith("ValueError: struck\n")
    assert 1 <= failed["times"] <= 50
    assert 1 <= dropped["times"] <= running.worker.counts["answers_dropped"]
    spent, noted = _costs(broker, bank)
    assert 0 < seen <= noted <= running.worker.counts["answers_dropped"]
    assert 10_000 < spent < 200_000, "a hot key's answers are written again with every command"


def test_what_commands_cost_is_little_where_no_key_is_busy(broker: Broker, bank: Bank) -> None:
    with Running(bank, broker.address) as running:
        _one_by_one(broker, bank, running, 10)
    spent, noted = _costs(broker, bank)
    assert 0 < spent < 1_000
    assert noted == 0


def _costs(broker: Broker, bank: Bank) -> tuple[int, int]:
    """The bytes of state per command where that is most, and the answers dropped, as checkpoints have them."""
    checkpoints = ClusterState(broker.settings).checkpoints(bank.state).values()
    assert len(checkpoints) <= PARTITIONS
    return max(one.per_command for one in checkpoints), sum(one.answers_dropped for one in checkpoints)


def _post(broker: Broker, bank: Bank, letters: Iterable[Letter]) -> None:
    """Writes records as they are, each marked with its case."""
    producer = broker.producer(message_max_bytes=2_000_000, linger_ms=0, batch_size=1)
    for one in letters:
        headers: Any = [*one.headers, ("case", one.name.encode())]
        producer.produce(names.commands(bank.name), one.value, one.key, one.partition, headers=headers)
    assert producer.flush(SECONDS) == 0


def _one_by_one(broker: Broker, bank: Bank, running: Running, count: int) -> None:
    for number in range(1, count + 1):
        _post(broker, bank, [good(bank, f"single-{number}", bank.deposit(ACCOUNT))])
        wait_until(partial(_has_accepted, running, number), lambda: f"{running.reports}")


def _has_accepted(running: Running, count: int) -> bool:
    return running.going and running.worker.counts["accepted"] == count


def _decide_all(broker: Broker, bank: Bank) -> Counter[str]:
    """Runs a worker until every command is decided; what it counted."""
    ends = broker.ends(names.commands(bank.name), committed=True)
    with Running(bank, broker.address) as running:
        wait_until(
            lambda: (
                running.failure is not None
                or all(left == ends[p] or not ends[p] for p, (left, _) in broker.left(bank).items())
            ),
            lambda: f"the last command: {running.reports} {running.worker.counts}",
        )
    return running.worker.counts


def _wrong(reason: str, source: RawRecord, dead: RawRecord) -> str:
    """What is wrong with a dead letter, empty when it is as it should be."""
    told = header(dead.headers, "dead_reason").decode()
    if reason not in told:
        return f"{_case(source)}: not {reason!r} but {told!r}"
    if header(dead.headers, "dead_reference"):
        heavy = len(source.key or b"") + len(source.value or b"") > 900_000
        return "" if heavy and dead.value is None else f"{_case(source)}: by reference"
    kept = [one for one in dead.headers if not one[0].startswith("dead_")]
    whole = (dead.key, dead.value, kept) == (source.key, source.value, list(source.headers))
    return "" if whole else f"{_case(source)}: not the original bytes"


def _case(record: RawRecord) -> str:
    return header(record.headers, "case").decode()
