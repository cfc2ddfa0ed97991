from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from leftfold import (
    App,
    Command,
    ConfigurationError,
    ConflictError,
    ContractError,
    DecisionFailed,
    LeftfoldError,
    Receipt,
    World,
    memory,
)
from leftfold.client.commands import Client
from tests.domains.shop import (
    Add,
    Added,
    CheckOut,
    Closed,
    Open,
    Spend,
    Summary,
    TooDear,
    app,
    household_spend,
    open_baskets,
)

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
    assert world.client.send_many([OPEN], ids=["1"], expected_versions=[0]) == [answers[0]] or isinstance(
        answers[0], Receipt
    )
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
