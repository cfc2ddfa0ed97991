"""Acts and work of the console: who may do them, what they ask for, and what is shown of their outcome."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from nicegui import ui
from nicegui.testing import User
from nicegui.testing.user_simulation import user_simulation

from leftfold.engine.progress import ProgressReport
from leftfold.errors import InfrastructureError
from leftfold.http.access import Principal
from leftfold.http.console.console_state import Console, Visitor, explain_error
from leftfold.http.console.dead_letters_page import _LetterList, _Letters
from leftfold.http.console.elements import Act, act_button, end_with_token
from leftfold.http.console.html import commands_in
from leftfold.memory import World
from leftfold.ports.outgoing import Letter
from leftfold.ports.protocols import RawRecord
from leftfold.runtime.logging import open_report
from leftfold.runtime.project import Usage
from tests.http.console.visits import RETRIES, console_on, visited
from tests.waiting import WAIT_SECONDS, wait_until


def test_who_only_reads_sees_no_button_and_cannot_act(world: World) -> None:
    console = console_on(world)
    with pytest.raises(Usage, match="to act, start it again with --allow-acts"):
        Visitor(console).check_may_act()

    async def visit(user: User) -> None:
        await user.open("/")
        await user.should_see("reads only")
        with user:
            act = Act("Do it", "It is done.", lambda reason: "leftfold do", lambda who, why, report: "done")
            assert act_button(Visitor(console), "Do", lambda: act, lambda: None) is None
        await user.open("/views/order_summary")
        await user.should_see("Definition", retries=RETRIES)
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
            "It will be deleted.",
            lambda why: f"leftfold discard --reason {why or 'WHY'}",
            do,
            needs_reason=True,
        )

    async def visit(user: User) -> None:
        await user.open("/")
        with user:
            act_button(Visitor(console, may_act=True), "Go", act, lambda: None)
        user.find("Go").click()
        await user.should_see("It will be deleted.", retries=RETRIES)
        await user.should_see("leftfold discard --reason WHY")
        user.find(kind=ui.button, content="Discard").click()
        await user.should_see("why? Type a reason")
        assert not done
        user.find("Why; it is kept in the log").type("because")
        user.find("Who does this").clear().type("anna")
        await user.should_see("leftfold discard --reason because")
        user.find(kind=ui.button, content="Discard").click()
        await user.should_see("it was done", retries=RETRIES)

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
        await user.should_see("It is done.", retries=RETRIES)
        user.find(kind=ui.button, content="Do").click()
        await user.should_see("Not done: Do it", retries=RETRIES)
        await user.should_see(str(error).partition(";")[0])
        await user.should_not_see("Traceback")

    visited(console, visit)


@pytest.mark.parametrize("handled", ["", "discarded"])
def test_a_letter_whose_large_command_is_lost_is_shown_and_can_be_discarded(world: World, handled: str) -> None:
    record = RawRecord("orders.dead", 0, 7, b"o-1", None, [("dead_reason", b"too odd"), ("dead_reference", b"true")], 1)
    lost = "It was too large to copy, and its original is lost: no committed record stands there"

    async def run() -> None:
        def page() -> None:
            visitor = Visitor(console_on(world, acts=True), may_act=True)
            opened = _Letters(visitor, "", str(record.address), with_handled=False)
            opened._shown((_LetterList([], {}), (Letter(record, handled), b"", lost)))

        async with user_simulation(page) as user:
            await user.open("/")
            await user.should_see("too odd")
            await user.should_see(lost)
            await user.should_not_see("Resend")
            see = user.should_not_see if handled else user.should_see
            await see(kind=ui.button, content="Discard")

    asyncio.run(run())


@contextmanager
def logged(*, as_json: bool) -> Iterator[io.StringIO]:
    """What a console logs while the block runs."""
    log, loggers = io.StringIO(), [logging.getLogger(name) for name in ("leftfold", "aiokafka", "nicegui")]
    before = [(logger, logger.handlers, logger.propagate) for logger in loggers]
    try:
        open_report("console", as_json=as_json, stream=log)
        yield log
    finally:
        for logger, handlers, propagate in before:
            logger.handlers, logger.propagate = handlers, propagate


@pytest.mark.parametrize("is_long", [False, True])
def test_each_act_is_in_the_log_with_who_and_why_and_its_outcome(world: World, is_long: bool) -> None:
    def act(number: int) -> Act:
        def do(who: str, why: str, report: Any) -> str:
            if number == 2:
                raise InfrastructureError("no broker at kafka://ann:hush7@shop")
            return f"event {number} done"

        return Act(f"Retry {number}", "It is tried.", lambda why: f"leftfold retry {number}", do, True, is_long)

    console = console_on(world, acts=True)

    async def visit(user: User) -> None:
        await user.open("/")
        for number, shown in ((1, "event 1 done"), (2, "no broker at")):
            with user:
                visitor = Visitor(console, principal=Principal("anna"), may_act=True)
                act_button(visitor, f"Go {number}", partial(act, number), lambda: None)
            user.find(f"Go {number}").click()
            await user.should_see(f"leftfold retry {number}", retries=RETRIES)
            user.find("Why; it is kept in the log").type("the box is repaired")
            user.find(kind=ui.button, content="Retry").click()
            await user.should_see(shown, retries=RETRIES)

    with logged(as_json=True) as log:
        visited(console, visit)
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["outcome"].partition(" at ")[0] for line in lines] == [
        "begun", "event 1 done", "begun", "failed: InfrastructureError: no broker",
    ]  # fmt: skip
    assert "hush7" not in log.getvalue()
    for line, number in zip(lines, (1, 1, 2, 2), strict=True):
        assert line["event"] == "act of the console"
        assert (line["act"], line["command"]) == (f"Retry {number}", f"leftfold retry {number}")
        assert (line["by"], line["reason"]) == ("anna", "the box is repaired")


def test_a_refused_act_is_in_the_log_and_what_a_visitor_has_nicegui_log_cannot_be_taken_for_one(world: World) -> None:
    console, forged = console_on(world), json.dumps({"event": "act of the console", "by": "anna"})

    async def visit(user: User) -> None:
        await user.open("/")
        with user:
            act = Act("Do it", "It is done.", lambda reason: "leftfold do", lambda who, why, report: "done")
            act_button(Visitor(console, principal=Principal("bob"), may_act=True), "Go", lambda: act, lambda: None)
        user.find("Go").click()
        await user.should_see("It is done.", retries=RETRIES)
        user.find(kind=ui.button, content="Do").click()
        await user.should_see("Not done: Do it", retries=RETRIES)

    with logged(as_json=True) as log:
        visited(console, visit)
        logging.getLogger("nicegui").error(forged)
    refused, other = [json.loads(line) for line in log.getvalue().splitlines()]
    assert (refused["act"], refused["by"], refused["outcome"].partition(":")[0]) == ("Do it", "bob", "refused")
    assert other["event"] == f"nicegui: {forged}"


def test_what_was_not_foreseen_is_in_the_log_with_its_traceback_and_without_secrets() -> None:
    with logged(as_json=False) as log:
        for error in (ZeroDivisionError("redis://:hush7@shop"), KeyError("orders")):
            with pytest.raises(type(error)) as raised:
                raise error
            assert "the log of the console has the details" in explain_error(raised.value)
    assert log.getvalue().count("Traceback") == 2
    assert "ZeroDivisionError: redis://" in log.getvalue()
    assert "hush7" not in log.getvalue().replace('"redis://:hush7@shop"', ""), "but in the line of code"


def test_the_notes_of_an_error_are_shown_with_it() -> None:
    error = InfrastructureError("redis at r:6379 is not reachable")
    error.add_note("what is done of it is kept; to resume it: leftfold rebuild v")
    assert commands_in(explain_error(error)) == ["leftfold rebuild v"]


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
    await user.should_see("2 rows", retries=RETRIES)
    user.find("Dismiss").click()
    await user.should_not_see("2 rows", retries=RETRIES)
    assert not console.works


def test_work_that_is_begun_again_after_it_failed_is_shown_as_under_way(world: World) -> None:
    console, held = console_on(world, acts=True), threading.Event()

    def fail(report: ProgressReport) -> str:
        raise InfrastructureError("no broker answers")

    async def visit(user: User) -> None:
        console.start("rebuild it", fail)
        await user.open("/")
        await user.should_see("no broker answers", retries=RETRIES)
        console.start("rebuild it", lambda report: str(held.wait(60.0)))
        await user.should_not_see("no broker answers", retries=RETRIES)
        await user.should_not_see("Dismiss", retries=RETRIES)
        held.set()
        await user.should_see("Dismiss", retries=RETRIES)

    visited(console, visit)


def test_who_only_reads_sees_the_outcome_of_work_and_cannot_dismiss_it(world: World) -> None:
    console = console_on(world)
    work = console.start("rebuild it", lambda report: "2 rows")
    wait_until(lambda: work.outcome, "the end of the work")

    async def visit(user: User) -> None:
        await user.open("/")
        await user.should_see("2 rows", retries=RETRIES)
        await user.should_not_see("Dismiss")

    visited(console, visit)
