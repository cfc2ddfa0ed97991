"""`leftfold log skip` as an operator types it, once more after an interruption."""

from __future__ import annotations

from pathlib import Path

import pytest

from leftfold.kafka.administration.dead_letters import DeadLetters, write_record
from leftfold.kafka.administration.topics import ensure
from leftfold.model import keys as names
from leftfold.ports.outgoing import PASSED, dead_letter
from leftfold.ports.protocols import RawRecord
from tests.cli.shell import Shell
from tests.domains.ledger import app
from tests.servers import Addresses, patient

pytestmark = pytest.mark.servers


def test_a_skip_that_was_interrupted_between_two_events_is_typed_again(
    empty_servers: Addresses, tmp_path: Path
) -> None:
    """What is passed over already is left as it is; what no worker stands still at is refused as before."""
    shell, kafka = Shell(tmp_path).at(empty_servers), patient(empty_servers.kafka)
    ensure(app, kafka)
    stopping = [RawRecord(names.events("ledgers"), 0, offset, b"l", b"mine", ()) for offset in (7, 9)]
    for record in stopping:
        write_record(kafka, names.dead("ledgers"), dead_letter(record, "it is no event", 0, 1_000_000))
    first, second = (str(record.address) for record in stopping)
    signed = ("--reason", "ticket 1", "--by", "ann", "--app", "tests.domains.ledger:app")

    def handled() -> list[str]:
        return [letter.handled for letter in DeadLetters("ledgers", kafka).read()]

    shell("log", "skip", "ledgers", first, *signed, "--yes").ok()
    assert handled() == [PASSED, ""]
    other = f"{names.events('ledgers')}[0]@8"
    shell("log", "skip", "ledgers", first, other, *signed, "--yes").ended(2, f"stands still at {other}")
    shell("log", "skip", "ledgers", first, second, *signed, "--yes").ended(0, f"{first} is passed over already")
    assert handled() == [PASSED, PASSED]
    assert "workers of ledgers go on" not in shell("log", "skip", "ledgers", first, second, *signed).ok().err
