"""What no worker can decide goes to the dead letters, whole and once; its neighbours flow, and operators see it."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, Producer

from leftfold.engine.processing.process_wire import BARRIER
from leftfold.engine.processing.stream_state import MARK
from leftfold.errors import ContractError, Fenced
from leftfold.kafka.administration import dead_letters
from leftfold.kafka.administration.dead_letters import LetterTransactions
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.operations.cluster_state import ClusterState
from leftfold.runtime.operations.dead_letters import AllDeadLetters
from leftfold.runtime.operations.survey import Survey
from tests.cli.shell import Typing
from tests.hostility import worsened
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.bank import PARTITIONS, Bank
from tests.worker.broker import Broker
from tests.worker.hostile import ACCOUNT, Letter, good, hostile, post
from tests.worker.load import facts
from tests.worker.raw_headers import produce_with_header
from tests.worker.running import Running

pytestmark = pytest.mark.servers

PACKED = ("none", "gzip", "snappy", "lz4", "zstd")
EACH = 300
"""Behind so many records comes a batch that is too large to be unpacked."""
_post = partial(post, apart=True)
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


def test_each_bad_record_becomes_one_dead_letter_and_its_neighbours_flow_though_some_cannot_be_answered(
    broker: Broker, bank: Bank
) -> None:
    reply_to = f"{names.replies(bank.name)}/0".encode()
    bad = hostile(bank, reply_to)
    neighbours = [good(bank, f"neighbour-{n}", bank.deposit(ACCOUNT), reply_to) for n in range(len(bad) + 1)]
    nowhere = [to.replace(b"%b", bank.name.encode()) for to in UNANSWERABLE]
    unheard = [good(bank, f"unheard-{n}", bank.deposit(ACCOUNT), to) for n, to in enumerate(nowhere)]
    among = [one for pair in zip(bad, neighbours[1:], strict=True) for one in pair]
    _post(broker, bank, [neighbours[0], *among, *unheard])
    counts = _decide_all(broker, bank)
    accepted, letters = len(neighbours) + len(unheard), len(bad)
    assert (counts["accepted"], counts["replies_unanswerable"]) == (accepted, len(unheard))
    assert (counts["dead"], counts["aborted"]) == (letters, 0)
    events = facts(broker.records(names.events(bank.name)))
    wanted = [one.name for one in (*neighbours, *unheard)]
    assert [(fact.command, fact.version) for fact in events] == list(zip(wanted, range(1, accepted + 1), strict=True))
    sources = {f"{r.topic}/{r.partition}/{r.offset}": r for r in broker.records(names.commands(bank.name))}
    dead = [(sources[header(r.headers, "dead_source").decode()], r) for r in broker.records(names.dead(bank.name))]
    assert sorted(_case(source) for source, _ in dead) == sorted(one.name for one in bad)
    reasons = {one.name: one.reason for one in bad}
    assert [wrong for source, record in dead if (wrong := _wrong(reasons[_case(source)], source, record))] == []
    answers = {header(r.headers, "ce_causationid"): r.value or b"" for r in broker.records(names.replies(bank.name))}
    asked = {dict(one.headers).get("ce_id") or b"" for one in bad} - {b""}
    assert {id_ for id_, answer in answers.items() if b"ContractError" in answer} == asked
    assert {id_ for id_, answer in answers.items() if b"version" in answer} >= {one.name.encode() for one in neighbours}


def test_a_header_whose_name_is_no_text_harms_no_neighbour(broker: Broker, bank: Bank) -> None:
    topic, (first, second) = names.commands(bank.name), (good(bank, f"n{n}", bank.deposit(ACCOUNT)) for n in range(2))
    _post(broker, bank, [first])
    produce_with_header(broker.address, topic, first.partition, ACCOUNT.encode(), b"{}", b"\xff\xfe")
    _post(broker, bank, [second])
    assert _decide_all(broker, bank) == {"accepted": 2, "dead": 1}
    (dead,) = broker.records(names.dead(bank.name))
    assert (dead.key, dead.value) == (ACCOUNT.encode(), b"{}")


@pytest.mark.parametrize("cases", [600, pytest.param(10_000, marks=pytest.mark.faults)])
def test_whatever_is_written_others_are_served_and_nothing_is_lost(broker: Broker, bank: Bank, cases: int) -> None:
    """A writer of commands that means harm, who packs them in every way."""
    rng, topic = random.Random(15), names.commands(bank.name)
    broker.alter(topic, compression_type="producer")
    reply_to = f"{names.replies(bank.name)}/0".encode()
    mine, taken, bombs = list[str](), 0, 0
    # A broker refuses what is too large for it, and a worker decides no barrier.
    written: list[KafkaError | None] = []
    writers = [broker.producer(message_max_bytes=20_000_000, compression_type=how) for how in PACKED]
    with Running(bank, broker.distant) as running:
        for number in range(cases):
            letter = good(bank, f"case-{number}", bank.deposit(f"account-{number % 20}"), reply_to)
            # How many parts a deposit has is the bank's own loop.
            value = json.dumps({"account": f"account-{number % 20}", "amount": 1}).encode()
            headers = [(name, text or b"") for name, text in letter.headers]
            raw = RawRecord(topic, letter.partition, 0, letter.key, value, headers)
            if number % 100:
                raw = worsened(rng, raw)
            else:
                mine.append(letter.name)
            taken -= raw.key == MARK and header(raw.headers, "ce_type") == BARRIER
            writer, delivered = rng.choice(writers), lambda error, _: written.append(error)
            writer.produce(topic, raw.value, raw.key, raw.partition, headers=list(raw.headers), on_delivery=delivered)
            writer.poll(0)
            if number % EACH == EACH - 1:
                assert [each.flush(WAIT_SECONDS) for each in writers] == [0] * len(writers)
                broker.bomb(topic, rng.randrange(PARTITIONS), records=rng.choice([1, 1, 50]))
                bombs += 1
        assert [each.flush(WAIT_SECONDS) for each in writers] == [0] * len(writers)
        wait_until(lambda: running.going and _decided(broker, bank) >= set(mine), lambda: f"{running.reports[-5:]}")
        _wait_taken(broker, bank, running)
    counts = running.worker.counts
    taken += written.count(None) + bombs
    assert counts["aborted"] == 0
    kinds = ("accepted", "rejected", "duplicates", "late", "failed", "dead")
    assert sum(counts[kind] for kind in kinds) == taken > cases * 0.98
    assert counts["accepted"] > cases / 10
    reasons = [header(record.headers, "dead_reason") for record in broker.records(names.dead(bank.name))]
    assert sum(b"a batch of offsets" in reason for reason in reasons) == bombs
    answers = [header(record.headers, "ce_causationid") for record in broker.records(names.replies(bank.name))]
    assert {answer.decode(errors="replace") for answer in answers} >= set(mine)
    _post(broker, bank, [good(bank, "the next", bank.deposit("account-1"), reply_to)])
    with Running(bank, broker.distant) as running:
        wait_until(
            lambda: running.going and "the next" in _decided(broker, bank), "a successor that reads their states"
        )


@pytest.mark.parametrize("way", ["room is asked for", "found one by one", "neither"])
def test_a_topic_that_allows_less_than_usual_gets_less_or_stops_everything(
    broker: Broker, bank: Bank, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker refuses a whole batch of records by its weight, though each of them is small enough."""
    broker.alter(names.events(bank.name), max_message_bytes="100000")
    small = [good(bank, f"small-{n}", bank.swell(ACCOUNT, "event", 10_000)) for n in range(12)]
    large = good(bank, "large", bank.swell(ACCOUNT, "event", 150_000))
    _post(broker, bank, [*small, large, good(bank, "last", bank.deposit(ACCOUNT))])
    if way == "room is asked for":
        assert _decide_all(broker, bank) == {"accepted": 13, "dead": 1}
        return
    if way == "neither":
        monkeypatch.setattr("leftfold.kafka.worker.worker.REFUSED", frozenset[int]())
    monkeypatch.setattr(KafkaClientSupplier, "room", lambda self, task: 1_000_000)
    with Running(bank, broker.distant) as running:
        if way == "neither":
            wait_until(lambda: running.worker.counts["aborted"] >= 3, "the same transaction, again and again")
            assert not running.worker.counts["accepted"]
            return
        wait_until(lambda: running.worker.counts["accepted"] == 13, lambda: f"{running.reports}")
        assert running.worker.counts["dead"] == 1
    (dead,) = broker.records(names.dead(bank.name))
    assert b"what it makes cannot be written" in header(dead.headers, "dead_reason")


def test_failures_of_a_decider_and_answers_that_leave_early_are_in_the_log_and_the_cost_of_a_busy_key_is_known(
    broker: Broker, bank: Bank
) -> None:
    failing = [good(bank, f"failing-{n}", bank.strike(ACCOUNT, "raise")) for n in range(50)]
    bad = hostile(bank, b"")[0]
    with Running(bank, broker.distant) as running:
        _one_by_one(broker, bank, running, 5)
        spent, noted = _costs(broker, bank)
        assert (0 < spent < 1_000, noted) == (True, 0), "little, where no key is busy"
        _post(
            broker, bank, [bad, *failing, *(good(bank, f"poor-{n}", bank.withdraw(ACCOUNT, 99)) for n in range(1_100))]
        )
        wait_until(lambda: running.going and running.worker.counts["rejected"] == 1_100, lambda: f"{running.reports}")
        assert running.worker.counts["failed"] == 50
        seen = running.worker.counts["answers_dropped"]
        # What a transaction cost stands in the `@` of the next one.
        _one_by_one(broker, bank, running, 10)
    failed, dropped = running.reports.of("decide failed")[0], running.reports.of("answers dropped")[0]
    (dead,) = running.reports.of("dead letters")
    assert bad.reason in dead["why"]
    assert (dead["do"], dead["times"]) == (f"leftfold dead list {bank.name}", 1)
    assert "failed on Strike(" in failed["why"]
    assert failed["exception"].endswith("ValueError: struck\n")
    assert 1 <= failed["times"] <= 50
    assert 1 <= dropped["times"] <= running.worker.counts["answers_dropped"]
    spent, noted = _costs(broker, bank)
    assert 0 < seen <= noted <= running.worker.counts["answers_dropped"]
    assert 10_000 < spent < 200_000, "a hot key's answers are written again with every command"


def test_letters_are_listed_shown_sent_again_and_discarded(broker: Broker, bank: Bank, typed: Typing) -> None:
    first, strayed = good(bank, "first", bank.deposit(ACCOUNT)), _strayed(bank, "elsewhere")
    home, names_of = partition_of(b"elsewhere", bank.app.partitions), names.dead(bank.name)
    broken = replace(good(bank, "broken", bank.deposit(ACCOUNT)), value=b"{}")
    _post(broker, bank, [first, strayed, broken])
    with Running(bank, broker.distant) as running:
        wait_until(lambda: running.worker.counts["dead"] == 2, "two dead letters")
        listed = typed("dead", "list", bank.name)
        assert listed.code == 1
        assert f"{names_of}  1 letter: key 'elsewhere' belongs to partition {home}" in listed.out
        assert _surveyed(broker, bank) == (2, True)
        rows = {row["id"]: row for row in typed("dead", "list", bank.name, "--json").rows()}
        assert rows.keys() == {"strayed", "broken"}
        at, hopeless = rows["strayed"]["letter"], rows["broken"]["letter"]
        (shown,) = typed("dead", "show", at, "--json").rows()
        assert shown["value"] == json.loads(strayed.value or b"")
        assert shown["headers"]["ce_id"] == "strayed"
        assert f"look at one: leftfold dead show '{names_of}[" in listed.err
        result = typed("dead", "show", hopeless).out
        assert f"reason    {rows['broken']['reason']}" in result
        assert re.search(r"^appended  20\d\d-\d\d-\d\dT", result, re.MULTILINE), result
        assert typed("dead", "resend", at).code == 2  # it is asked first
        asked = AllDeadLetters(broker.address).waiting([bank.name])
        assert [list(AllDeadLetters(broker.address).letters(bank.name, most)) for most in (100, 0)] == [asked, []]
        again = typed("dead", "resend", at, "--reason", "it strayed", "--by", "ann", "--yes")
        assert (again.code, again.out) == (0, f"{at} is sent again under its own id strayed\n")
        wait_until(lambda: running.worker.counts["accepted"] == 2, "the command to be decided")
    assert _decided(broker, bank) == {"first", "strayed"}
    assert typed("dead", "discard", hopeless, "--yes").code == 2  # without a reason
    assert typed("dead", "discard", bank.name, "--reason", "a test", "--by", "bob", "--yes").code == 0
    assert (typed("dead", "list", bank.name).code, typed("dead", "list", bank.name).out) == (0, "")
    assert _surveyed(broker, bank) == (0, False)
    handled = {
        row["id"]: (row["handled"], row["why"]) for row in typed("dead", "list", bank.name, "--all", "--json").rows()
    }
    assert handled == {"strayed": ("sent again", "ann: it strayed"), "broken": ("discarded", "bob: a test")}
    with pytest.raises(ContractError, match="already, .*; nothing was changed"):
        next(AllDeadLetters(broker.address).discard(asked, "bob: too late"))
    for words in (("resend", hopeless, "--yes"), ("discard", at, "--reason", "again", "--yes")):
        typed("dead", *words).ended(2, "already")
    assert typed("dead", "list", "nope").code == 2
    assert typed("dead", "show", f"{names_of}[0]@999").code == 2


def _strayed(bank: Bank, account: str = ACCOUNT) -> Letter:
    """A good command in a partition that is not its own."""
    letter = good(bank, "strayed", bank.deposit(account, 5))
    return replace(letter, partition=(letter.partition + 1) % bank.app.partitions)


@contextmanager
def _one_strayed(broker: Broker, bank: Bank) -> Iterator[Running]:
    """A worker that has made a dead letter of such a command."""
    _post(broker, bank, [_strayed(bank)])
    with Running(bank, broker.distant) as running:
        wait_until(lambda: running.worker.counts["dead"] == 1, "the dead letter")
        yield running


@pytest.mark.parametrize("alone", [True, False])
def test_of_two_operators_who_send_a_letter_again_at_once_one_is_refused(
    broker: Broker, bank: Bank, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have read that the letter waits, and both press the button; the twin gives each a transactional id."""
    if not alone:
        monkeypatch.setattr(dead_letters, "Producer", partial(_producer_of_its_own, Producer))
    with _one_strayed(broker, bank) as running:
        letters = AllDeadLetters(broker.address).waiting([bank.name])
        ann, bob = (LetterTransactions(bank.name, broker.settings, letters) for _ in range(2))
        bob.resend(letters[0], "bob: it strayed", id_="of bob")
        if alone:
            with pytest.raises(Fenced, match=f"another operator is at work on {bank.name}.dead"):
                ann.resend(letters[0], "ann: it strayed", id_="of ann")
            with pytest.raises(ContractError, match="is sent again already, bob: it strayed; nothing was changed"):
                LetterTransactions(bank.name, broker.settings, letters)
        else:
            ann.resend(letters[0], "ann: it strayed", id_="of ann")
        wait_until(lambda: running.worker.counts["accepted"] == (1 if alone else 2), "what was sent to be decided")
    assert _decided(broker, bank) == ({"of bob"} if alone else {"of ann", "of bob"})


def test_a_kill_between_what_is_sent_and_its_note_leaves_a_letter_that_waits_and_counts_once(
    broker: Broker, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _one_strayed(broker, bank) as running:
        (letter,) = AllDeadLetters(broker.address).waiting([bank.name])
        killed = LetterTransactions(bank.name, broker.settings, [letter])
        with monkeypatch.context() as patch:
            patch.setattr(dead_letters, "handled_marker", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                killed.resend(letter, "ann: it strayed", id_="first")
        LetterTransactions(bank.name, broker.settings, [letter]).resend(letter, "ann: it strayed", id_="second")
        wait_until(lambda: running.worker.counts["accepted"], "what was sent to be decided")
    assert _decided(broker, bank) == {"second"}


def _interrupted(*_: object) -> Any:
    raise KeyboardInterrupt


def _producer_of_its_own(make: Any, config: dict[str, Any], **more: Any) -> Any:
    return make(config | {"transactional.id": str(uuid4())}, **more)


def test_letters_that_leave_are_reported_before_and_counted_behind(broker: Broker, bank: Bank, typed: Typing) -> None:
    producer, dead = broker.producer(), names.dead(bank.name)
    producer.produce(names.commands(bank.name), b"{}", ACCOUNT.encode(), headers=[("ce_id", b"broken")])
    assert producer.flush(WAIT_SECONDS) == 0
    with Running(bank, broker.distant) as running:
        wait_until(lambda: running.worker.counts["dead"] == 1, "the dead letter")
        survey = Survey(broker.address, None)
        list(survey.deciders(bank.app))
        assert not any("is deleted in" in one for one in survey.problems)
        (row,) = typed("dead", "list", bank.name, "--json").rows()
        assert row["leaves"] - row["appended"] == 90 * 86_400_000
        broker.alter(dead, retention_ms=str(86_400_000))
        list(survey.deciders(bank.app))
        assert any(f"{row['letter']} has waited for" in one for one in survey.problems)
        assert "is deleted in 23 h" in survey.problems[-1]
    broker.wipe(dead)
    listed = typed("dead", "list", bank.name).ok()
    assert re.search(rf"of {bank.name} up to \d older letters are deleted, which are kept for 1 d", listed.err), listed


def _surveyed(broker: Broker, bank: Bank) -> tuple[int, bool]:
    """How many dead letters `leftfold status` shows of the decider, and whether it tells where to look at them."""
    survey = Survey(broker.address, None)
    (row,) = survey.deciders(bank.app)
    return row["dead"], any(f"leftfold dead list {bank.name}" in one for one in survey.problems)


def _decided(broker: Broker, bank: Bank) -> set[str]:
    """The ids of the commands that have events."""
    return {fact.command for fact in facts(broker.records(names.events(bank.name)))}


def _costs(broker: Broker, bank: Bank) -> tuple[int, int]:
    """The bytes of state per command where that is most, and the answers dropped, as checkpoints have them."""
    checkpoints = ClusterState(broker.settings).checkpoints(bank.state).values()
    assert len(checkpoints) <= PARTITIONS
    return max(one.per_command for one in checkpoints), sum(one.answers_dropped for one in checkpoints)


def _one_by_one(broker: Broker, bank: Bank, running: Running, count: int) -> None:
    before = running.worker.counts["accepted"]
    for number in range(before + 1, before + count + 1):
        _post(broker, bank, [good(bank, f"single-{number}", bank.deposit(ACCOUNT))])
        wait_until(partial(_has_accepted, running, number), lambda: f"{running.reports}")


def _has_accepted(running: Running, count: int) -> bool:
    return running.going and running.worker.counts["accepted"] == count


def _decide_all(broker: Broker, bank: Bank) -> Counter[str]:
    """Runs a worker until every command is decided; what it counted."""
    with Running(bank, broker.distant) as running:
        _wait_taken(broker, bank, running)
    return running.worker.counts


def _wait_taken(broker: Broker, bank: Bank, running: Running) -> None:
    """Waits until every command is decided."""
    ends = broker.ends(names.commands(bank.name), committed=True)
    wait_until(
        lambda: running.going and all(left == ends[p] or not ends[p] for p, (left, _) in broker.left(bank).items()),
        lambda: f"the last command: {running.reports[-5:]} {running.worker.counts}",
    )


def _wrong(reason: str, source: RawRecord, dead: RawRecord) -> str:
    """What is wrong with a dead letter, empty when it is as it should be."""
    shown = header(dead.headers, "dead_reason").decode()
    if reason not in shown:
        return f"{_case(source)}: not {reason!r} but {shown!r}"
    if header(dead.headers, "dead_reference"):
        heavy = len(source.key or b"") + len(source.value or b"") > 900_000
        return "" if heavy and dead.value is None else f"{_case(source)}: by reference"
    kept = [one for one in dead.headers if not one[0].startswith("dead_")]
    whole = (dead.key, dead.value, kept) == (source.key, source.value, list(source.headers))
    return "" if whole else f"{_case(source)}: not the original bytes"


def _case(record: RawRecord) -> str:
    return header(record.headers, "case").decode()
