"""Values of events that clients may choose: where `correlate` reads one, it stops no router."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

import pytest

from leftfold import App
from leftfold.errors import ContractError
from leftfold.kafka import process_router
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports.message_codec import header
from leftfold.runtime.workers.processors import route_events
from tests.cli.shell import Typing
from tests.domains.trade import Input, app, checkout_with
from tests.process.routing.routers import EVENTS, plant, routed
from tests.reports import Reports
from tests.servers import alter_topic
from tests.settled import committed
from tests.threads import working
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


def product_of(given: Input) -> str | None:
    """What a client of orders may choose freely."""
    return getattr(given, "product", None)


shelves = App(
    "shelves", partitions=4, deciders=app.deciders, processes=[checkout_with(name="shelf", correlate=product_of)]
)


@pytest.fixture(scope="module", autouse=True)
def limited(settings: KafkaSettings) -> None:
    """The topics of the shelves, whose inputs may weigh less than events."""
    ensure(shelves, settings)
    alter_topic(settings, "shelf.commands", {"max.message.bytes": "100000"})


def shelving(settings: KafkaSettings, reports: Reports) -> AbstractContextManager[list[BaseException]]:
    """The router of the shelves as `leftfold run` starts it, what it failed of, and what it has reported."""

    def work(stop: threading.Event) -> None:
        route_events(shelves, "shelf", settings, stop, reports)

    return working(work)


def planted(settings: KafkaSettings, prefix: str) -> set[str]:
    """Four events with hostile values before forty good ones in every partition; the instances of the good ones."""
    hostile = {"empty": "", "reserved": "@", "long": "x" * 25_000, "heavy" * 25_000: "tea"}
    plant(settings, [(f"{prefix}-{key}", product) for key, product in hostile.items()])
    good = [f"{prefix}-{number}" for number in range(40)]
    plant(settings, [(name, name) for name in good])
    return set(good)


def test_values_that_a_client_may_choose_stop_no_router(settings: KafkaSettings, typed: Typing) -> None:
    good, reports = planted(settings, "a"), Reports()
    with shelving(settings, reports) as failures:
        wait_until(lambda: failures or good <= set(routed(settings, "shelf")), lambda: f"what is behind: {reports}")
    assert not failures
    letters = committed(settings, "shelf.dead")
    events = {f"{EVENTS}/{r.partition}/{r.offset}": r for r in committed(settings, EVENTS)}
    found = {header(letter.headers, "dead_source").decode(): letter for letter in letters}
    assert {events[source].key for source in found} == {r.key for r in events.values() if len(r.key or b"") > 4}
    for source, letter in found.items():
        reference, event = header(letter.headers, "dead_reference"), events[source]
        assert (letter.key, letter.value) == ((event.key or b"")[:2000], None if reference else event.value)
    reasons = sorted(header(letter.headers, "dead_reason").decode() for letter in letters)
    assert reasons[:3] == [
        "shelf.correlate gave '', which is no name of an instance",
        "shelf.correlate gave '@', which is no name of an instance",
        "shelf.correlate gave a key of 25,000 bytes; 1,000 are the most",
    ]
    assert reasons[3].endswith(" bytes, and 99,488 are the most in shelf.commands")
    first, *_ = reports.of("event dead-lettered")
    assert (first["process"], first["at"][:14], first["reason"] in reasons) == ("shelf", "orders.events[", True)
    check_shown(typed, found)


def check_shown(typed: Typing, found: dict[str, Any]) -> None:
    """Looks whether an operator finds the letters, and what can be done about them."""
    of = ("--app", f"{__name__}:shelves")
    result = typed("status", "--json", *of)
    assert [row["dead"] for row in result.rows() if row["kind"] == "process"] == [4]
    assert "process shelf: 4 dead letters, the last one " in result.err
    result = typed("dead", "list", "shelf", "--json")
    listed = result.rows()
    assert (result.code, {row["source"] for row in listed}) == (1, set(found))
    place, source = listed[0]["letter"], listed[0]["source"]
    result = typed("dead", "resend", place, "--yes")
    assert result.code == 2
    remedy = f"leftfold dead discard '{place}' --reason WHY"
    assert f"cannot be sent again; note what was done about it: {remedy}" in result.err
    assert "no dead letter waits there" in typed("dead", "resend", "shelf", "--yes").err
    typed("log", "skip", "shelf", source, "--reason", "why", "--yes", *of).ended(2, "go on behind orders.events[")
    assert typed("dead", "discard", place, "--reason", "ticket 4711", "--yes").code == 0
    assert len(typed("dead", "list", "shelf", "--json").rows()) == 3


@pytest.mark.parametrize("what", ["ends", "is refused"])
def test_a_router_without_dead_letters_of_its_own_would_not_go_on(
    settings: KafkaSettings, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends at a name that is none, and one that does not weigh is refused what it writes, again and again."""
    if what == "ends":
        monkeypatch.setattr(process_router, "Unusable", type("Never", (ContractError,), {}))
    else:
        monkeypatch.setattr("leftfold.engine.processing.process_wire._weight", lambda *record: 0)
    good, reports = planted(settings, what[0] * 2), Reports()

    with shelving(settings, reports) as failures:
        wait_until(lambda: failures or too_large(reports), lambda: f"the end: {reports}")
    assert not good <= set(routed(settings, "shelf"))
    if what == "ends":
        assert "cannot be routed to shelf: shelf.correlate gave " in str(failures[0])
    else:
        assert not failures


def too_large(reports: Reports) -> bool:
    """Whether the router, which begins again and again, has said that a record is too large."""
    return any("Message size too large" in one["why"] for one in reports.of("waiting"))
