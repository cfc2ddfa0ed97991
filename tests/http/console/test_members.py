"""Pages about members on servers: sizes of views, instances of processes, batches, what is parked or dead."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from nicegui import ui
from nicegui.testing import User
from nicegui.testing.user_interaction import UserInteraction

from leftfold.engine.processing.log_time import WatermarkStatus
from leftfold.engine.processing.process_instance import Due, Instance, InstanceCodec, SentCommand
from leftfold.model.position import Position
from leftfold.model.state_encoding import Storage
from leftfold.ports.protocols import RawRecord
from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.server import open_server
from leftfold.runtime.operations.dead_letters import group_hash
from leftfold.runtime.operations.generations import generation_meant, rebuild_locally
from leftfold.runtime.operations.reactions import parked_events
from leftfold.runtime.operations.sizes import sampled_bytes
from leftfold.runtime.operations.timers import InstanceTable, keys_by_state
from tests.http.console.conftest import SPEC, Kiosk
from tests.http.console.kiosk import Place, app, spend
from tests.http.console.visits import console_with, visited
from tests.waiting import wait_until


def shown(user: User) -> str:
    """All HTML of a page."""
    return "".join(str(one.content) for one in user.find(kind=ui.html).elements if isinstance(one, ui.html))


def test_instances_are_listed_by_what_they_wait_for_and_stuck_ones_come_first() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    due = Due("2026-01-02T00:00:00.000000Z", "orders.Remind.v1", "{}", "c", "i")
    sent = {"k-1": SentCommand("orders.Pay.v1", '{"waiting":{}}')}
    states: dict[str, dict[str, Any]] = {
        "asks": {"waiting": sent}, "asked": {}, "ended": {"finished": True}, "late": {"timers": {"t": due}},
        "sooner": {"timers": {"t": due}}, "both": {"timers": {"t": due}, "waiting": sent},
    }  # fmt: skip
    codec: InstanceCodec[str] = InstanceCodec(Storage(str, "state"), "")

    def record(key: str, fields: dict[str, Any]) -> RawRecord:
        named = {"timers": {}, "waiting": {}} | fields
        return RawRecord("s", 0, 0, key.encode(), codec.encode(Instance(1, '"waiting":{"x"', {}, **named)), ())

    table = InstanceTable(None, "s", Position())
    table._take([record("asked", {"waiting": sent}), record("asks", {"finished": True})])
    table._take([RawRecord("s", 0, 0, key, b'{"version":1,"state":1}', ()) for key in (b"asks", b"other", b"\xff")])
    table._take(record(key, fields) for key, fields in states.items())
    rows = [{"key": timer.key, "due": timer.due.at, "overdue": timer.key == "late"} for timer in table.timers()]
    found = keys_by_state(table, rows, WatermarkStatus(now, "", timedelta(0), (), now))
    assert next(iter(found)) == "stuck: a timer is overdue"
    assert {state: keys for state, keys in found.items() if keys} == {
        "stuck: a timer is overdue": ["late"],
        "waiting for a command": ["asks", "both"],
        "waiting for a timer": ["sooner"],
        "finished": ["ended"],
        "waiting for an event": ["asked"],
    }
    assert table.waiting == {"asks": "k-1", "both": "k-1"}


@pytest.mark.servers
def test_a_view_shows_the_checksum_of_each_generation_and_about_how_much_memory_it_takes(kiosk: Kiosk) -> None:
    settings = RedisSettings(url=kiosk.servers.redis)
    store = RedisViewStore(settings)
    (live,) = (one for one in store.registry(spend.name).generations.values() if one.phase.value == "live")
    wait_until(lambda: sum(one.rows for one in store.checkpoints(live).values()) == 4, "rows of all customers")
    filled = [bucket for bucket, one in store.checkpoints(live).items() if one.rows]
    store.close()
    client = open_server(settings)
    keys = [k for bucket in filled for k in client.scan_iter(f"v:{{{spend.name}:{live.id}:{bucket}}}*")]
    exact = sum(client.memory_usage(key) for key in keys)
    client.close()
    assert sampled_bytes(spend, kiosk.servers.redis)[live.id] == pytest.approx(exact, rel=0.01)
    rows = kiosk.shell("status", "--app", SPEC, "--json").rows()
    (checksum,) = {row["checksum"] for row in rows if row.get("generation") == live.id}

    async def visit(user: User) -> None:
        await user.open(f"/views/{spend.name}")
        await user.should_see("about", retries=100)
        await user.should_see(f'title="{checksum}">{checksum[:8]}<', retries=100)

    with console_with(kiosk.servers) as console:
        visited(console, visit)


@pytest.mark.servers
def test_instances_of_a_process_are_counted_by_state_and_each_can_be_traced(kiosk: Kiosk) -> None:
    def timers() -> list[int]:
        rows = kiosk.shell("status", "--app", SPEC, "--json").rows()
        return [row["timers"] for row in rows if row["kind"] == "process"]

    wait_until(lambda: timers() == [23], lambda: f"the timers of orders that are not paid: {timers()}")

    async def visit(user: User) -> None:
        await user.open("/processes?name=reminders")
        await user.should_see("waiting for a timer", retries=100)
        text = shown(user)
        counts = dict(re.findall(r"lf-badge ?\">([a-z ]+)</span></span></td><td[^>]*><span>(\d+)<", text))
        assert counts == {"waiting for a timer": "23", "finished": "4"}
        assert re.search(r'key=o-5">o-5</a> <a href="/trace\?id=[^"]+"', text)
        # A finished instance has neither a timer nor a command: its input names what is traced.
        await user.open("/processes?name=reminders&key=o-0")
        await user.should_see("State of o-0", retries=100)
        assert re.search(r'key=o-0">o-0</a> <a href="/trace\?id=[^"]+"', shown(user))

    with console_with(kiosk.servers) as console:
        visited(console, visit)


@pytest.mark.servers
def test_batches_since_the_survey_before_are_shown_with_how_much_is_in_them(kiosk: Kiosk) -> None:
    with console_with(kiosk.servers, kiosk.shell._environment["LEFTFOLD_METRICS"]) as console:
        console._look()
        number = 0

        def looked() -> dict[str, Any]:
            nonlocal number
            number += 1
            place = Place(order=f"b-{number}", customer="c-b", product="tea", price=Decimal(1), at=datetime.now(UTC))
            console.connections["kiosk"].client.send(place)
            return next(dict(row) for row in console._look().rates if row["kind"] == "decider")

        wait_until(lambda: (looked()["batches"] or 0) > 0, "batches of the worker")

        async def visit(user: User) -> None:
            await user.open("/workers")
            await user.should_see("records/batch", retries=100)

        visited(console, visit)


@pytest.mark.servers
def test_a_parked_event_is_shown_with_its_payload_and_a_group_of_letters_with_its_name(kiosk: Kiosk) -> None:
    wait_until(lambda: parked_events("receipts", kiosk.servers.kafka), "the parked event")
    (event,) = parked_events("receipts", kiosk.servers.kafka, 1)
    assert event["value"]["customer"] == "nobox"
    (letter,) = kiosk.shell("dead", "list", "orders", "--json").rows()

    async def visit(user: User) -> None:
        await user.open("/dead")
        await user.should_see("payload", retries=100)
        await user.should_see('"customer": "nobox"')
        await user.should_see(letter["group"])

    with console_with(kiosk.servers) as console:
        visited(console, visit)
    one, other = "o-1 is not '3' but 17", "o-1 is not '4' but 18"
    assert group_hash(one) == group_hash(other) != group_hash("another reason")
    assert re.fullmatch("[0-9a-f]{8}", group_hash(one))


@pytest.mark.servers
def test_doctor_names_once_what_status_names(kiosk: Kiosk) -> None:
    expected = {
        "workers": ["decider orders: 1 dead letter, the last one "],
        "reactions": ["reaction receipts has parked 1; "],
        "views": ["view order_summary parks o-odd: ", "view order_summary parks o-odd-2: "],
    }
    wait_until(
        lambda: all(one in kiosk.shell("status", "--app", SPEC).err for ones in expected.values() for one in ones),
        lambda: kiosk.shell("status", "--app", SPEC).err,
    )
    result = kiosk.shell("doctor", "--app", SPEC, "--json")
    found = {row["about"]: row for row in result.rows()}
    assert result.code == 1
    for about, problems in expected.items():
        assert not found[about]["well"]
        for problem in problems:
            assert result.out.count(problem) == found[about]["message"].count(problem) == 1, problem
    assert found["processes"]["well"], found["processes"]


@pytest.mark.servers
def test_a_rebuild_that_is_held_names_the_held_generation_that_it_removes_and_removes_no_other(kiosk: Kiosk) -> None:
    servers = kiosk.servers.kafka, kiosk.servers.redis, None

    def hold() -> str:
        return rebuild_locally(app, spend, servers, hold=True, keep=0.0, report=lambda progress: None).generation

    first = hold()

    async def visit(user: User) -> None:
        await user.open(f"/views/{spend.name}")
        await user.should_see("Rebuild and hold", retries=100)
        user.find("Rebuild and hold").click()
        await user.should_see("Readers do not see it until it is promoted.", retries=100)
        await user.should_see(f"It replaces the held generation {first}, which is removed.")
        second = await asyncio.to_thread(hold)
        buttons = user.find(kind=ui.button).elements
        confirm = {one for one in buttons if one.props.get("aria-label") == f"Rebuild {spend.name}"}
        UserInteraction(user, confirm, None).click()
        await user.should_see(f"is {second} by now, which was not named", retries=100)
        assert generation_meant(app, spend.name, "held", servers) == second

    with console_with(kiosk.servers) as console:
        visited(console, visit)
