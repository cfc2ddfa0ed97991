"""`leftfold log trace` over the topics of several services on a real broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold.kafka import log_reader as reader
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.keys import partition_of
from leftfold.ports.outgoing import Outgoing
from leftfold.ports.protocols import Headers, RawRecord
from tests.cli.shell import Typing
from tests.domains.trade import Confirmed, Dropped, Pay, Place, app
from tests.planted import write
from tests.process.trading import Trading
from tests.settled import committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def traded(settings: KafkaSettings) -> KafkaSettings:
    """An order that was paid for, one that was refused, and a command that no worker can read."""
    now = datetime.now(UTC)
    with Trading(settings) as trading:
        for order in ("paid", "x", "y"):
            trading.client.send(Place(order=order, product="p", at=now), id=f"place-{order}", timeout=240.0)
        wait_until(
            lambda: any(isinstance(event, Dropped) for event in trading.events("orders")),
            lambda: f"one that gets nothing: {trading.events('orders')}",
        )
        plant(settings, "orders.commands", b"broken", b"{}", headers("broken", "orders.Place.v1"))
        reserved = {event.order for event in trading.events("stock") if hasattr(event, "order")}
        order = min(reserved)
        trading.client.send(Pay(order=order), id="pay", timeout=240.0)
        trading.await_event("orders", Confirmed(order=order))
        wait_until(lambda: bool(trading.records("orders.dead")), "the dead letter")
    return settings


def headers(id_: str, type_: str, **more: str) -> list[tuple[str, bytes]]:
    reported = {"ce_id": id_, "ce_type": type_, "ce_time": "2026-01-01T00:00:00Z", "ce_correlationid": id_, **more}
    return [(name, value.encode()) for name, value in reported.items()]


def plant(
    settings: KafkaSettings, topic: str, key: bytes, value: bytes, headers: Headers, *, commit: bool | None = None
) -> None:
    """Writes a record: outside of transactions, or in one that is committed or aborted."""
    write(settings, topic, [Outgoing(partition_of(key, app.partitions), key, value, headers)], commit=commit)


def rows(typed: Typing, id_: str, *words: str) -> list[dict[str, Any]]:
    """What the command prints as JSON."""
    return typed("log", "trace", id_, "--json", *words).ok().rows()


def test_a_trace_names_every_record_of_its_correlation_and_no_other(traded: KafkaSettings, typed: Typing) -> None:
    topics = [f"{category}.{kind}" for category in ("orders", "stock") for kind in ("commands", "events")]
    records = [record for topic in (*topics, "checkout.commands") for record in committed(traded, topic)]
    wanted = {(r.topic, r.partition, r.offset) for r in records if ("ce_correlationid", b"place-paid") in r.headers}
    found = rows(typed, "place-paid")
    assert {(row["topic"], row["partition"], row["offset"]) for row in found} == wanted
    assert [row["id"] for row in found if row["depth"] == 0] == ["place-paid"]
    assert all(row["after"] is not None and row["appended"] for row in found if row["depth"])


def test_what_was_refused_or_could_not_be_read_is_shown_as_such(traded: KafkaSettings, typed: Typing) -> None:
    rejected = [
        row for order in ("paid", "x", "y") for row in rows(typed, f"place-{order}") if row["kind"] == "rejected"
    ]
    assert [row["details"]["message"] for row in rejected] == ["no p left"]
    (dead,) = rows(typed, "broken")[0]["dead"]
    assert dead["topic"] == "orders.commands"
    assert "orders.Place.v1" in dead["reason"]
    assert "dead-lettered at" in typed("log", "trace", "broken").out


def test_a_second_record_of_an_id_is_a_duplicate_and_an_aborted_one_is_not_there(
    traded: KafkaSettings, typed: Typing
) -> None:
    first = next(r for r in committed(traded, "checkout.commands") if ("ce_correlationid", b"pay") in r.headers)
    again(traded, first, commit=False)
    assert not [row for row in rows(typed, "pay") if "duplicates" in row]
    again(traded, first, commit=True)
    (row,) = [row for row in rows(typed, "pay") if "duplicates" in row]
    assert (row["kind"], row["offset"]) == ("input", first.offset)
    assert [place["offset"] > first.offset for place in row["duplicates"]] == [True]


def test_twin_that_reads_what_is_not_committed_shows_what_never_was(
    traded: KafkaSettings, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = reader.reader_config
    monkeypatch.setattr(reader, "reader_config", lambda s: {**real(s), "isolation.level": "read_uncommitted"})
    first = next(r for r in committed(traded, "checkout.commands") if ("ce_correlationid", b"place-x") in r.headers)
    again(traded, first, commit=False)
    assert [row["offset"] for row in rows(typed, "place-x") if "duplicates" in row] == [first.offset]


def again(settings: KafkaSettings, record: RawRecord, *, commit: bool) -> None:
    plant(settings, record.topic, record.key or b"", record.value or b"", record.headers, commit=commit)


def test_the_tree_is_drawn_and_a_cause_that_is_missing_is_said_to_be(traded: KafkaSettings, typed: Typing) -> None:
    cause = {"ce_causationid": "long-lost", "ce_correlationid": "long-lost"}
    plant(traded, "orders.events", b"o", b"{}", headers("orphan", "orders.Confirmed.v1", **cause))
    first, second = typed("log", "trace", "orphan").out.splitlines()
    assert first == "long-lost is not in the log"
    assert second.startswith("└── > event Confirmed o  orders.events[")
    lines = typed("log", "trace", "place-paid").out.splitlines()
    assert lines[0].startswith("> command Place paid  orders.commands[")
    assert any("└── checkout takes Placed paid  checkout.commands[" in line for line in lines)


@pytest.mark.parametrize("since", ["2h", "2026-01-01T00:00:00Z"])
def test_only_what_is_new_enough_is_looked_at(traded: KafkaSettings, typed: Typing, since: str) -> None:
    assert rows(typed, "place-paid", "--since", since)
    future = "2999-01-01T00:00:00Z"
    refused = typed("log", "trace", "place-paid", "--since", future)
    assert refused.code == 2
    reported = refused.err
    assert (
        "no command, event or correlation has the id 'place-paid'; searched 0 records of checkout.commands" in reported
    )
    assert "say a longer --since" in reported.lower()


@pytest.mark.parametrize(("since", "said"), [("soon", "or an age: 12h, 90d"), ("2026-01-01", "no time zone")])
def test_a_time_that_cannot_be_meant_is_refused(typed: Typing, since: str, said: str) -> None:
    typed("log", "trace", "x", "--since", since).ended(2, said)
