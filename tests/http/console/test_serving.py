"""The console as it is served: alone or beside a gateway, with keys or for this machine alone, and its commands."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import nicegui
import pytest
from fastapi import FastAPI
from nicegui.testing import User
from nicegui.testing.general import nicegui_reset_globals
from starlette.requests import Request

from leftfold import App, memory
from leftfold.cli.main import run
from leftfold.cli.run.serve import _url, command_line
from leftfold.compatibility import Lock
from leftfold.engine.processing.log_time import WatermarkStatus
from leftfold.engine.processing.process_instance import Due, Instance, InstanceCodec, SentCommand
from leftfold.engine.processing.process_wire import ACK, CANCEL, DUE, NACK, due_record
from leftfold.engine.processing.timer_admin import Action, Order, SetTimer, order_record
from leftfold.http import Access, Principal, gateway, hash_of
from leftfold.http.console import Console, mount_console
from leftfold.http.settings import HttpSettings
from leftfold.model.keys import dead
from leftfold.model.position import Position
from leftfold.model.state_codec import Storage
from leftfold.ports.outgoing import Letter
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.operations.dead_letters import checked_value, why_refused
from leftfold.runtime.operations.timers import InstanceTable, keys_by_state
from leftfold.runtime.project import Usage
from tests.cli.shell import parse_words
from tests.domains import trade
from tests.engine.processor_bench import ProcessBench, home
from tests.http.console.kiosk import app
from tests.http.console.visits import RETRIES, shown, visited

Calls = Callable[[httpx.AsyncClient], Awaitable[None]]
KEYS = Access({hash_of("secret"): Principal("anna", frozenset({"operator"})), hash_of("other"): "ben"})


def called(calls: Calls, *, access: Access | None = None, hosts: tuple[str, ...] = (), **rules: Any) -> None:
    """Makes calls to a gateway with the console of the kiosk at /console."""

    async def make() -> None:
        with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC), acts={}) as world, nicegui_reset_globals():
            console = Console({"kiosk:app": app}, {"kiosk": world}, None, **rules)
            api: FastAPI = gateway([(app, world)], access=access)
            mount_console(api, console, "/console", access=access, hosts=hosts)
            async with api.router.lifespan_context(api):
                transport = httpx.ASGITransport(api)
                async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                    await calls(http)

    asyncio.run(make())


def test_the_console_beside_a_gateway_has_links_below_its_path_and_leaves_the_routes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import_module("leftfold.http.gateway"), "_READY_SECONDS", 240.0)

    async def calls(http: httpx.AsyncClient) -> None:
        sent_on = await http.get("/console", headers={"X-Forwarded-Prefix": "/ops/"})
        assert sent_on.headers["location"] == "/ops/console/"
        page = await http.get("/console", follow_redirects=True)
        assert page.status_code == 200
        assert "/console/streams" in page.text
        assert page.headers["x-frame-options"] == "DENY"
        assert (await http.get("/console/views/order_summary")).status_code == 200
        assert (await http.get("/views/order_summary/none")).status_code == 404
        assert (await http.get("/health/ready")).json() == {"status": "ready", "why": []}

    called(calls)


def test_a_gateway_with_keys_asks_a_browser_for_one_before_any_page() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        for wrong in (None, ("x", "wrong"), ("secret", "")):
            refused = await http.get("/console/views", auth=wrong)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Basic ")
            assert "order_summary" not in refused.text
        assert (await http.get("/console/views", headers={"Authorization": "Basic %%%"})).status_code == 401
        assert (await http.get("/console/views", auth=("anybody", "secret"))).status_code == 200
        assert (await http.get("/console/views", headers={"X-API-Key": "secret"})).status_code == 200

    called(calls, access=KEYS)


def test_an_unknown_path_among_the_files_of_pages_is_no_way_around_the_key() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        for path in ("_nicegui/", "_nicegui/x", f"_nicegui/{nicegui.__version__}/x", "_nicegui_ws/x"):
            refused = await http.get(f"/console/{path}")
            assert refused.status_code in (401, 404), path
            assert "client_id" not in refused.text, path
        page = await http.get("/console/views", auth=("x", "secret"))
        files = re.findall(r"/console/_nicegui/[^\"'\s>)]+\.(?:js|css)", page.text)
        assert files
        for file in files:
            assert (await http.get(file)).status_code == 200, file

    called(calls, access=KEYS)


def test_roles_say_who_may_look_and_who_may_act() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        assert "may act" in (await http.get("/console/views", auth=("x", "secret"))).text
        assert (await http.get("/console/views", auth=("x", "other"))).status_code == 403

    called(calls, access=KEYS, may_look=lambda who: "operator" in who.roles, may_act=lambda who: who.name == "anna")

    async def reads(http: httpx.AsyncClient) -> None:
        assert "reads only" in (await http.get("/console/views", auth=("x", "other"))).text

    called(reads, access=KEYS, may_act=lambda who: who.name == "anna")


@pytest.mark.parametrize(
    ("settings", "words", "named"),
    [
        ({}, ["--acts-role", "operator"], "a role needs visitors that say who they are"),
        ({"KEYS": f"anna={hash_of('x')}", "AUTHORIZE": "tests.http.console.kiosk:payer"}, [], "--role ROLE"),
        ({"KEYS": f"anna={hash_of('x')}"}, ["--allow-acts"], "name the role of those who may: --acts-role ROLE"),
        ({}, ["--port", "6000"], "--port 6000: browsers open no page at this port, which another protocol has"),
        ({}, ["--port", "6566"], "which another protocol has; try 6670"),
    ],
)
def test_rules_that_pages_would_not_ask_are_refused(
    settings: dict[str, str], words: list[str], named: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(f"LEFTFOLD_HTTP_{name}", value)
    assert run(["console", "--app", "tests.http.console.kiosk:app", *words]) == 2
    assert named in capsys.readouterr().err
    if settings:
        others = [{"--role": "--console-role"}.get(word, word) for word in words]
        assert run(["serve", "--app", "tests.http.console.kiosk:app", "--console", *others]) == 2
        assert named in capsys.readouterr().err


def test_an_address_that_is_printed_is_one_that_a_browser_opens() -> None:
    assert [_url(host, 8080) for host in ("127.0.0.1", "::1")] == ["http://127.0.0.1:8080", "http://[::1]:8080"]


def test_a_console_of_this_machine_answers_to_its_own_names_only() -> None:
    async def calls(http: httpx.AsyncClient) -> None:
        for host, status in (("localhost:8090", 200), ("[::1]:8090", 200), ("rebound.example:8090", 421), ("", 421)):
            assert (await http.get("/console/", headers={"Host": host})).status_code == status, host

    called(calls, hosts=("localhost", "127.0.0.1", "::1"))


def test_scripts_of_other_sites_get_neither_a_page_nor_its_messages() -> None:
    """Not those either whose pages may call the gateway: they could press the buttons of a console without keys."""

    async def calls(http: httpx.AsyncClient) -> None:
        socket = "/console/_nicegui_ws/socket.io/?EIO=4&transport=polling&implicit_handshake=true&client_id=x"
        for path in ("/console/", "/console/views", socket):
            foreign = await http.get(path, headers={"Origin": "https://shop.example"})
            assert (foreign.status_code, "client_id" in foreign.text) == (403, False), path
            assert (await http.get(path, headers={"Origin": "http://localhost"})).status_code == 200, path

    called(calls)


def test_others_are_not_served_without_keys(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["console"], ["serve", "--console", "--insecure"]):
        assert run([*words, "--app", "tests.http.console.kiosk:app", "--host", "192.0.2.1"]) == 2
        assert "visitors of the console need no credentials: make an API key" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a,b", "a=b", "a:", ":b", " a", "a ", "a:b:c", "a:b,c", "a:b+"])
def test_a_name_that_the_list_of_keys_cannot_hold_gets_no_key(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--new-key", name]) == 2
    assert "names and roles have no comma, = or :" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["shop", "Ann Lee", "ann@example.com:clerk+boss"])
def test_a_key_with_a_name_is_taken_as_it_was_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--new-key", name]) == 0
    printed = capsys.readouterr()
    asked = Request({"type": "http", "headers": [(b"x-api-key", printed.err.split(": ")[-1].strip().encode())]})
    found = asyncio.run(HttpSettings(keys=printed.out.strip()).access().principal(asked))
    assert (found.name, sorted(found.roles)) == (name.partition(":")[0], ["boss", "clerk"] if ":" in name else [])


def letter(value: bytes, key: bytes = b"o-1", type_: bytes = b"orders.Pay.v1", name: str = "orders") -> Letter:
    return Letter(RawRecord(dead(name), 0, 7, key, value, [("ce_type", type_)]))


def test_another_body_of_a_letter_is_checked_against_its_class_and_keeps_its_key() -> None:
    assert checked_value([app], letter(b"?"), '{"order": "o-1"}') == b'{"order": "o-1"}'
    for wrong, named in (
        ('{"order": "o-2"}', "it keeps its key"),
        ('{"order": 1}', "order: Input should be a valid string"),
        ('{"order": "o-1", "more": 1}', "more"),
        ("{", "no orders.Pay.v1"),
    ):
        with pytest.raises(Usage, match=named):
            checked_value([app], letter(b"?"), wrong)
    with pytest.raises(Usage, match="unknown type"):
        checked_value([app], letter(b"?", type_=b"orders.Other.v1"), "{}")
    with pytest.raises(Usage, match="which no App here has"):
        checked_value([app], letter(b"?", name="stock"), "{}")


def test_another_body_of_an_input_names_the_instance_that_correlate_gives_whatever_the_key_of_its_event() -> None:
    reserved = letter(b"?", b"o", b"stock.Reserved.v1", "checkout")
    body = '{"product":"p","order":"o"}'
    assert checked_value([trade.app], reserved, body) == body.encode()
    with pytest.raises(Usage, match=r"is of 'o', and checkout\.correlate is 'other': it keeps its key"):
        checked_value([trade.app], reserved, '{"product":"o","order":"other"}')

    def broken(event: Any) -> str:
        raise KeyError("no such order")

    failing = App("trade", partitions=1, processes=[trade.checkout_with(correlate=broken)])
    with pytest.raises(Usage, match=r"checkout\.correlate failed on it: .*no such order.*Nothing was sent"):
        checked_value([failing], reserved, body)


@pytest.mark.parametrize("type_", [ACK, NACK, DUE])
def test_what_a_process_no_longer_waits_for_is_not_sent_again_and_the_way_out_is_named(type_: bytes) -> None:
    over = why_refused(letter(b"{}", b"o", type_, "checkout"))
    assert "for which checkout no longer waits, so it cannot be sent again" in over
    assert over.endswith(
        ": leftfold send COMMAND JSON, and then: leftfold dead discard 'checkout.dead[0]@7' --reason WHY"
    )


def test_an_event_and_an_order_to_cancel_a_timer_may_be_sent_again() -> None:
    """The instance keeps the timer of an order that was dead-lettered, so the order counts when it is sent again."""
    for type_ in (b"orders.Placed.v1", CANCEL):
        assert why_refused(letter(b"{}", b"o", type_, "checkout")) == ""
    bench = ProcessBench()
    bench.take(bench.event(trade.PLACED, 7))
    (state,) = bench.state().values()
    timer = SetTimer(home(b"o"), "o", "patience", InstanceCodec.timers(state)["patience"])
    order = order_record("trade", "checkout", timer, Order(Action.CANCEL, "ann", "paid in cash", trade.NOW))
    due = due_record("trade", "checkout", "o", "patience", timer.due, timer.partition)
    bench.kill(bench.record(order))
    assert bench.take(bench.record(order)) == {"taken": 1}
    assert not InstanceCodec.has_timers(*bench.state().values())
    other = ProcessBench()
    other.take(other.event(trade.PLACED, 7))
    other.kill(other.record(due))
    assert other.take(other.record(due)) == {"cancelled": 1}, "a due timer that was dead-lettered is over"


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


APPS = {"shop": "a.b:app", "stock": "c.d:app"}
OPTIONS = {"--kafka": "k:9092", "--redis": "REDIS_URL", "--archive": "folder"}


@pytest.mark.parametrize(
    ("words", "ends"),
    [
        (["dead", "discard", "x.dead[0]@1", "--reason", "a b", "--by", "ann"], "--by ann --kafka=k:9092"),
        (["dead", "resend", "x.dead[0]@1", "--new-id", "--body", "{}"], "--body '{}' --app=a.b:app --kafka=k:9092"),
        (["explain", "v", "-5"], "--app=a.b:app --kafka=k:9092 --redis=REDIS_URL --archive=folder -- v -5"),
        (["timers", "fire", "p", "-5", "t", "--reason", "R"], "--reason R --app=a.b:app --kafka=k:9092 -- p -5 t"),
        (["topics", "ensure"], "--app=a.b:app --kafka=k:9092"),
        (["rebuild", "v", "--engine", "local", "--hold"], "--redis=REDIS_URL --archive=folder"),
        (["retry", "--", "v", "--json"], "--archive=folder -- v --json"),
        (
            ["timers", "cancel", "--reason", "R", "--", "p", "--by", "t"],
            "--reason R --app=a.b:app --kafka=k:9092 -- p --by t",
        ),
        (["promote", "v"], "--archive=folder"),
        (["rollback", "v"], "--archive=folder"),
        (["verify", "v", "--deep"], "--archive=folder"),
        (["retry", "v", "k"], "--archive=folder"),
        (["log", "sql", "select 1"], "--app=a.b:app --kafka=k:9092 --archive=folder"),
        (["log", "trace", "id"], "--archive=folder"),
        (["check", "--write"], "--archive=folder"),
        (["console", "--metrics", "127.0.0.1:9464"], "--archive=folder"),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, list) else "",
)
def test_each_line_that_a_page_shows_is_taken_by_the_command_line(words: list[str], ends: str) -> None:
    line = command_line(words, "shop", apps=APPS, options=OPTIONS)
    assert line.endswith(ends)
    parse_words(shlex.split(line)[1:])


def test_the_lock_of_an_app_is_named_with_the_command_that_writes_it(tmp_path: Path) -> None:
    """A command that writes the project's own lock would accept other differences and leave this one."""
    spec, file = "a.b:app", tmp_path / "locks" / "kiosk.lock"
    file.parent.mkdir()
    shell = partial(command_line, apps={"kiosk": spec}, options={})
    seen: list[str] = []

    async def visit(user: User) -> None:
        for text, marker in (
            (None, "There is no lock of kiosk yet"),
            ("{}", "cannot be read"),
            (Lock().to_json(), "decider orders"),
        ):
            if text is not None:
                file.write_text(text, "utf-8")
            await user.open("/contracts")
            await user.should_see(marker, retries=RETRIES)
            seen.append(shown(user))

    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC), acts={}) as world:
        visited(Console({spec: app}, {"kiosk": world}, None, locks={spec: file}, shell=shell), visit)
    assert all(f"leftfold check --write --app={spec}<" in html for html in seen)
    assert not any("check --write<" in html or "leftfold.lock" in html for html in seen)


def test_a_line_about_no_app_names_all_of_them_where_it_can() -> None:
    shown = command_line(["topics", "ensure"], "", apps=APPS, options={})
    assert shown == "leftfold topics ensure --app=a.b:app --app=c.d:app"
