"""What `leftfold status` and `doctor` say of a process that is well, and of one that is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from leftfold.cli.health.doctor import look_for_open
from leftfold.engine.processing.log_time import SourceTime, Watermark
from leftfold.errors import InfrastructureError
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.ports.outgoing import Outgoing
from leftfold.runtime.operations import components as process_survey
from tests.cli.shell import Typing
from tests.domains.trade import Place, Placed, Reserved, app, checkout
from tests.planted import as_written
from tests.process.trading import Trading
from tests.waiting import WAIT_SECONDS, wait_until

pytestmark = pytest.mark.servers

Telling = Callable[[], tuple[dict[str, Any], str]]


@pytest.fixture
def reported(typed: Typing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Telling:
    """What status says of the process, and what it remarks."""
    monkeypatch.chdir(tmp_path)

    def tell() -> tuple[dict[str, Any], str]:
        said = typed("status", "--app", "tests.domains.trade:app", "--json")
        return next(row for row in said.rows() if row["kind"] == "process"), said.err

    return tell


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is not done at once is late, and checkpoints count though they are from later than the broker's time."""
    monkeypatch.setattr(process_survey, "FAR", 0.0)
    monkeypatch.setattr(Watermark, "until", lambda checkpoint, now: checkpoint)


@pytest.fixture(scope="module")
def waiting(settings: KafkaSettings) -> None:
    """One order has been placed, whose process waits for its timer."""
    with Trading(settings) as trading:
        trading.client.send(Place(order="o", product="p", at=datetime.now(UTC)), timeout=240.0)
        trading.await_event("stock", Reserved(product="p", order="o"))


@pytest.fixture(scope="module")
def overdue(settings: KafkaSettings, waiting: None) -> None:
    """The time of that timer has come, as a router says."""
    later = datetime.now(UTC) + timedelta(hours=2)
    sources = {
        f"{names.events(category)}/{p}": SourceTime(later, later)
        for category in checkout.categories
        for p in range(app.partitions)
    }
    write_record(settings, names.time("checkout"), Outgoing(0, None, Watermark(sources).encode(), []))


@pytest.mark.usefixtures("waiting")
def test_a_process_that_is_well_has_nothing_left_to_do(settings: KafkaSettings, reported: Telling) -> None:
    with Trading(settings):

        def is_idle() -> bool:
            row, _ = reported()
            return (row["unrouted"], row["untaken"], row["timers"]) == (0.0, 0.0, 1)

        wait_until(is_idle, lambda: f"nothing to do: {reported()}")
        row, said = reported()
        assert (row["workers"], row["routers"], row["overdue"], row["dead"]) == (1, 1, 0, 0)
        assert "process checkout" not in said
        write_record(settings, "checkout.commands", broken())
        wait_until(lambda: reported()[0]["dead"] == 1, lambda: f"a dead letter: {reported()}")
        assert re.search(
            r"process checkout: 1 dead letter, the last one .* ago: header 'origin' is missing", reported()[1]
        )
        assert "see: leftfold log trace broken" in reported()[1]


def broken() -> Outgoing:
    """An input that no worker can take."""
    headers = [("ce_id", b"broken"), ("ce_type", b"orders.Placed.v1"), ("ce_time", b"2026-01-01T00:00:00Z")]
    return Outgoing(0, b"o", b"{}", headers)


def event() -> Outgoing:
    """An event that concerns the process."""
    placed = Placed(order="late", product="p", at=datetime(2026, 1, 1, tzinfo=UTC))
    return as_written(placed, app.partitions)


@pytest.mark.usefixtures("impatient")
def test_what_routers_and_workers_have_not_done_is_named(settings: KafkaSettings, reported: Telling) -> None:
    """Runs behind the one in which they worked: now none does."""
    row, said = reported()
    assert (row["workers"], row["routers"], row["unrouted"], row["untaken"]) == (0, 0, 0.0, 0.0)
    assert "process checkout has no workers; start: leftfold run checkout" in said
    write_record(settings, names.events("orders"), event())
    write_record(settings, names.commands("checkout"), broken())
    row, said = reported()
    assert row["unrouted"] > 0
    assert row["untaken"] > 0
    assert "its routers have not routed an event that was written" in said
    assert "its workers have not taken an input that was written" in said


@pytest.mark.usefixtures("impatient", "overdue")
def test_a_timer_whose_time_has_come_and_that_is_still_set_is_overdue(reported: Telling, typed: Typing) -> None:
    wait_until(lambda: reported()[0]["overdue"] == 1, lambda: f"an overdue timer: {reported()}")
    assert "process checkout: 1 timer overdue, first patience of o, due " in reported()[1]
    assert "leftfold timers list checkout" in reported()[1]
    doctor = typed("doctor", "--app", "tests.domains.trade:app", "--json")
    found = {row["about"]: row for row in doctor.rows()}
    assert (doctor.code, found["processes"]["well"], found["transactions"]["well"]) == (1, False, True)
    assert "has no routers" in found["processes"]["message"]
    assert "1 timer overdue" in found["processes"]["message"]
    assert "1 process" in found["app"]["message"]


def test_a_transaction_that_stays_open_is_found_where_it_is(settings: KafkaSettings) -> None:
    producer = Producer({**settings.librdkafka(), "transactional.id": "forgotten"})
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    producer.produce("checkout.commands", b"{}", b"o", 2)
    producer.flush(240.0)
    with pytest.raises(InfrastructureError, match=r"open for 1 s at checkout\.commands\[2\]@\d+, .*--partition 2"):
        look_for_open(app, settings, 1.0)
    producer.abort_transaction(WAIT_SECONDS)
    assert look_for_open(app, settings, 60.0).startswith("none stays open in 1")
