"""Pages as NiceGUI's simulated user sees them, on Apps in memory: what needs neither servers nor a browser."""

from __future__ import annotations

import asyncio
import gc
import io
import logging
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from nicegui import ui
from nicegui.testing import User
from nicegui.testing.user_interaction import UserInteraction
from nicegui.testing.user_simulation import user_simulation

from leftfold import Decider, memory
from leftfold.engine.progress import Report
from leftfold.errors import ConfigurationError, InfrastructureError
from leftfold.http.access import Principal
from leftfold.http.console.application import ROUTES, frame
from leftfold.http.console.elements import Act, act_button, end_with_token, fetched
from leftfold.http.console.state import Console, SharedSurvey, SurveyResult, Visitor, explain_error
from leftfold.http.console.streams import StreamHistory
from leftfold.memory import World
from leftfold.model.position import Recorded
from leftfold.runtime.logging import open_report
from leftfold.runtime.project import Usage
from tests.http.console.kiosk import Pay, Place, Reminded, app
from tests.waiting import WAIT_SECONDS, wait_until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Visit = Callable[[User], Awaitable[None]]


@pytest.fixture
def world() -> Iterator[World]:
    with memory(app, now=NOW, acts={}) as made:
        for n, product in enumerate(("tea", "milk", "newspaper")):
            made.client.send(Place(order="o-1", customer="c-1", product=product, price=Decimal(n + 4), at=NOW))
        made.client.send(Pay(order="o-1"))
        made.client.send(Place(order="o-2/3", customer="c <b>2</b>", product="tea", price=Decimal(1), at=NOW))
        made.client.send(Pay(order="o-2/3"))
        yield made


def console_on(world: World, *, acts: bool = False) -> Console:
    """A console of the kiosk in memory."""
    return Console({"kiosk:app": app}, {"kiosk": world}, None, may_act=lambda who: acts)


def visited(console: Console, visit: Visit) -> None:
    """Has a simulated user visit a console."""

    async def run() -> None:
        async with user_simulation(frame(console)) as user:
            await visit(user)

    asyncio.run(run())


def test_a_stream_shows_the_state_before_and_after_each_version(world: World) -> None:
    async def visit(user: User) -> None:
        await user.open("/streams?category=orders&key=o-1")
        await user.should_see("4 of 4", retries=50)
        await user.should_see('"paid": true')
        user.find(ui.slider).elements.pop().set_value(2)
        await user.should_see("2 of 4")
        await user.should_see("products[1]")
        await user.should_see("The event against the last Placed")

    visited(console_on(world), visit)


def test_a_version_in_the_address_is_opened_and_a_wrong_one_is_bounded(world: World) -> None:
    async def visit(user: User) -> None:
        for version, shown in (("2", "2 of 4"), ("99", "4 of 4"), ("x", "4 of 4"), ("0", "1 of 4")):
            await user.open(f"/streams?category=orders&key=o-1&version={version}")
            await user.should_see(shown, retries=50)

    visited(console_on(world), visit)


def test_what_is_not_there_is_named_with_what_to_do(world: World) -> None:
    async def visit(user: User) -> None:
        for path, named in (
            ("/streams?category=orders&key=nobody", "has no stream"),
            ("/streams?category=oders", "did you mean orders"),
            ("/views/spend", "there is no view called"),
            ("/views/customer_spend?key=c-9", "has no row for"),
            ("/trace?id=x", "leftfold console"),
        ):
            await user.open(path)
            await user.should_see(named, retries=50)
            await user.should_not_see("Traceback")

        missing = await user.http_client.get("/nowhere")
        assert missing.status_code == 404
        assert "is no page of the console" in missing.text

    visited(console_on(world), visit)


def test_rows_are_found_by_key_and_by_index_and_their_text_is_escaped(world: World) -> None:
    async def visit(user: User) -> None:
        await user.open("/views/customer_spend")
        await user.should_see("c &lt;b&gt;2&lt;/b&gt;", retries=50)
        await user.open("/views/order_summary?key=o-2%2F3")
        await user.should_see("o-2/3", retries=50)
        await user.open("/views/customer_spend")
        await user.should_see("gold", retries=50)
        user.find(kind=ui.select).elements.pop().set_value("tier")
        user.find("Value").type("base")
        find(user)
        await user.should_not_see("c-1", retries=50)
        await user.should_see("c &lt;b&gt;2&lt;/b&gt;")
        user.find("Value").clear().type("1")
        user.find(kind=ui.select).elements.pop().set_value("total")
        find(user)
        await user.should_see("c &lt;b&gt;2&lt;/b&gt;", retries=50)
        user.find("Value").clear().type("much")
        find(user)
        await user.should_see("is no value of customer_spend.total", retries=50)

    visited(console_on(world), visit)


def test_a_search_that_finds_very_many_rows_shows_the_first_ones(world: World) -> None:
    for n in range(205):
        world.client.send(Place(order=f"m-{n}", customer=f"m-{n}", product="tea", price=Decimal(1), at=NOW))
        world.client.send(Pay(order=f"m-{n}"))

    async def visit(user: User) -> None:
        await user.open("/views/customer_spend")
        await user.should_see("Next rows", retries=50)
        user.find(kind=ui.select).elements.pop().set_value("total")
        user.find("Value").type("1")
        find(user)
        await user.should_see("Only the first 200 rows are shown.", retries=50)
        await user.should_see("m-0")

    visited(console_on(world), visit)


def test_ten_thousand_streams_and_rows_are_shown_page_by_page(world: World) -> None:
    commands = [
        Place(order=f"m-{n:05}", customer=f"c-{n:05}", product="tea", price=Decimal(1), at=NOW) for n in range(10_000)
    ]
    assert not [one for one in world.client.send_many(commands) if isinstance(one, Exception)]

    async def visit(user: User) -> None:
        await user.open("/views/order_summary")
        await user.should_see("Next rows", retries=50)
        seen = list[str]()
        for _ in range(3):
            keys = keys_shown(user)
            assert len(keys) == 25
            seen += keys
            user.find("Next rows").click()
            await user.should_not_see(f">{keys[0]}<", retries=50)
            await user.should_see("Next rows", retries=50)
        assert len(set(seen)) == 75
        await user.open("/streams?category=orders&key=m-09999")
        await user.should_see("1 of 1", retries=50)

    visited(console_on(world), visit)


def keys_shown(user: User) -> list[str]:
    """The keys of the rows on a page."""
    text = "".join(str(one.content) for one in user.find(kind=ui.html).elements if isinstance(one, ui.html))
    return re.findall(r'/views/order_summary\?key=[^"]+">([^<]+)<', text)


@dataclass(frozen=True)
class Counted:
    """A state that knows how often it was folded."""

    number: int = 0


def test_a_stream_of_twenty_thousand_events_keeps_few_states_and_folds_the_others_when_they_are_asked_for() -> None:
    folded: list[int] = []

    def count(state: Counted, event: Any) -> Counted:
        folded.append(1)
        return Counted(state.number + 1)

    counted: Decider[Any, Any, Any] = Decider(
        "orders", commands=Pay, events=Reminded, state=Counted, initial_state=Counted(), decide=lambda _, state: [],
        evolve=count,
    )  # fmt: skip
    event = Recorded(event=Reminded(order="o", customer="c"), key="o", id="id", time=NOW, version=1)
    history = StreamHistory(counted, [event] * 20_000)
    assert len(folded) <= 20_000
    for version in (0, 1, 140, 141, 142, 9_999, 19_999, 20_000):
        folded.clear()
        assert history.state(version) == {"number": version}
        assert len(folded) <= 141
    states = [one for one in gc.get_objects() if isinstance(one, Counted)]
    assert len(states) <= 150


def find(user: User) -> None:
    """Sends the form of the page, as Enter does."""
    found = [one for one in user.find(kind=ui.element).elements if one.tag == "form"]
    UserInteraction(user, {found[0]}, None).trigger("submit.prevent")


def test_contracts_say_who_uses_each_message(world: World) -> None:
    async def visit(user: User) -> None:
        await user.open("/contracts?find=paid")
        await user.should_see("reaction receipts, view order_summary, view customer_spend", retries=50)
        await user.should_not_see("orders.Remind.v1")

    visited(console_on(world), visit)


def test_every_page_opens_without_servers(world: World) -> None:
    async def visit(user: User) -> None:
        for route, (name, _) in ROUTES.items():
            await user.open(route.replace("{name}", "order_summary"))
            await user.should_see(name or "order_summary", retries=50)

    visited(console_on(world), visit)


def test_who_only_reads_sees_no_button_and_cannot_act(world: World) -> None:
    console = console_on(world)
    with pytest.raises(Usage, match="--allow-acts"):
        Visitor(console).check_may_act()

    async def visit(user: User) -> None:
        await user.open("/")
        await user.should_see("reads only")
        with user:
            act = Act("Do it", "It is done.", lambda reason: "leftfold do", lambda who, why, report: "done")
            assert act_button(Visitor(console), "Do", lambda: act, lambda: None) is None
        await user.open("/views/order_summary")
        await user.should_see("Definition", retries=50)
        await user.should_not_see("Rebuild")

    visited(console, visit)


def test_a_page_ends_with_the_token_of_its_visitor(world: World) -> None:
    def token(seconds: float) -> Principal:
        return Principal("anna", claims={"exp": datetime.now(UTC).timestamp() + seconds})

    console = console_on(world, acts=True)
    Visitor(console, principal=token(3600.0)).check_may_act()
    with pytest.raises(Usage, match="the token of anna has expired"):
        Visitor(console, principal=token(-1.0)).check_may_act()

    async def run() -> None:
        ended = asyncio.Event()

        def page() -> None:
            ui.context.client.on_delete(ended.set)
            end_with_token(token(0.0).expires, leeway=0.0)

        async with user_simulation(page) as user:
            await user.open("/")
            await asyncio.wait_for(ended.wait(), WAIT_SECONDS)

    asyncio.run(run())


def test_an_act_asks_names_its_command_and_needs_a_name_and_a_reason(world: World) -> None:
    console, done = console_on(world, acts=True), list[tuple[str, str]]()

    def act() -> Act:
        def do(who: str, why: str, report: Any) -> str:
            done.append((who, why))
            return "it was done"

        return Act(
            "Discard it",
            "It will be gone.",
            lambda why: f"leftfold discard --reason {why or 'WHY'}",
            do,
            needs_reason=True,
        )

    async def visit(user: User) -> None:
        await user.open("/")
        with user:
            act_button(Visitor(console, may_act=True), "Go", act, lambda: None)
        user.find("Go").click()
        await user.should_see("It will be gone.", retries=50)
        await user.should_see("leftfold discard --reason WHY")
        user.find(kind=ui.button, content="Discard").click()
        await user.should_see("why? Type a reason")
        assert not done
        user.find("Why; it is kept with the act").type("because")
        user.find("Who does this").clear().type("anna")
        await user.should_see("leftfold discard --reason because")
        user.find(kind=ui.button, content="Discard").click()
        await user.should_see("it was done", retries=50)

    visited(console, visit)
    assert done == [("anna", "because")]


@pytest.mark.parametrize("error", [InfrastructureError("no broker at x; start it: leftfold up"), RuntimeError("a bug")])
def test_an_act_that_fails_says_why_and_never_shows_a_traceback(world: World, error: Exception) -> None:
    console = console_on(world, acts=True)

    def do(who: str, why: str, report: Any) -> str:
        raise error

    async def visit(user: User) -> None:
        await user.open("/")
        with user:
            act = Act("Do it", "It is done.", lambda reason: "leftfold do", do)
            act_button(Visitor(console, may_act=True), "Go", lambda: act, lambda: None)
        user.find("Go").click()
        await user.should_see("It is done.", retries=50)
        user.find(kind=ui.button, content="Do").click()
        await user.should_see("Not done: Do it", retries=50)
        await user.should_see(str(error).partition(";")[0])
        await user.should_not_see("Traceback")

    visited(console, visit)


def test_what_was_not_foreseen_is_in_the_log_with_its_traceback_and_without_secrets() -> None:
    log, logger = io.StringIO(), logging.getLogger("leftfold")
    before = logger.handlers, logger.propagate
    try:
        open_report("console", as_json=False, stream=log)
        for error in (ZeroDivisionError("redis://:hush7@shop"), KeyError("orders")):
            with pytest.raises(type(error)) as raised:
                raise error
            assert "the log of the console has the details" in explain_error(raised.value)
    finally:
        logger.handlers, logger.propagate = before
    assert log.getvalue().count("Traceback") == 2
    assert "ZeroDivisionError: redis://" in log.getvalue()
    assert "hush7" not in log.getvalue().replace('"redis://:hush7@shop"', ""), "but in the line of code"


def test_long_work_of_a_name_runs_once_and_its_outcome_stays_until_it_is_dismissed(world: World) -> None:
    console = console_on(world, acts=True)
    work = console.start("rebuild it", lambda report: "2 rows")
    wait_until(lambda: work.outcome, "the end of the work")
    held = threading.Event()
    console.start("hold it", lambda report: str(held.wait(60.0)))
    with pytest.raises(Usage, match="hold it is under way"):
        console.start("hold it", lambda report: "")
    held.set()
    wait_until(lambda: console.works["hold it"].outcome, "the end of the other work")
    console.dismiss("hold it")
    visited(console, lambda user: _sees_outcome(user, console))


async def _sees_outcome(user: User, console: Console) -> None:
    await user.open("/")
    await user.should_see("2 rows", retries=50)
    user.find("Dismiss").click()
    await user.should_not_see("2 rows", retries=50)
    assert not console.works


def test_work_that_is_begun_again_after_it_failed_is_shown_as_under_way(world: World) -> None:
    console, held = console_on(world, acts=True), threading.Event()

    def fail(report: Report) -> str:
        raise InfrastructureError("no broker answers")

    async def visit(user: User) -> None:
        console.start("rebuild it", fail)
        await user.open("/")
        await user.should_see("no broker answers", retries=50)
        console.start("rebuild it", lambda report: str(held.wait(60.0)))
        await user.should_not_see("no broker answers", retries=50)
        await user.should_not_see("Dismiss", retries=50)
        held.set()
        await user.should_see("Dismiss", retries=50)

    visited(console, visit)


def test_who_only_reads_sees_the_outcome_of_work_and_cannot_dismiss_it(world: World) -> None:
    console = console_on(world)
    work = console.start("rebuild it", lambda report: "2 rows")
    wait_until(lambda: work.outcome, "the end of the work")

    async def visit(user: User) -> None:
        await user.open("/")
        await user.should_see("2 rows", retries=50)
        await user.should_not_see("Dismiss")

    visited(console, visit)


def test_pages_that_ask_together_share_one_survey_and_wait_between_two() -> None:
    looks: list[int] = []

    def look() -> SurveyResult:
        looks.append(1)
        return SurveyResult((), [f"problem {len(looks)}"], 1.0)

    async def ask() -> None:
        survey = SharedSurvey(look)
        found = await asyncio.gather(*(survey.result() for _ in range(20)))
        assert {one.problems[0] for one in found} == {"problem 1"}
        assert (await survey.result()).problems == ["problem 1"]
        survey.hasten()
        assert (await survey.result()).problems == ["problem 2"]

    asyncio.run(ask())
    assert len(looks) == 2


def test_a_survey_that_fails_is_a_problem_and_not_an_error() -> None:
    def look() -> SurveyResult:
        raise ConfigurationError("no Kafka is configured; leftfold up")

    assert asyncio.run(SharedSurvey(look).result()).problems == ["no Kafka is configured; leftfold up"]


def test_a_survey_that_fails_as_was_not_foreseen_is_a_problem_with_a_pause_behind_it() -> None:
    looks: list[int] = []

    def look() -> SurveyResult:
        looks.append(1)
        raise ZeroDivisionError("division by zero")

    async def ask() -> None:
        survey = SharedSurvey(look)
        for _ in range(3):
            (problem,) = (await survey.result()).problems
            assert problem.startswith("ZeroDivisionError: division by zero. This was not foreseen")

    asyncio.run(ask())
    assert len(looks) == 1


def test_a_survey_that_began_before_a_change_is_followed_by_another() -> None:
    looks: list[int] = []
    begun, held = threading.Event(), threading.Event()

    def look() -> SurveyResult:
        looks.append(1)
        begun.set()
        held.wait(60.0)
        return SurveyResult((), [f"problem {len(looks)}"], 1.0)

    async def ask() -> None:
        survey = SharedSurvey(look)
        first = asyncio.ensure_future(survey.result())
        await asyncio.to_thread(begun.wait, 60.0)
        survey.hasten()
        held.set()
        assert (await first).problems == ["problem 1"]
        assert (await survey.result()).problems == ["problem 2"]
        assert (await survey.result()).problems == ["problem 2"]

    asyncio.run(ask())


def test_of_pages_that_read_on_one_thread_one_that_is_left_is_read_to_its_end_or_not_at_all() -> None:
    read: list[str] = []
    begun, held = threading.Event(), threading.Event()

    def page(name: str, threads: ThreadPoolExecutor) -> Callable[[], Awaitable[object]]:
        def look() -> str:
            read.append(name)
            begun.set()
            held.wait(60.0)
            return f"this is {name}"

        def show(text: str) -> None:
            ui.label(text)

        return lambda: fetched(look, show, what=f"waiting for {name}", threads=threads)

    async def run() -> None:
        with ThreadPoolExecutor(1) as threads:
            pages = {f"/{name}": page(name, threads) for name in ("one", "two", "three")}
            async with user_simulation(lambda: ui.sub_pages(dict(pages))) as user:
                await user.open("/one")
                await asyncio.to_thread(begun.wait, 60.0)
                for name in ("two", "three"):
                    with user:
                        ui.navigate.to(f"/{name}")
                    await user.should_see(f"waiting for {name}", retries=50)
                held.set()
                await user.should_see("this is three", retries=50)

    asyncio.run(run())
    assert read == ["one", "three"]
