"""The console of a running App: pages about its members as a simulated user sees them, and all pages in a browser.

The tests share one kiosk, and some change it: those that count what is in it come first, and those that add events or
generations last.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from nicegui import ui
from nicegui.testing import User
from nicegui.testing.user_interaction import UserInteraction
from selenium.webdriver.common.keys import Keys

from leftfold.redis import RedisSettings, RedisViewStore
from leftfold.redis.connection.server import open_server
from leftfold.runtime.operations.dead_letters import AllDeadLetters, group_hash
from leftfold.runtime.operations.generations import generation_meant, parked_rows, rebuild_locally
from leftfold.runtime.operations.reactions import parked_events
from leftfold.runtime.operations.sizes import sampled_bytes
from leftfold.runtime.operations.topics import topic_rows
from tests.cli.shell import Typed, running
from tests.free_ports import free_port
from tests.http.console.accessibility import violations
from tests.http.console.browser import NARROW, WIDE, Window
from tests.http.console.conftest import SPEC, Kiosk
from tests.http.console.kiosk import Place, app, spend, summary
from tests.http.console.visits import RETRIES, console_with, shown, visited
from tests.waiting import wait_until

pytestmark = pytest.mark.servers

PICTURES = {"overview", "stream", "view"}
"""Pages with a picture in the documents: pytest tests/http/console/test_on_servers.py --pictures docs/pictures"""
_LOADED = "return performance.timeOrigin"
PAGES = {
    "overview": ("/", ("customer_spend", "leftfold dead list orders", "order_summary")),
    "stream": ("/streams?category=orders&key=o-1", ("3 of 3", "newspaper", "Trace this event")),
    "streams": ("/streams?category=orders", ("The last events of orders", "o-nobox")),
    "trace": ("/trace", ("Id of a command",)),
    "views": ("/views", ("customer_spend", "needs attention")),
    "view": ("/views/order_summary", ("1-", "an odd product has no summary", "Compare two generations", "o-10")),
    "row": ("/views/customer_spend?key=c-1", ("How c-1 came to be", "fold to the row that is stored")),
    "dead": ("/dead", ("1 letter", "nobox has no letter box", "an odd product has no summary")),
    "processes": ("/processes", ("reminders", "due", "Fire")),
    "instance": ("/processes?name=reminders&key=o-3", ("State of o-3", "inputs taken")),
    "workers": ("/workers", ("Projectors of views", "order_summary", "orders.commands 0–1", "MiB", "reminders.router")),
    "topics": ("/topics", ("orders.events", "for ever", "is set as a new one", "replicas", "kafka-log-dirs")),
    "sql": ("/sql", ("Run query",)),
    "contracts": ("/contracts", ("orders.Placed.v1", "process reminders", "NotPlaced")),
}


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
        await user.should_see("about", retries=RETRIES)
        await user.should_see(f'title="{checksum}">{checksum[:8]}<', retries=RETRIES)

    with console_with(kiosk.servers) as console:
        visited(console, visit)


def test_instances_of_a_process_are_counted_by_state_and_each_can_be_traced(kiosk: Kiosk) -> None:
    def timers() -> list[tuple[int, float, float]]:
        """How many there are, and the seconds by which the process is behind."""
        rows = kiosk.shell("status", "--app", SPEC, "--json").rows()
        return [(row["timers"], row["unrouted"], row["untaken"]) for row in rows if row["kind"] == "process"]

    wait_until(lambda: timers() == [(23, 0.0, 0.0)], lambda: f"the timers of orders that are not paid: {timers()}")

    async def visit(user: User) -> None:
        await user.open("/processes?name=reminders")
        await user.should_see("waiting for a timer", retries=RETRIES)
        text = shown(user)
        counts = dict(re.findall(r"lf-badge ?\">([a-z ]+)</span></span></td><td[^>]*><span>(\d+)<", text))
        assert counts == {"waiting for a timer": "23", "finished": "4"}
        assert re.search(r'key=o-5">o-5</a> <a href="/trace\?id=[^"]+"', text)
        # A finished instance has neither a timer nor a command: its input names what is traced.
        await user.open("/processes?name=reminders&key=o-0")
        await user.should_see("State of o-0", retries=RETRIES)
        assert re.search(r'key=o-0">o-0</a> <a href="/trace\?id=[^"]+"', shown(user))

    with console_with(kiosk.servers) as console:
        visited(console, visit)


def test_a_parked_event_is_shown_with_its_payload_and_a_group_of_letters_with_its_name(kiosk: Kiosk) -> None:
    wait_until(lambda: parked_events("receipts", kiosk.servers.kafka), "the parked event")
    (event,) = parked_events("receipts", kiosk.servers.kafka, 1)
    assert event["value"]["customer"] == "nobox"
    wait_until(lambda: kiosk.shell("dead", "list", "orders", "--json").rows(), "the dead letter")
    (letter,) = kiosk.shell("dead", "list", "orders", "--json").rows()

    async def visit(user: User) -> None:
        await user.open("/dead")
        await user.should_see("payload", retries=RETRIES)
        await user.should_see('"customer": "nobox"')
        await user.should_see(letter["group"])

    with console_with(kiosk.servers) as console:
        visited(console, visit)
    one, other = "o-1 is not '3' but 17", "o-1 is not '4' but 18"
    assert group_hash(one) == group_hash(other) != group_hash("another reason")
    assert re.fullmatch("[0-9a-f]{8}", group_hash(one))


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
    results = list[Typed]()

    def are_processes_well() -> bool:
        results.append(kiosk.shell("doctor", "--app", SPEC, "--json"))
        return all(row["well"] for row in results[-1].rows() if row["about"] == "processes")

    wait_until(are_processes_well, lambda: results[-1].out)
    result = results[-1]
    found = {row["about"]: row for row in result.rows()}
    assert result.code == 1
    for about, problems in expected.items():
        assert not found[about]["well"]
        for problem in problems:
            assert result.out.count(problem) == found[about]["message"].count(problem) == 1, problem
    assert found["processes"]["well"], found["processes"]


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_accessible_fits_a_phone_and_asks_no_other_host(
    name: str, window: Window, pytestconfig: pytest.Config
) -> None:
    path, awaited = PAGES[name]
    window.resize(WIDE)
    window.open(path, awaited[0])
    window.wait_text(*awaited)
    assert violations(window.browser) == []
    if (place := pytestconfig.getoption("--pictures", None)) is not None and name in PICTURES:
        window.picture(Path(place) / f"console-{name}.png")
    window.resize(NARROW, dark=True)
    assert window.width() <= NARROW[0]
    assert violations(window.browser) == []
    assert window.errors() == []
    assert window.foreign_hosts() == set()


def test_a_stream_is_travelled_with_the_keyboard_alone(window: Window) -> None:
    window.resize(WIDE)
    window.open("/streams?category=orders&key=o-1", "3 of 3")
    window.browser.execute_script("document.querySelector('.q-slider__track-container').focus()")
    window.browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    window.wait_text("2 of 3")
    assert "version=2" in window.browser.current_url
    window.press("Trace this event through all services")
    window.wait_text("orders.commands[", "orders.events[")
    nodes = "return [...document.querySelectorAll('svg.lf-graph .lf-node title')].map((one) => one.textContent)"
    drawn = ["Place, command of orders, o-1", "Placed, event of orders, o-1", "Placed, reminders, o-1"]
    assert window.browser.execute_script(nodes) == drawn
    assert len(window.browser.find_elements("css selector", "svg.lf-graph .lf-edge")) == 2
    assert violations(window.browser) == []


def test_the_first_tab_skips_the_links_and_a_chosen_theme_stays(window: Window) -> None:
    window.resize(WIDE)
    window.open("/contracts", "orders.Placed.v1")
    window.browser.switch_to.active_element.send_keys(Keys.TAB)
    assert window.browser.switch_to.active_element.text == "Skip to main content"
    window.press("Dark or light")
    wait_until(lambda: window.browser.get_cookie("leftfold-theme"), "a cookie with the theme")
    window.open("/contracts", "orders.Placed.v1")
    wait_until(lambda: "body--dark" in window.classes(), "the dark theme")
    window.browser.delete_all_cookies()


def test_a_view_is_rebuilt_and_promoted_by_clicks(window: Window) -> None:
    window.resize(WIDE)
    window.open("/views/customer_spend", "1-")
    window.press("Rebuild and hold")
    window.wait_text("Readers do not see it until it is promoted", "leftfold rebuild customer_spend --engine local")
    assert violations(window.browser) == []
    window.press("Rebuild customer_spend")
    window.wait_text("held")
    window.press("Compare")
    window.wait_text("have the same rows")
    window.press("Promote")
    window.wait_text("leftfold promote customer_spend")
    window.press("Promote customer_spend")
    window.wait_text("Readers see 2-", "kept")
    window.press("Dismiss Promote customer_spend")
    assert window.errors() == []


def test_parked_rows_are_read_page_by_page(kiosk: Kiosk) -> None:
    servers = kiosk.servers.kafka, kiosk.servers.redis, None

    def page(begin: int) -> tuple[list[str], int]:
        found = parked_rows(summary, servers, begin, 1)
        return [row.key for row in found.rows], found.total

    wait_until(lambda: page(0)[1] == 2, lambda: f"two parked rows, not {page(0)}")
    assert [page(begin) for begin in (0, 1, 2)] == [(["o-odd"], 2), (["o-odd-2"], 2), ([], 2)]


def test_topics_with_fewer_replicas_than_new_ones_would_have_are_named(
    kiosk: Kiosk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> set[tuple[int, tuple[tuple[str, str, str], ...]]]:
        return {(row.replicas, row.differences) for row in topic_rows([app], kiosk.servers.kafka)[0]}

    listed = kiosk.shell("topics", "list", "--app", SPEC, "--json").ok().rows()
    assert {(row["replicas"], row["wanted_replicas"]) for row in listed} == {(1, 1)}
    assert found() == {(1, ())}
    monkeypatch.setenv("LEFTFOLD_KAFKA_REPLICATION_FACTOR", "3")
    assert found() == {(1, (("replicas", "1", "3"),))}


def test_a_dead_letter_is_corrected_and_resent_and_who_did_so_is_kept(window: Window, kiosk: Kiosk) -> None:
    window.resize(WIDE)
    (letter,) = AllDeadLetters(kiosk.servers.kafka).letters("orders")
    window.open(f"/dead?letter={quote(str(letter.place))}", "Input should be a valid decimal")
    payload = window.field("Payload").get_attribute("value") or ""
    window.type("Payload", payload.replace('"two"', '"2.25"'))
    window.wait_text("This is a orders.Place.v1")
    window.press("Resend")
    window.wait_text("with the corrected payload", "leftfold dead resend")
    window.press(f"Resend {letter.place}")
    window.wait_text("why? Type a reason")
    assert violations(window.browser) == []
    window.type("Who does this", "anna")
    window.type("Why; it is kept in the log", "the price was a word")
    window.press(f"Resend {letter.place}")
    window.wait_text("anna: the price was a word", "sent again")
    (now,) = AllDeadLetters(kiosk.servers.kafka).letters("orders")
    assert (now.handled, now.why) == ("sent again", "anna: the price was a word")
    window.open("/streams?category=orders&key=o-dead", "1 of 1")
    window.wait_text("2.25")
    assert window.errors() == []


def test_an_open_page_comes_back_after_the_console_was_started_again(window: Window, kiosk: Kiosk) -> None:
    window.resize(WIDE)
    window.open("/views", "customer_spend")
    before = window.browser.execute_script(_LOADED)
    kiosk.restart()
    wait_until(
        lambda: window.browser.execute_script("return performance.timeOrigin") != before, "a page that is loaded again"
    )
    window.wait_text("customer_spend", "order_summary")


def test_a_query_is_completed_by_keys_and_by_clicks(window: Window) -> None:
    window.resize(WIDE)
    window.open("/sql", "Run query")
    window.type("Query", "SELECT 'é😀', cust FROM Pa")
    window.button("Paid")
    assert violations(window.browser) == []
    window.browser.switch_to.active_element.send_keys(Keys.TAB)
    window.browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait_until(lambda: window.field("Query").get_attribute("value") == "SELECT 'é😀', cust FROM Paid", "the table")
    window.browser.switch_to.active_element.send_keys(*[Keys.ARROW_LEFT] * len(" FROM Paid"))
    window.press("customer")
    wait_until(lambda: window.field("Query").get_attribute("value") == "SELECT 'é😀', customer FROM Paid", "the column")
    window.browser.switch_to.active_element.send_keys("x")
    window.press("Run query")
    wait_until(lambda: quote(", customerx FROM").replace("%20", "+") in window.browser.current_url, "the query")


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
            await user.should_see("records/batch", retries=RETRIES)

        visited(console, visit)


def test_a_rebuild_that_is_held_names_the_held_generation_that_it_removes_and_removes_no_other(kiosk: Kiosk) -> None:
    servers = kiosk.servers.kafka, kiosk.servers.redis, None

    def hold() -> str:
        return rebuild_locally(app, spend, servers, hold=True, keep=0.0, report=lambda progress: None).generation

    first = hold()

    async def visit(user: User) -> None:
        await user.open(f"/views/{spend.name}")
        await user.should_see("Rebuild and hold", retries=RETRIES)
        user.find("Rebuild and hold").click()
        await user.should_see("Readers do not see it until it is promoted.", retries=RETRIES)
        await user.should_see(f"It replaces the held generation {first}, which is removed.")
        second = await asyncio.to_thread(hold)
        buttons = user.find(kind=ui.button).elements
        confirm = {one for one in buttons if one.props.get("aria-label") == f"Rebuild {spend.name}"}
        UserInteraction(user, confirm, None).click()
        await user.should_see(f"is {second} by now, which was not named", retries=RETRIES)
        assert generation_meant(app, spend.name, "held", servers) == second

    with console_with(kiosk.servers) as console:
        visited(console, visit)


@pytest.mark.faults
def test_a_query_is_answered_on_spark_in_an_accessible_grid(window: Window) -> None:
    window.resize(WIDE)
    query = quote("SELECT _type, count(*) AS events FROM orders GROUP BY _type")
    window.open(f"/sql?q={query}", "Run query")
    window.wait_text("Placed.v1", "rows", "Download as CSV")
    assert violations(window.browser) == []
    window.button("Chart").send_keys(Keys.ENTER)
    drawn = "return document.querySelector('[aria-label=\"Chart of events by _type\"] svg')?.textContent ?? ''"
    wait_until(lambda: "Paid.v1" in window.browser.execute_script(drawn), "the chart")
    assert violations(window.browser) == []
    window.resize(NARROW, dark=True)
    assert window.width() <= NARROW[0]
    assert violations(window.browser) == []
    assert window.errors() == []
    window.open(f"/sql?q={quote('DROP TABLE orders')}", "only questions are answered here")
    assert window.foreign_hosts() == set()


@pytest.mark.faults
def test_the_console_beside_the_gateway_is_live_in_a_browser(window: Window, kiosk: Kiosk) -> None:
    port = free_port()
    with running(kiosk.shell, "serve", "--app", SPEC, "--console", "--port", str(port)) as process:
        kiosk.shell.wait_until(process, lambda said: f":{port}" in said)
        beside = Window(window.browser, f"http://127.0.0.1:{port}/console")
        beside.open("/views", "customer_spend")
        beside.wait_text("fine", "reads only")
        beside.browser.find_element("link text", "customer_spend").click()
        beside.wait_text("Compare two generations")
        assert beside.browser.current_url == f"http://127.0.0.1:{port}/console/views/customer_spend"
        assert "Rebuild" not in beside.text()
        assert beside.errors() == []
