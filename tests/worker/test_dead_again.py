"""`leftfold dead` on a real log: letters are listed by reason, shown, sent again and discarded; none is deleted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from leftfold.cli.main import run
from leftfold.model import keys as names
from leftfold.runtime.operations.dead_letters import AllDeadLetters
from leftfold.runtime.operations.survey import Survey
from leftfold.runtime.project import Usage
from tests.cli.shell import Typed
from tests.waiting import wait_until
from tests.worker.bank import Bank
from tests.worker.broker import SECONDS, Broker
from tests.worker.hostile import ACCOUNT, good
from tests.worker.running import Running

pytestmark = pytest.mark.servers

Typing = Callable[..., Typed]


@pytest.fixture
def typed(broker: Broker, capsys: pytest.CaptureFixture[str]) -> Typing:
    """Types `leftfold dead ...`."""

    def type_(*words: str) -> Typed:
        capsys.readouterr()
        code = run(["dead", *words, "--kafka", broker.address])
        out, err = capsys.readouterr()
        return Typed(code, out, err)

    return type_


def test_letters_are_listed_shown_sent_again_and_discarded(broker: Broker, typed: Typing) -> None:
    bank = broker.bank()
    first, strayed = good(bank, "first", bank.deposit(ACCOUNT)), good(bank, "strayed", bank.deposit("elsewhere", 5))
    home, names_of = strayed.partition, names.dead(bank.name)
    strayed = replace(strayed, partition=(home + 1) % bank.app.partitions)
    broken = replace(good(bank, "broken", bank.deposit(ACCOUNT)), value=b"{}")
    producer = broker.producer()
    for one in (first, strayed, broken):
        producer.produce(names.commands(bank.name), one.value, one.key, one.partition, headers=list(one.headers))
    assert producer.flush(SECONDS) == 0
    with Running(bank, broker.address) as running:
        wait_until(lambda: running.worker.counts["dead"] == 2, "two dead letters")
        listed = typed("list", bank.name)
        assert listed.code == 1
        assert f"{names_of}  1 letter: key 'elsewhere' belongs to partition {home}" in listed.out
        assert _surveyed(broker, bank) == (2, True)
        rows = {row["id"]: row for row in typed("list", bank.name, "--json").rows()}
        assert rows.keys() == {"strayed", "broken"}
        at, hopeless = rows["strayed"]["letter"], rows["broken"]["letter"]
        (shown,) = typed("show", at, "--json").rows()
        assert shown["value"] == json.loads(strayed.value or b"")
        assert shown["headers"]["ce_id"] == "strayed"
        assert f"look at one: leftfold dead show '{names_of}[" in listed.err
        told = typed("show", hopeless).out
        assert f"reason    {rows['broken']['reason']}" in told
        assert re.search(r"^appended  20\d\d-\d\d-\d\dT", told, re.MULTILINE), told
        assert typed("resend", at).code == 2  # it is asked first
        burials = AllDeadLetters(broker.address)
        asked = burials.waiting([bank.name])
        assert burials.still(asked[:1], [bank.name]) == asked[:1]
        again = typed("resend", at, "--reason", "it strayed", "--by", "ann", "--yes")
        assert (again.code, again.out) == (0, f"{at} is sent again under its own id strayed\n")
        wait_until(lambda: running.worker.counts["accepted"] == 2, "the command to be decided")
    assert _commands(broker, bank) == {"first", "strayed"}
    assert typed("discard", hopeless, "--yes").code == 2  # without a reason
    assert typed("discard", bank.name, "--reason", "a test", "--by", "bob", "--yes").code == 0
    assert (typed("list", bank.name).code, typed("list", bank.name).out) == (0, "")
    assert _surveyed(broker, bank) == (0, False)
    handled = {row["id"]: (row["handled"], row["why"]) for row in typed("list", bank.name, "--all", "--json").rows()}
    assert handled == {"strayed": ("sent again", "ann: it strayed"), "broken": ("discarded", "bob: a test")}
    with pytest.raises(Usage, match="was handled meanwhile; nothing was changed"):
        burials.still(asked, [bank.name])
    for words in (("resend", hopeless, "--yes"), ("discard", at, "--reason", "again", "--yes")):
        refused = typed(*words)
        assert refused.code == 2
        assert "already" in refused.err
    assert typed("list", "nope").code == 2
    assert typed("show", f"{names_of}[0]@999").code == 2


def test_letters_that_leave_are_told_of_before_and_counted_behind(broker: Broker, typed: Typing) -> None:
    bank = broker.bank()
    producer, dead = broker.producer(), names.dead(bank.name)
    producer.produce(names.commands(bank.name), b"{}", ACCOUNT.encode(), headers=[("ce_id", b"broken")])
    assert producer.flush(SECONDS) == 0
    with Running(bank, broker.address) as running:
        wait_until(lambda: running.worker.counts["dead"] == 1, "the dead letter")
        survey = Survey(broker.address, None)
        list(survey.deciders(bank.app))
        assert not any("is deleted in" in one for one in survey.problems)
        (row,) = typed("list", bank.name, "--json").rows()
        assert row["leaves"] - row["appended"] == 90 * 86_400_000
        broker.alter(dead, retention_ms=str(86_400_000))
        list(survey.deciders(bank.app))
        assert any(f"{row['letter']} has waited for" in one for one in survey.problems)
        assert "is deleted in 23 h" in survey.problems[-1]
    broker.wipe(dead)
    listed = typed("list", bank.name)
    assert listed.code == 0
    assert re.search(rf"of {bank.name} up to \d older letters are deleted, which are kept for 1 d", listed.err), listed


def _surveyed(broker: Broker, bank: Bank) -> tuple[int, bool]:
    """How many dead letters `leftfold status` shows of the decider, and whether it tells where to look at them."""
    survey = Survey(broker.address, None)
    (row,) = survey.deciders(bank.app)
    return row["dead"], any(f"leftfold dead list {bank.name}" in one for one in survey.problems)


def _commands(broker: Broker, bank: Bank) -> set[str]:
    """The ids of the commands that were decided."""
    return {
        (value or b"").decode()
        for record in broker.records(names.events(bank.name))
        for name, value in record.headers
        if name == "ce_causationid"
    }


@pytest.mark.parametrize("words", ["list", "show", "resend", "discard"])
def test_every_command_has_help_with_examples(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dead", words, "--help"]) == 0
    assert f"Examples:\n    leftfold dead {words} " in capsys.readouterr().out
