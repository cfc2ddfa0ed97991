from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from leftfold import (
    App,
    Command,
    ConfigurationError,
    ConflictError,
    ContractError,
    DecisionFailed,
    FoldView,
    LeftfoldError,
    Position,
    Process,
    Receipt,
    World,
    memory,
)
from leftfold.client.commands import Client
from leftfold.model.keys import partition_of
from tests.domains.shop import (
    Add,
    Added,
    Basket,
    BasketEvent,
    CheckOut,
    Closed,
    Open,
    Spend,
    Summary,
    TooDear,
    app,
    baskets,
    baskets_with,
    decide,
    evolve,
    household_spend,
    open_baskets,
    product_sales,
    summarise,
)
from tests.domains.trade import Place, Placed, orders
from tests.waiting import WAIT_SECONDS, wait_until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OPEN = Open(basket_id="b", household="h")
ADD = Add(basket_id="b", product="p", price=Decimal("1.10"))
OUT = CheckOut(basket_id="b")


@pytest.fixture
def world() -> World:
    with memory(app, now=NOW) as world:
        return world


def test_a_command_is_decided_folded_and_read_back(world: World) -> None:
    world.client.send(OPEN)
    receipt = world.client.send(ADD)
    assert (receipt.version, receipt.events) == (2, 1)
    assert world.views[open_baskets].get("b", after=receipt.position) == Summary(1, Decimal("1.10"))
    receipt = world.client.send(OUT)
    assert world.views[household_spend].get("h", after=receipt.position) == Spend(Decimal("1.10"), "base")
    assert world.views[open_baskets].get("b") is None


def test_a_refusal_raises_the_commands_own_error_with_its_fields(world: World) -> None:
    world.client.send(OUT)
    with pytest.raises(Closed) as closed:
        world.client.send(ADD)
    assert closed.value == Closed(basket_id="b")
    with pytest.raises(TooDear) as dear:
        world.client.send(Add(basket_id="c", product="p", price=Decimal("100.01")))
    assert dear.value.price == Decimal("100.01")


def test_sending_again_with_one_id_happens_once(world: World) -> None:
    first = world.client.send(ADD, id="x")
    world.client.send(ADD)
    again = world.client.send(ADD, id="x")
    assert (again.version, again.events) == (first.version, first.events)
    assert again.position.covers(first.position)
    assert len(world.events("baskets")) == 2
    with pytest.raises(ContractError, match="belongs to another command"):
        world.client.send(OPEN, id="x")


def test_expected_versions_guard_a_stream(world: World) -> None:
    world.client.send(OPEN, expected_version=0)
    with pytest.raises(ConflictError) as conflict:
        world.client.send(ADD, expected_version=0)
    assert (conflict.value.key, conflict.value.expected, conflict.value.actual) == ("b", 0, 1)


def test_a_bug_in_a_rule_is_a_failed_decision_and_writes_nothing(world: World) -> None:
    with pytest.raises(DecisionFailed, match="a bug in decide"):
        world.client.send(Add(basket_id="b", product="crash", price=Decimal(1)))
    assert world.events("baskets") == []


def test_send_many_answers_in_order_with_errors_as_values(world: World) -> None:
    answers = world.client.send_many([OPEN, OUT, ADD], ids=["1", "2", "3"], expected_versions=[0, None, None])
    assert [type(answer) for answer in answers] == [Receipt, Receipt, Closed]
    (again,) = world.client.send_many([OPEN], ids=["1"], expected_versions=[0])
    assert isinstance(again, Receipt)
    assert isinstance(answers[0], Receipt)
    assert (again.version, again.events) == (answers[0].version, answers[0].events), "the first answer"
    assert len(world.events("baskets")) == 2
    assert world.client.send_many([]) == []


def test_send_each_takes_commands_as_its_results_are_asked_for(world: World) -> None:
    taken: list[str] = []

    def commands() -> Iterator[Command]:
        for command in (OPEN, OUT, ADD):
            taken.append(type(command).__name__)
            yield command

    each = world.client.send_each(commands(), ids=["1", "2", "3"], expected_versions=[0, None, None])
    assert taken == []
    assert isinstance(next(each), Receipt)
    assert taken == ["Open"]
    assert world.views[open_baskets].get("b") == Summary(), "it is folded, too"
    assert [type(answer) for answer in each] == [Receipt, Closed]
    with pytest.raises(ValueError, match="more commands than ids"):
        list(world.client.send_each([OPEN, ADD], ids=["1"]))


def test_send_many_with_too_few_ids_sends_nothing(world: World) -> None:
    with pytest.raises(ValueError, match="more commands than ids"):
        world.client.send_many([OPEN, ADD], ids=["1"])
    with pytest.raises(ValueError, match=r"ids='slip-1' is one id; say a list of ids: \['slip-1'\]"):
        world.client.send_many([OPEN], ids="slip-1")
    assert world.events("baskets") == []


def test_the_client_is_the_clients_of_production(world: World) -> None:
    client: Client = world.client
    receipt = asyncio.run(client.asend(OPEN))
    assert asyncio.run(world.views[open_baskets].aget("b", after=receipt.position)) == Summary()


def test_time_is_the_worlds_own(world: World) -> None:
    world.client.send(OPEN)
    world.advance(timedelta(hours=2))
    world.client.send(ADD)
    one, two = world.events("baskets")
    assert (one.time, two.time) == (NOW, NOW + timedelta(hours=2))
    assert two.event == Added(basket_id="b", product="p", price=Decimal("1.10"))
    assert (two.version, two.key, two.causation_id) == (2, "b", two.correlation_id)


def test_hours_that_a_zone_repeats_or_omits_pass_like_others() -> None:
    for day in (datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)):
        with memory(app, now=day.astimezone(ZoneInfo("Europe/Berlin"))) as world:
            world.advance(timedelta(hours=4))
            world.client.send(OPEN)
        assert world.now == world.events("baskets")[0].time == day + timedelta(hours=4)


def test_loaded_history_keeps_its_time(world: World) -> None:
    then = datetime(2017, 1, 1, tzinfo=UTC)
    world.client.send(OPEN, at=then)
    assert world.events("baskets")[0].time == then


def test_a_clock_without_a_zone_is_refused() -> None:
    with pytest.raises(ContractError, match="has no time zone"), memory(app, now=datetime(2026, 1, 1)):  # noqa: DTZ001
        pass


def test_a_command_that_the_app_does_not_decide_is_refused(world: World) -> None:
    class Stray(Command, category="strays", key="id"):
        id: str

    with pytest.raises(ConfigurationError, match="app shop decides no Stray; add its decider to the App"):
        world.client.send(Stray(id="s"))
    with pytest.raises(ConfigurationError, match="no decider for category 'strays'; it has: baskets"):
        world.events("strays")


def test_worlds_share_nothing() -> None:
    with memory(app, now=NOW) as one, memory(app, now=NOW) as two:
        one.client.send(OPEN)
        assert two.events("baskets") == []
        assert two.views[open_baskets].get("b") is None


def test_a_fold_that_fails_parks_its_row_as_in_production(world: World) -> None:
    world.client.send(OPEN)
    with pytest.raises(LeftfoldError):
        world.client.send(Add(basket_id="b", product="unfoldable", price=Decimal(1)))
    assert world.views[open_baskets].get("b") == Summary()


def test_a_view_that_stops_does_not_hang_the_world() -> None:
    with memory(App("lonely", deciders=app.deciders, views=[household_spend]), now=NOW) as world:
        world.client.send(Open(basket_id="b", household="unkeyed"))
        world.client.send(OUT)
        world.client.send(Open(basket_id="c", household="h"))
        assert world.views[household_spend].get("unkeyed") is None


BEFORE_YEAR_1 = datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))


def test_a_command_that_cannot_be_sent_is_refused_alone(world: World) -> None:
    commands = [OPEN, OPEN, Open(basket_id="\ud800", household="h"), Open(basket_id="", household="h"), OPEN, OPEN, ADD]
    ids, times = (
        ["1", "2", "3", "4", "", "6", "7"],
        [None, NOW.replace(tzinfo=None), None, None, None, BEFORE_YEAR_1, None],
    )
    wanted = [Receipt, *5 * [ContractError], Receipt]
    assert [type(answer) for answer in world.client.send_many(commands, ids=ids, times=times)] == wanted
    assert [type(answer) for answer in world.client.send_each(commands, ids=ids, times=times)] == wanted
    assert len(world.events("baskets")) == 2
    assert world.dead("baskets") == []
    with pytest.raises(ContractError, match=r"Open cannot be written: .*surrogates not allowed"):
        world.client.send(commands[2])
    with pytest.raises(ContractError, match="neither may be empty"):
        asyncio.run(world.client.asend(OPEN, id=""))


def test_threads_that_share_a_client_decide_one_after_another() -> None:
    together = threading.Barrier(2)

    def patient(command: Any, state: Any) -> Any:
        with suppress(threading.BrokenBarrierError):  # nothing else is decided meanwhile, until it is too late
            together.wait(0.2)
        return decide(command, state)

    slow = App("shop", partitions=1, deciders=[baskets_with(decide=patient)], views=[open_baskets])
    with memory(slow, now=NOW) as world, ThreadPoolExecutor(2) as threads:
        world.client.send(OPEN)
        together.reset()
        sent = [threads.submit(world.client.send, ADD, expected_version=1) for _ in range(2)]
        errors = [one.exception(WAIT_SECONDS) for one in sent]
        assert sorted(type(error).__name__ for error in errors) == ["ConflictError", "NoneType"]
        assert [event.version for event in world.events("baskets")] == [1, 2]


@pytest.mark.parametrize(
    "act",
    [
        lambda world: world.advance(timedelta(hours=1)),
        lambda world: world.stop("baskets"),
        lambda world: world.start("baskets"),
        lambda world: world.settle(),
    ],
    ids=["advance", "stop", "start", "settle"],
)
def test_nothing_else_happens_while_a_command_is_decided(act: Callable[[World], None]) -> None:
    order, other = list[str](), list[threading.Thread]()

    def do() -> None:
        act(worlds[0])
        order.append("act")

    def patient(command: Any, state: Any) -> Any:
        other.append(threading.Thread(target=do))
        other[0].start()
        other[0].join(0.2)
        order.append("decided")
        return decide(command, state)

    with memory(App("shop", deciders=[baskets_with(decide=patient)]), now=NOW) as world:
        worlds = [world]
        assert world.client.send(OPEN).version == 1
        other[0].join(WAIT_SECONDS)
    assert order == ["decided", "act"]


@pytest.mark.parametrize("timeout", [WAIT_SECONDS, math.inf])
def test_a_reader_that_waits_holds_up_no_command(world: World, timeout: float) -> None:
    after = Position.at("baskets.events", partition_of(b"b", app.partitions), 1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(world.views[open_baskets].get, "b", after=after, timeout=timeout)
        wait_until(lambda: waiting.done() or world.store._notifier.generations(), "a reader that waits")
        world.client.send(OPEN)
        assert waiting.result(WAIT_SECONDS) == Summary()


def test_rows_may_be_counted_while_others_are_written() -> None:
    """A dict that grows while it is iterated over raises."""
    by_lines = FoldView("by_lines", events=BasketEvent, row=Summary, evolve=summarise, indexes=("lines",))
    interval, done = sys.getswitchinterval(), threading.Event()

    def count(world: World) -> None:
        while not done.is_set():
            world.views[by_lines].count(lines=0)

    sys.setswitchinterval(1e-6)
    try:
        with memory(App("shop", deciders=[baskets], views=[by_lines]), now=NOW) as world, ThreadPoolExecutor(1) as one:
            counting = one.submit(count, world)
            for start in range(0, 1000, 100):
                world.client.send_many([Open(basket_id=f"b{start + n}", household="h") for n in range(100)])
            done.set()
            counting.result(WAIT_SECONDS)
            assert world.views[by_lines].count(lines=0) == 1000
    finally:
        done.set()
        sys.setswitchinterval(interval)


def _careless(state: Basket, event: BasketEvent) -> Basket:
    return state if getattr(event, "product", "") == "unfoldable" else evolve(state, event)


def test_a_view_that_stops_and_a_row_that_is_parked_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with memory(App("shop", deciders=[baskets_with(evolve=_careless)], views=app.views), now=NOW) as world:
        world.client.send(OPEN)
        world.client.send(Add(basket_id="b", product="unfoldable", price=Decimal(1)))
        world.client.send(Open(basket_id="u", household="unkeyed"))
        world.client.send(CheckOut(basket_id="u"))
    parked, stopped = caplog.messages
    assert parked == "open_baskets: row b parked: ValueError: cannot be summarised"
    assert stopped.startswith("household_spend: view stopped: ")
    assert "household_spend cannot name the rows of CheckedOut(basket_id='u'" in stopped
    assert "unkeyed has no key" in stopped


def test_a_row_that_the_last_command_parks_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with memory(App("shop", deciders=[baskets_with(evolve=_careless)], views=[open_baskets]), now=NOW) as world:
        world.client.send(OPEN)
        world.client.send(Add(basket_id="b", product="unfoldable", price=Decimal(1)))
        assert [m for m in caplog.messages if m.startswith("open_baskets: row b parked: ValueError")]


def test_a_view_is_named_by_itself_and_is_one_of_the_app() -> None:
    with memory(App("shop", deciders=app.deciders, views=[open_baskets]), now=NOW) as world:
        with pytest.raises(ConfigurationError, match=r"views\['open_baskets'\]: a reader is found by the view itself"):
            world.views["open_baskets"]  # type: ignore[index]
        with pytest.raises(ConfigurationError, match="app shop does not fold view product_sales; add it to views="):
            world.views[product_sales]


def test_a_process_that_answers_itself_without_end_is_named_with_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["leftfold.memory.flow"], "_LONGEST_CHAIN", 2_000)

    def again(given: Any, state: int) -> list[Any]:
        return [Place(order="o", product="p", at=NOW)] if isinstance(given, Placed) else []

    echo = Process[Any, Any, Any](
        "echo",
        inputs=Placed,
        sends=Place,
        state=int,
        initial_state=0,
        correlate=lambda event: event.order,
        react=again,
        evolve=lambda state, given: state,
    )
    with (
        memory(App("trade", deciders=[orders], processes=[echo]), now=NOW) as world,
        pytest.raises(
            ConfigurationError, match=r"2,000 events and commands .* the last orders\.Placed\.v1 from orders\.Place\.v1"
        ),
    ):
        world.client.send(Place(order="o", product="p", at=NOW))


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ({"basket_id": "b"}, "and not dict"),
        (OPEN.__class__, r"Open is the class itself; send Open\(...\)"),
        ([OPEN], "one or a list of them with send_many, and not list"),
        (Added(basket_id="b", product="p", price=Decimal(1)), "Added is an event; send the command that leads to it"),
    ],
)
def test_what_is_no_command_is_not_sent(world: World, sent: Any, why: str) -> None:
    with pytest.raises(TypeError, match=why):
        world.client.send(sent)
    with pytest.raises(TypeError, match=why):
        world.client.send_many([sent])


def test_one_decider_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"deciders=Decider\(.*\) is no list; write deciders=\[Decider\("):
        App("shop", deciders=baskets)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
