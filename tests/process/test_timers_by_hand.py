"""`leftfold timers` on a real broker: fired once, cancelled for good, whatever happens at the same time."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import App
from leftfold.cli.main import run
from leftfold.engine.processing.process_instance import Due, Instance, SentCommand
from leftfold.engine.processing.process_reactor import InputAccepted, InputSkipped, Outcome, Reactor, timer_of
from leftfold.engine.processing.process_wire import CANCEL, DUE, Input, due_record
from leftfold.kafka.administration.dead_letters import write_record
from leftfold.kafka.administration.topics import ensure
from leftfold.kafka.settings import KafkaSettings
from leftfold.ports.codec import header
from leftfold.runtime.operations.timers import TimerWork
from leftfold.runtime.project import Usage
from tests.domains.trade import Dropped, Place, Reserved, app, checkout_with
from tests.process.trading import Trading, committed
from tests.waiting import wait_until

pytestmark = pytest.mark.servers


def in_version(version: int) -> App:
    """The trade with a checkout of another version."""
    return App("trade", partitions=app.partitions, deciders=app.deciders, processes=[checkout_with(version=version)])


newer, third, never = (in_version(number) for number in (2, 3, 9))
Typing = Callable[..., tuple[int, list[dict[str, Any]], str]]
LATE, PATIENTLY = "not paid in time", ("--timeout", "2m")


@pytest.fixture
def typed(settings: KafkaSettings, capsys: pytest.CaptureFixture[str]) -> Typing:
    """Types `leftfold timers ... --json`; exit code, rows and what was said beside them."""

    def type_(*words: str, of: str = "tests.domains.trade:app") -> tuple[int, list[dict[str, Any]], str]:
        capsys.readouterr()
        sure = [] if words[0] == "list" else ["--yes"]
        code = run(["timers", *words, *sure, "--app", of, "--kafka", settings.bootstrap_servers, "--json"])
        out, err = capsys.readouterr()
        return code, [json.loads(line) for line in out.splitlines()], err

    return type_


def place(trading: Trading, *orders: str) -> None:
    """Orders with a timer that is due in an hour."""
    for order in orders:
        trading.client.send(Place(order=order, product=order, at=datetime.now(UTC)), timeout=240.0)
        trading.await_event("stock", Reserved(product=order, order=order))


def drops(trading: Trading, order: str) -> int:
    """How often an order ran out of time."""
    return trading.events("orders").count(Dropped(order=order, why=LATE))


@pytest.fixture(scope="module")
def in_another_version(settings: KafkaSettings) -> str:
    """The App with a newer checkout, which has set one timer, of the order `behind`."""
    ensure(newer, settings)
    with Trading(settings, newer) as trading:
        place(trading, "behind")
    return "tests.process.test_timers_by_hand:newer"


def test_a_timer_is_listed_fired_once_and_cancelled_for_good(
    settings: KafkaSettings, typed: Typing, capsys: pytest.CaptureFixture[str]
) -> None:
    with Trading(settings) as trading:
        place(trading, "early", "kept")
        code, rows, _ = typed("list", "checkout")
        assert code == 0
        mine = [row for row in rows if row["key"] in {"early", "kept"}]
        assert {(row["key"], row["timer"], row["sends"]) for row in mine} == {
            ("early", "patience", "orders.Drop.v1"),
            ("kept", "patience", "orders.Drop.v1"),
        }
        assert [row["command"]["why"] for row in mine] == [LATE, LATE]
        assert not any(row["overdue"] for row in mine)
        assert_set_as_confirmed(settings, "early")
        code, (fired,), _ = typed(
            "fire", "checkout", "early", "patience", "--reason", "a test", "--by", "anna", *PATIENTLY
        )
        assert (code, fired["taken"], fired["actor"], fired["reason"]) == (0, True, "anna", "a test")
        trading.await_event("orders", Dropped(order="early", why=LATE))
        code, (cancelled,), _ = typed("cancel", "checkout", "kept", "patience", "--reason", "a test", *PATIENTLY)
        assert (code, cancelled["taken"], cancelled["topic"]) == (0, True, "checkout.commands")
        assert not {"early", "kept"} & {row["key"] for row in typed("list", "checkout")[1]}
        code, _, err = typed("fire", "checkout", "early", "patience", "--reason", "again")
        assert code == 2
        assert "no timer is set in checkout 'early'" in err
    assert (drops(trading, "early"), drops(trading, "kept")) == (1, 0)
    assert_traced(settings, capsys)


def assert_set_as_confirmed(settings: KafkaSettings, order: str) -> None:
    """An operator who has looked at a timer before it was set again does not fire the other one."""
    with TimerWork(app, app.processes[0], settings.bootstrap_servers, order) as work:
        timer = work.timer(order, "patience")
        work.check_set(timer)
        with pytest.raises(Usage, match="was set again meanwhile"):
            work.check_set(timer._replace(due=timer.due._replace(by="an earlier input")))


def assert_traced(settings: KafkaSettings, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace tells who fired the timer and why."""
    orders = [r for r in committed(settings, "checkout.commands") if header(r.headers, "ce_type") == DUE]
    id_ = next(header(r.headers, "ce_id").decode() for r in orders if r.key == b"early")
    capsys.readouterr()
    assert run(["log", "trace", id_, "--kafka", settings.bootstrap_servers]) == 0
    lines = capsys.readouterr().out.splitlines()
    (fired,) = [number for number, line in enumerate(lines) if "> timer patience fired early" in line]
    assert "by anna: a test" in lines[fired]
    assert "command Drop early" in lines[fired + 1]


def given_twice_while_due(settings: KafkaSettings, typed: Typing, order: str) -> None:
    """Nobody works: the timer is fired by hand twice, cancelled, and its time comes, before anybody takes any of it."""
    told = [typed(action, "checkout", order, "patience", "--reason", "r", "--timeout", "50ms") for action in
            ("fire", "fire", "cancel")]  # fmt: skip
    assert [code for code, _, _ in told] == [4, 4, 4]
    assert "stays in the log and counts once one does" in told[0][2]
    (row,) = typed("list", "checkout", "--key", order)[1]
    set_ = Due(row["due"], row["sends"], json.dumps(row["command"]), row["correlation_id"], row["by"])
    due = due_record("trade", "checkout", order, "patience", set_, row["partition"])
    write_record(settings, "checkout.commands", due)


@pytest.mark.faults
def test_a_timer_that_is_fired_while_it_is_due_fires_once_and_is_not_set_by_newer_code(
    settings: KafkaSettings, typed: Typing
) -> None:
    with Trading(settings) as trading:
        place(trading, "twice", "ended")
    given_twice_while_due(settings, typed, "twice")
    assert typed("cancel", "checkout", "ended", "patience", "--reason", "r", "--timeout", "50ms")[0] == 4
    with Trading(settings) as trading:
        trading.await_event("orders", Dropped(order="twice", why=LATE))
    ensure(newer, settings)
    with Trading(settings, newer) as trading:
        place(trading, "later")
        keys = {row["key"] for row in typed("list", "checkout", of="tests.process.test_timers_by_hand:newer")[1]}
        assert "later" in keys
        assert not {"twice", "ended"} & keys, "they are done with, by their inputs"
        assert (drops(trading, "twice"), drops(trading, "ended")) == (1, 0)


@pytest.mark.faults
def test_without_the_identity_of_a_setting_it_takes_effect_twice(
    settings: KafkaSettings, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trading(settings) as trading:
        place(trading, "careless")
    given_twice_while_due(settings, typed, "careless")

    def careless(self: Reactor, instance: Instance[Any], given: Input) -> Outcome:
        """Believes whoever says that a timer is due, and forgets nothing."""
        name, _ = timer_of(given)
        timer = instance.timers.get(name)
        if timer is None or given.type == CANCEL:
            return InputSkipped("cancelled")
        sent = SentCommand(timer.type, timer.value)
        request = self._request(given, 0, self.commands.decode(timer.type.encode(), timer.value.encode()), sent)
        instance.waiting[request.id] = sent
        return InputAccepted((request,))

    monkeypatch.setattr(Reactor, "_due", careless)
    with Trading(settings) as trading:
        wait_until(lambda: drops(trading, "careless") > 1, lambda: f"more than one drop: {drops(trading, 'careless')}")


def test_code_that_passes_over_orders_would_set_a_cancelled_timer_again(
    settings: KafkaSettings, typed: Typing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the refold: the order must be taken from the inputs again, as it was taken then."""
    with Trading(settings) as trading:
        place(trading, "cancelled")
        told = typed("cancel", "checkout", "cancelled", "patience", "--reason", "a test", *PATIENTLY)
        assert told[1][0]["taken"]
    due = Reactor._due
    monkeypatch.setattr(
        Reactor, "_due", lambda self, i, given: InputSkipped("foreign") if given.type == CANCEL else due(self, i, given)
    )
    ensure(third, settings)
    with Trading(settings, third):
        rows = typed("list", "checkout", of="tests.process.test_timers_by_hand:third")[1]
    assert "cancelled" in {row["key"] for row in rows}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "chekout"), "did you mean checkout?"),
        (("fire", "checkout", "nobody", "patience", "--reason", "r"), "process checkout has no instance 'nobody'"),
        (("cancel", "checkout", "behind", "patiense", "--reason", "r"), "did you mean patience?"),
        (("cancel", "checkout", "behin", "patience", "--reason", "r"), "did you mean behind?"),
        (("cancel", "checkout", "behind", "patience", "--reason", " "), "why? say --reason TEXT"),
        (("cancel", "checkout", "behind", "patience"), "Missing option '--reason'"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(
    typed: Typing, in_another_version: str, words: tuple[str, ...], said: str
) -> None:
    code, _, err = typed(*words, of=in_another_version)
    assert code == 2
    assert said in err


def test_a_version_that_never_ran_has_no_timers(typed: Typing) -> None:
    spec = "tests.process.test_timers_by_hand:never"
    code, _, err = typed("list", "checkout", of=spec)
    assert code == 69
    assert "process checkout has never run in version 9; start it: leftfold run checkout\n" in err
    assert f"for these commands: export LEFTFOLD_APP={spec}\n" in err
