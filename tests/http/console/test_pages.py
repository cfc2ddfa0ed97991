"""Pages as NiceGUI's simulated user sees them, on Apps in memory: what needs neither servers nor a browser."""

from __future__ import annotations

import asyncio
import gc
import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast

import pytest
from nicegui import ui
from nicegui.testing import User
from nicegui.testing.user_interaction import UserInteraction
from nicegui.testing.user_simulation import user_simulation

from leftfold import Command, Decider
from leftfold.engine.causation import TraceStep
from leftfold.errors import ConfigurationError
from leftfold.http.console import streams_page
from leftfold.http.console.application import ROUTES
from leftfold.http.console.console_state import Console, SharedSurvey, SurveyResult, Visitor
from leftfold.http.console.dead_letters_page import _LetterList, _Letters
from leftfold.http.console.elements import fetched
from leftfold.http.stream_routes import StreamHistory
from leftfold.memory import World
from leftfold.model.position import Position, Recorded
from leftfold.ports.outgoing import Letter
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.operations import logged_events
from leftfold.runtime.operations.logged_events import EventLog
from tests.http.calls import StandIn
from tests.http.console.kiosk import NOW, Pay, Place, Reminded, app
from tests.http.console.visits import RETRIES, console_on, shown, visited


def test_a_stream_shows_the_state_before_and_after_each_version(world: World) -> None:
    async def visit(user: User) -> None:
        await user.open("/streams?category=orders&key=o-1")
        await user.should_see("4 of 4", retries=RETRIES)
        await user.should_see('"paid": true')
        user.find(ui.slider).elements.pop().set_value(2)
        await user.should_see("2 of 4")
        await user.should_see("products[1]")
        await user.should_see("The event against the last Placed")

    visited(console_on(world), visit)


def test_a_version_in_the_address_is_opened_and_a_wrong_one_is_bounded(world: World) -> None:
    async def visit(user: User) -> None:
        for version, named in (("2", "2 of 4"), ("99", "4 of 4"), ("x", "4 of 4"), ("0", "1 of 4")):
            await user.open(f"/streams?category=orders&key=o-1&version={version}")
            await user.should_see(named, retries=RETRIES)

    visited(console_on(world), visit)


def test_what_is_not_there_is_named_with_what_to_do(world: World) -> None:
    async def visit(user: User) -> None:
        for path, named in (
            ("/streams?category=orders&key=unknown", "has no stream"),
            ("/streams?category=oders", "did you mean orders"),
            ("/views/spend", "there is no view called"),
            ("/views/customer_spend?key=c-9", "has no row for"),
            ("/trace?id=x", "leftfold console"),
        ):
            await user.open(path)
            await user.should_see(named, retries=RETRIES)
            await user.should_not_see("Traceback")

        missing = await user.http_client.get("/nowhere")
        assert missing.status_code == 404
        assert "is no page of the console" in missing.text

    visited(console_on(world), visit)


def test_rows_are_found_by_key_and_by_index_and_their_text_is_escaped(world: World) -> None:
    async def visit(user: User) -> None:
        await user.open("/views/customer_spend")
        await user.should_see("c &lt;b&gt;2&lt;/b&gt;", retries=RETRIES)
        await user.open("/views/order_summary?key=o-2%2F3")
        await user.should_see("o-2/3", retries=RETRIES)
        await user.open("/views/customer_spend")
        await user.should_see("gold", retries=RETRIES)
        user.find(kind=ui.select).elements.pop().set_value("tier")
        user.find("Value").type("base")
        find(user)
        await user.should_not_see("c-1", retries=RETRIES)
        await user.should_see("c &lt;b&gt;2&lt;/b&gt;", retries=RETRIES)
        user.find("Value").clear().type("1")
        user.find(kind=ui.select).elements.pop().set_value("total")
        find(user)
        await user.should_see("c &lt;b&gt;2&lt;/b&gt;", retries=RETRIES)
        user.find("Value").clear().type("much")
        find(user)
        await user.should_see("is no value of customer_spend.total", retries=RETRIES)

    visited(console_on(world), visit)


def test_a_search_that_finds_very_many_rows_shows_the_first_ones(world: World) -> None:
    keys = [f"m-{n}" for n in range(205)]
    places = [Place(order=key, customer=key, product="tea", price=Decimal(1), at=NOW) for key in keys]
    send_all(world, [*places, *(Pay(order=key) for key in keys)])

    async def visit(user: User) -> None:
        await user.open("/views/customer_spend")
        await user.should_see("Next rows", retries=RETRIES)
        user.find(kind=ui.select).elements.pop().set_value("total")
        user.find("Value").type("1")
        find(user)
        await user.should_see("Only the first 200 rows are shown.", retries=RETRIES)
        await user.should_see("m-0")

    visited(console_on(world), visit)


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.faults)])
def test_very_many_streams_and_rows_are_shown_page_by_page(world: World, count: int) -> None:
    numbers = [f"{n:05}" for n in range(count)]
    last = f"m-{numbers[-1]}"
    send_all(
        world, [Place(order=f"m-{n}", customer=f"c-{n}", product="tea", price=Decimal(1), at=NOW) for n in numbers]
    )

    async def visit(user: User) -> None:
        await user.open("/views/order_summary")
        await user.should_see("Next rows", retries=RETRIES)
        seen = list[str]()
        for _ in range(3):
            keys = keys_shown(user)
            assert len(keys) == 25
            seen += keys
            user.find("Next rows").click()
            await user.should_not_see(f">{keys[0]}<", retries=RETRIES)
            await user.should_see("Next rows", retries=RETRIES)
        assert len(set(seen)) == 75
        user.find("Value").type(last)
        find(user)
        await user.should_see(f"How {last} came to be", retries=RETRIES)
        assert keys_shown(user) == [last]
        await user.open(f"/streams?category=orders&key={last}")
        await user.should_see("1 of 1", retries=RETRIES)

    visited(console_on(world), visit)


def send_all(world: World, commands: Sequence[Command]) -> None:
    """Sends commands of which none is refused."""
    assert not [one for one in world.client.send_many(commands) if isinstance(one, Exception)]


def keys_shown(user: User) -> list[str]:
    """The keys of the rows on a page."""
    return re.findall(r'/views/order_summary\?key=[^"]+">([^<]+)<', shown(user))


@dataclass(frozen=True)
class Counted:
    """A state that knows how often it was folded."""

    number: int = 0


def counting(folded: list[int]) -> Decider[Any, Any, Any]:
    """A decider whose state is the number of its events; what it folds is counted."""

    def count(state: Counted, event: Any) -> Counted:
        folded.append(1)
        return Counted(state.number + 1)

    return Decider(
        "orders", commands=Pay, events=Reminded, state=Counted, initial_state=Counted(), decide=lambda _, state: [],
        evolve=count,
    )  # fmt: skip


def reminders(count: int) -> Iterator[Recorded[Any]]:
    """The events of a stream, one by one."""
    for version in range(1, count + 1):
        yield Recorded(event=Reminded(order="o", customer="c"), key="o", id="id", time=NOW, version=version)


def test_a_long_stream_keeps_few_states_and_folds_the_others_when_they_are_asked_for() -> None:
    folded: list[int] = []
    history = StreamHistory(counting(folded), reminders(20_000), None, 20_000)
    assert len(folded) <= 20_000
    for version in (0, 1, 140, 141, 142, 9_999, 19_999, 20_000):
        folded.clear()
        assert history.state(version) == {"number": version}
        assert len(folded) <= 141
    states = [one for one in gc.get_objects() if isinstance(one, Counted)]
    assert len(states) <= 150


@pytest.mark.parametrize(
    ("around", "first", "last"), [(None, 901, 1000), (1, 1, 100), (500, 451, 550), (999, 901, 1000), (5000, 901, 1000)]
)
def test_of_a_long_stream_a_part_is_kept_with_its_states(around: int | None, first: int, last: int) -> None:
    history = StreamHistory(counting([]), reminders(1000), around, 100)
    assert (history.first, history.last, history.has_later) == (first, last, last < 1000)
    for version in range(first, last + 1):
        assert history.recorded(version).version == version
        assert history.state(version) == {"number": version}
    assert history.state(first - 1) == {"number": first - 1}


def test_a_page_of_a_long_stream_links_to_the_rest_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_page, "_KEPT", 2)

    async def visit(user: User) -> None:
        await user.open("/streams?category=orders&key=o-1&version=2")
        await user.should_see("2 of 3 and later ones", retries=RETRIES)
        await user.should_see("This page holds versions 2 to 3.")
        assert links(user) == {"Earlier ones": "1", "Later ones": "4"}
        await user.open("/streams?category=orders&key=o-1")
        await user.should_see("4 of 4", retries=RETRIES)
        assert links(user) == {"Earlier ones": "2"}

    def links(user: User) -> dict[str, str]:
        found = re.findall(r'version=(\d+)"> (Earlier ones|Later ones)<', shown(user))
        return {name: version for version, name in found}

    visited(console_on(world), visit)


def find(user: User) -> None:
    """Sends the form of the page, as Enter does."""
    found = [one for one in user.find(kind=ui.element).elements if one.tag == "form"]
    UserInteraction(user, {found[0]}, None).trigger("submit.prevent")


def test_contracts_say_who_uses_each_message(world: World) -> None:
    async def visit(user: User) -> None:
        await user.open("/contracts?find=paid")
        await user.should_see("reaction receipts, view order_summary, view customer_spend", retries=RETRIES)
        await user.should_not_see("orders.Remind.v1")

    visited(console_on(world), visit)


def test_every_page_opens_without_servers(world: World) -> None:
    async def visit(user: User) -> None:
        for route, (name, _) in ROUTES.items():
            await user.open(route.replace("{name}", "order_summary"))
            await user.should_see(name or "order_summary", retries=RETRIES)

    visited(console_on(world), visit)


def test_pages_that_ask_together_share_one_survey_and_wait_between_two(unhurried: None) -> None:
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


def test_a_survey_that_fails_as_was_not_foreseen_is_a_problem_with_a_pause_behind_it(unhurried: None) -> None:
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


def test_a_survey_that_began_before_a_change_is_followed_by_another(unhurried: None) -> None:
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
                    await user.should_see(f"waiting for {name}", retries=RETRIES)
                held.set()
                await user.should_see("this is three", retries=RETRIES)

    asyncio.run(run())
    assert read == ["one", "three"]


def test_of_very_many_groups_of_letters_the_largest_are_shown_and_the_others_counted(world: World) -> None:
    def letter(offset: int, reason: int) -> tuple[Letter, str]:
        headers = [("dead_reason", f"reason {reason}".encode())]
        return Letter(RawRecord("orders.dead", 0, offset, b"o", None, headers)), str(reason)

    letters = [letter(number, min(number, 150)) for number in range(153)]

    async def run() -> None:
        def page() -> None:
            page = _Letters(Visitor(console_on(world)), "", "", with_handled=False)
            page._shown((_LetterList(letters, {}), None))

        async with user_simulation(page) as user:
            await user.open("/")
            found = re.findall(r"<p>reason (\d+)</p>", shown(user))
            assert (len(found), "150" in found, found.count("0")) == (100, True, 1)
            await user.should_see("51 more groups with 51 letters")

    asyncio.run(run())


def test_pages_say_what_could_not_be_read_of_a_log(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(EventLog):
        def __init__(self, settings: object, category: str, *, archive: str, warn: Callable[[str], None]) -> None:
            reader, self._topic, self._key, self._floor = world.log_reader(), f"{category}.events", b"", {}
            self._partitions, self._warn = list(range(reader.partitions(self._topic))), warn
            ends = Position({self._topic: dict.fromkeys(self._partitions, 10)})
            self._reader = cast("Any", StandIn(reader, ends=lambda _: ends))

    def trace(*_: object, warn: Callable[[str], None], **__: object) -> list[TraceStep]:
        warn("some of the newest records could not be read")
        return []

    async def visit(user: User) -> None:
        await user.open("/trace?id=x")
        await user.should_see("some of the newest records could not be read", retries=RETRIES)
        await user.open("/streams?category=orders")
        await user.should_see("nothing more can be read before", retries=RETRIES)
        await user.should_see("o-2/3")

    monkeypatch.setattr(logged_events, "_PATIENCE", 0.0)
    monkeypatch.setattr(streams_page, "EventLog", Short)
    monkeypatch.setattr(streams_page, "traced", trace)
    servers = "127.0.0.1:1", "redis://127.0.0.1:1", None
    visited(Console({"kiosk:app": app}, {"kiosk": world}, servers), visit)
