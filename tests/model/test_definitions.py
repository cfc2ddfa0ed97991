"""Deciders, views, processes, reactions and Apps: a slip is an error that names it and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, make_dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest

from leftfold import App, Command, ConfigurationError, Delivery, Event, FoldView, Reaction, Rejected, SpreadView, memory
from leftfold.testing import given
from tests.domains import shop
from tests.domains.shop import (
    Add,
    Added,
    Basket,
    BasketEvent,
    CheckedOut,
    Open,
    Opened,
    Spend,
    baskets,
    baskets_with,
    household_spend,
    lines,
    open_baskets,
    sell,
    spend,
    summarise,
)
from tests.domains.trade import (
    NOW,
    Checkout,
    Confirm,
    Confirmed,
    Drop,
    Input,
    Paid,
    Pay,
    Place,
    Placed,
    Reserve,
    Sends,
    checkout,
    checkout_with,
    orders,
    payments,
    stock,
)

PLACE = Place(order="o", product="p", at=NOW)
DROP = Drop(order="o", why="w")


class Foreign(Event, category="payments", key="id"):
    id: str


class Stray(Event, category="baskets", key="id"):
    id: str


class StrayOrder(Event, category="orders", key="order"):
    order: str


class Unknown(Command, category="orders", key="order"):
    order: str


@dataclass
class Thawed:
    x: int


@dataclass(frozen=True)
class Row:
    times: int


def no_arm_for_add(command: Any, state: Basket) -> Any:
    match command:
        case Open():
            return []
    return []


def no_arm_for_added(state: Any, event: Any) -> Any:
    match event:
        case Opened() | CheckedOut():
            return state
    return state


def no_arm_for_paid(given: Any, state: Checkout) -> Any:
    match given:
        case Placed() | Rejected():
            return []


def no_arm_for_rejected(state: Checkout, given: Any) -> Any:
    match given:
        case Placed() | Paid():
            return state


def kept(row: Any, event: Any) -> Any:
    return row


def price(event: Opened) -> float:
    return 1.0


def str_key(event: Opened | Foreign) -> str:
    return "k"


def one_argument(event: Placed) -> None:
    raise AssertionError(f"never called with {event}")


def nothing(event: Placed, delivery: Delivery) -> None:
    raise AssertionError(f"never called with {event}")


async def later(*given: object) -> None:
    raise AssertionError(f"{given} is not awaited")


class Called:
    async def __call__(self, event: Placed, delivery: Delivery) -> None:
        raise AssertionError(f"{event} {delivery} is not awaited")


def wrong(given: object) -> Any:
    """What no type checker would let through."""
    return given


def view(name: str = "v", **changes: Any) -> FoldView[Any, Any, Any]:
    parts: dict[str, Any] = {"events": CheckedOut, "row": Spend, "evolve": spend, "key": lambda e: e.household}
    return FoldView(name, **(parts | changes))


def reaction(act: Any = nothing, **changes: Any) -> Reaction[Any]:
    return Reaction(changes.pop("name", "tell"), events=Placed, act=act, **changes)


LISTENS = Placed | Paid | Rejected[Reserve]
SLIPS: dict[str, tuple[Callable[[], object], str]] = {
    "an arm of decide": (
        lambda: baskets_with(decide=no_arm_for_add), r"no_arm_for_add has no arm for Add; add: case Add\(\): ..."
    ),
    "an arm of evolve": (lambda: baskets_with(evolve=no_arm_for_added), "no_arm_for_added has no arm for Added"),
    "events of others": (
        lambda: baskets_with(events=BasketEvent | Foreign), "decider baskets: Foreign belongs to category 'payments'"
    ),
    "events as commands": (
        lambda: baskets_with(commands=Added), "decider baskets: .*Added.* is no subclass of Command"
    ),
    "a state that thaws": (lambda: baskets_with(state=Thawed), "decider baskets: state: Thawed is not frozen"),
    "a list as state": (
        lambda: baskets_with(state=list[int]), "decider baskets: state: .*can be changed in place; use tuple"
    ),
    "decider version 0": (lambda: baskets_with(version=0), "decider baskets: version=0 must be 1 or more"),
    "view v v": (lambda: view("v v"), "view 'v v': a name is letters"),
    "view version 0": (lambda: view(version=0), "view v: version=0"),
    "a row that thaws": (lambda: view(row=Thawed), "view v: row: Thawed is not frozen"),
    "an index of nothing": (lambda: view(indexes=("x",)), "view v: index 'x' is no field"),
    "an arm of a fold": (
        lambda: view(events=BasketEvent, evolve=no_arm_for_added, key=None), "view v: .* has no arm for Added"
    ),
    "several categories": (
        lambda: view(events=Opened | Foreign, evolve=kept, key=None), "reads several categories .*add key="
    ),
    "a key of no type": (lambda: view(key=lambda e: 1), "cannot tell the type of its key"),
    "a float as key": (lambda: view(events=Opened, key=price), "a key of <class 'float'> cannot"),
    "a spread of no type": (
        lambda: SpreadView("v", events=CheckedOut, row=Spend, each=lambda e: e.lines, evolve=sell), "each= needs a"
    ),
    "a spread of two": (
        lambda: SpreadView("v", events=CheckedOut, row=Spend, each=wrong(lambda a, b: []), evolve=wrong(later)),
        r"view v: each: <lambda> takes \(a, b\); it is called as each\(event\)",
    ),
    "async fold": (lambda: view(evolve=wrong(later)), "view v: evolve is async"),
    "App Shop": (lambda: App("Shop"), "app 'Shop': a name is lower case"),
    "no partition": (lambda: App("shop", partitions=0), "app shop: partitions=0 must be between 1 and 4096"),
    "two deciders": (
        lambda: App("shop", deciders=[baskets, baskets_with()]), "app shop: two deciders are named 'baskets'"
    ),
    "two views": (
        lambda: App("shop", views=[open_baskets, open_baskets]), "app shop: two views are named 'open_baskets'"
    ),
    "an event that is never written": (
        lambda: App("shop", deciders=[baskets], views=[view(events=Stray, evolve=kept, key=None)]),
        "app shop: view v reads Stray, which decider baskets never writes",
    ),
    "a process among deciders": (
        lambda: App("a", deciders=[wrong(checkout)]),
        r"app a: deciders= holds Process\('checkout', version=1\), which is no Decider",
    ),
    "a process and a decider of one name": (
        lambda: App("trade", deciders=[orders], processes=[checkout_with(name="orders")]),
        "two deciders or processes are named 'orders'",
    ),
    "an input that is never written": (
        lambda: App(
            "trade", deciders=[orders], processes=[
                checkout_with(
                    inputs=Input | StrayOrder, correlate=lambda given: given.order,
                    react=lambda given, state: [], evolve=lambda state, given: state,
                )
            ],
        ),
        "process checkout reads StrayOrder, which decider orders never writes",
    ),
    "a command that is never decided": (
        lambda: App("trade", deciders=[orders], processes=[checkout_with(sends=Sends | Unknown)]),
        "sends Unknown, which decider orders does not decide",
    ),
    "process Checkout": (lambda: checkout_with(name="Checkout"), "a name is lower case"),
    "process version 0": (lambda: checkout_with(version=0), "version=0 must be 1 or more"),
    "no event as input": (lambda: checkout_with(inputs=Rejected[Reserve]), "no event is among its inputs"),
    "rejections of anything": (
        lambda: checkout_with(inputs=Placed | Rejected), r"Rejected without its command; write Rejected\[Reserve\]"
    ),
    "rejections of what is not sent": (
        lambda: checkout_with(inputs=Placed | Rejected[Place]), r"it never sends Place; add it to sends="
    ),
    "rejections that cannot be": (
        lambda: checkout_with(inputs=Placed | Rejected[Confirm]),
        "Confirm declares no errors; add them to its rejects=",
    ),
    "a number as input": (lambda: checkout_with(inputs=Placed | int), "int'> is no subclass of Event"),
    "a list of inputs": (
        lambda: checkout_with(inputs=[Placed]), r"no subclass of Event; write a union, as in A \| B"
    ),
    "an event to send": (lambda: checkout_with(sends=Placed), "is no subclass of Command"),
    "a state of anything": (
        lambda: checkout_with(state=object, initial_state=object()), "process checkout: state"
    ),
    "a state that begins otherwise": (
        lambda: checkout_with(initial_state="0"), "initial_state= and state= must agree"
    ),
    "a state that begins with nothing": (
        lambda: checkout_with(initial_state=None), "initial_state= and state= must agree"
    ),
    "an arm of react": (
        lambda: checkout_with(inputs=LISTENS, react=no_arm_for_paid), r"no_arm_for_paid has no arm for Paid"
    ),
    "an arm of a process's evolve": (
        lambda: checkout_with(inputs=LISTENS, evolve=no_arm_for_rejected), "has no arm for Rejected"
    ),
    "async react": (
        lambda: checkout_with(react=wrong(later)),
        "process checkout: react is async, and the engine does not await it",
    ),
    "async correlate": (lambda: checkout_with(correlate=later), "process checkout: correlate is async"),
    "react of one argument": (
        lambda: checkout_with(react=lambda event: []),
        r"process checkout: react: <lambda> takes \(event\); it is called as react\(input, state\)",
    ),
    "evolve that is none": (
        lambda: checkout_with(evolve=None), "process checkout: evolve is None, which is no function"
    ),
    "async act": (lambda: reaction(wrong(later)), "reaction tell: act is async"),
    "an object with async call": (lambda: reaction(wrong(Called())), "act is async"),
    "act without delivery": (lambda: reaction(wrong(one_argument)), "takes .*called as act"),
    "one error to give up at": (
        lambda: reaction(gives_up=wrong(OSError)), r"gives_up=OSError is no tuple; write gives_up=\(OSError,\)"
    ),
    "reaction Tell": (lambda: reaction(name="Tell"), "lower case"),
    "no attempts": (lambda: reaction(attempts=0), "attempts=0"),
    "none at once": (lambda: reaction(at_once=0), "at_once=0"),
    "no time": (lambda: reaction(timeout=0.0), "timeout=0.0"),
    "a pause below nothing": (lambda: reaction(backoff=-1.0), "backoff=-1.0"),
    "since now": (lambda: reaction(since=wrong("now")), "neither 'end' nor 'start'"),
    "since no zone": (lambda: reaction(since=datetime(2026, 1, 1)), "no time zone"),  # noqa: DTZ001  # the mistake
    "an arm of an act": (
        lambda: Reaction("tell", events=Placed | Confirmed, act=act_without_an_arm), "has no arm for Confirmed"
    ),
    "a reaction and a decider of one name": (
        lambda: App("trade", deciders=[orders], reactions=[reaction(name="orders")]),
        "two deciders, processes, reactions or streams are named 'orders'",
    ),
}  # fmt: skip


def act_without_an_arm(event: Placed | Confirmed, delivery: Delivery) -> None:
    match event:
        case Placed():
            pass


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_an_error_where_it_is_written(slip: str) -> None:
    make, message = SLIPS[slip]
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_coroutine_that_an_act_gives_is_a_failed_attempt(caplog: pytest.LogCaptureFixture) -> None:
    def act(event: Placed, delivery: Delivery) -> Coroutine[Any, Any, None]:
        return later(event, delivery)

    tell = reaction(wrong(act), attempts=2, backoff=0.01, longest=0.02)
    with memory(App("trade", deciders=[orders], reactions=[tell]), now=NOW, acts={tell: tell.act}) as world:
        world.client.send(PLACE)
        assert [delivery.attempt for _, delivery in world.deliveries(tell)] == [1, 2]
        assert len(world.dead("tell")) == 1
    assert "tell: parked after 2 tries: TypeError" in caplog.text


def test_a_sentence_about_what_is_no_input_fails() -> None:
    with pytest.raises(AssertionError, match=r"Confirmed\(order='o'\) is no input of process checkout; these are: Pla"):
        given(checkout).when(wrong(Confirmed(order="o")))


def test_the_clock_of_a_world_never_goes_back() -> None:
    with memory(shop.app, now=NOW) as world, pytest.raises(ValueError, match="turn the clock back"):
        world.advance(timedelta(seconds=-1))


def test_looking_up_what_an_app_does_not_have_lists_what_it_has() -> None:
    assert shop.app.decider("baskets") is baskets
    assert shop.app.view("household_spend") is household_spend
    with pytest.raises(ConfigurationError, match="no decider for category 'x'; it has: baskets"):
        shop.app.decider("x")
    with pytest.raises(ConfigurationError, match="no view 'x'; it has: open_baskets, household_spend, product_sales"):
        shop.app.view("x")
    trade = App("trade", deciders=[orders], processes=[checkout])
    assert trade.process("checkout") is checkout
    with pytest.raises(ConfigurationError, match="has no process 'chekout'; it has: checkout"):
        trade.process("chekout")


def test_a_world_decides_everything_that_its_processes_send() -> None:
    with (
        pytest.raises(ConfigurationError, match="sends Re.*no decider in this world decides.*the decider of stock"),
        memory(App("trade", deciders=[orders, payments], processes=[checkout]), now=NOW),
    ):
        pass
    with memory(App("trade", deciders=[orders, stock], processes=[checkout]), now=NOW) as world:
        world.client.send(PLACE)
        with pytest.raises(ConfigurationError, match="decides no Pay"):
            world.client.send(Pay(order="o"))


def test_the_hash_of_a_view_names_the_generations_that_its_code_can_read() -> None:
    @dataclass(frozen=True)
    class Wider(Spend):
        more: int = 0

    def by_total(event: CheckedOut) -> Decimal:
        return event.total

    same = [view(), view(evolve=lambda row, event: row)]
    assert len({one.hash for one in same}) == 1
    others = [view(version=2), view(indexes=("tier",)), view(row=Wider), view(key=by_total), view(key=None)]
    elsewhere = FoldView("spend", events=Opened | Foreign, row=Spend, evolve=lambda r, e: r, key=str_key)
    here = FoldView("spend", events=Opened, row=Spend, evolve=lambda r, e: r, key=str_key)
    assert len({one.hash for one in [same[0], *others]}) == 6
    assert here.hash != elsewhere.hash, "a generation of its has no position in another category"


def test_rows_whose_bytes_or_checksums_are_others_have_another_hash() -> None:
    """The fields of a row are in its checksum in their order, and an annotated one is stored as JSON."""
    fields: dict[str, Any] = {"name": str, "total": Decimal}
    annotated = {**fields, "name": Annotated[str, "shown to customers"]}
    turned = {"total": Decimal, "name": str}
    nested = [{"of": make_dataclass("Part", one.items(), frozen=True)} for one in (fields, turned)]
    rows = [make_dataclass("Row", one.items(), frozen=True) for one in (fields, turned, annotated, *nested)]
    assert len({view(row=row).hash for row in rows}) == 5


def test_a_view_knows_its_categories_and_kind() -> None:
    assert open_baskets.stream_keyed
    assert not household_spend.stream_keyed
    both = FoldView("both", events=Opened | Foreign, row=Spend, evolve=lambda r, e: r, key=str_key)
    assert both.categories == ("baskets", "payments")
    assert SpreadView("s", events=CheckedOut, row=Spend, each=lines, evolve=sell).items is not None
    assert FoldView("f", events=BasketEvent, row=Spend, evolve=summarise).items is None  # type: ignore[arg-type]


def test_a_process_knows_what_it_listens_to() -> None:
    assert checkout.categories == ("orders", "payments", "stock")
    assert checkout.hears(Reserve)
    assert not checkout.hears(Drop)


def test_definitions_are_shown_with_name_and_version() -> None:
    shown = ["App('shop', partitions=4)", "Decider('baskets', version=1)", "FoldView('open_baskets', version=1)"]
    assert [repr(one) for one in (shop.app, baskets, open_baskets)] == shown
    assert repr(checkout) == "Process('checkout', version=1)"
    assert Add.__leftfold__.type == "baskets.Add.v1"
