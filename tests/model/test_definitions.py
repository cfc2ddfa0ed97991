from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from leftfold import App, ConfigurationError, Decider, Event, FoldView, SpreadView
from tests.domains.shop import (
    Add,
    Added,
    Basket,
    BasketCommand,
    BasketEvent,
    CheckedOut,
    Open,
    Opened,
    Spend,
    app,
    baskets,
    decide,
    evolve,
    household_spend,
    lines,
    open_baskets,
    sell,
    spend,
    summarise,
)


class Foreign(Event, category="payments", key="id"):
    id: str


class Stray(Event, category="baskets", key="id"):
    id: str


@dataclass
class Thawed:
    x: int


def no_arm_for_add(command: Any, state: Basket) -> Any:
    match command:
        case Open():
            return []
    return []


def no_arm_for_added(state: Basket, event: Any) -> Any:
    match event:
        case Opened() | CheckedOut():
            return state
    return state


def no_arm_in_a_view(row: Any, event: Any) -> Any:
    match event:
        case Opened():
            return row
    return row


def make(**changes: Any) -> Decider[Any, Any, Any]:
    parts: dict[str, Any] = {
        "commands": BasketCommand,
        "events": BasketEvent,
        "state": Basket,
        "initial_state": Basket(),
        "decide": decide,
        "evolve": evolve,
    }
    return Decider("baskets", **(parts | changes))


def kept(row: Any, event: Any) -> Any:
    return row


def view(name: str = "v", **changes: Any) -> FoldView[Any, Any, Any]:
    parts: dict[str, Any] = {"events": CheckedOut, "row": Spend, "evolve": spend, "key": lambda e: e.household}
    return FoldView(name, **(parts | changes))


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (lambda: make(decide=no_arm_for_add), r"baskets.no_arm_for_add has no arm for Add; add: case Add\(\): ..."),
        (lambda: make(evolve=no_arm_for_added), "baskets.no_arm_for_added has no arm for Added"),
        (lambda: make(events=BasketEvent | Foreign), "decider baskets: Foreign belongs to category 'payments'"),
        (lambda: make(commands=Added), "decider baskets: .*Added.* is no subclass of Command"),
        (lambda: make(state=Thawed), "decider baskets: state: Thawed is not frozen"),
        (lambda: make(state=list[int]), "decider baskets: state: .*can be changed in place; use tuple"),
        (lambda: make(version=0), "decider baskets: version=0 must be 1 or more"),
        (lambda: view("v v"), "view 'v v': a name is letters"),
        (lambda: view(version=0), "view v: version=0"),
        (lambda: view(row=Thawed), "view v: row: Thawed is not frozen"),
        (lambda: view(indexes=("x",)), "view v: index 'x' is no field"),
        (lambda: view(events=BasketEvent, evolve=no_arm_in_a_view, key=None), "view v: .* has no arm for Added"),
        (lambda: view(events=Opened | Foreign, evolve=kept, key=None), "reads several categories .*add key="),
        (lambda: view(key=lambda e: 1), "cannot tell the type of its key"),
        (lambda: view(events=Opened, key=price), "a key of <class 'float'> cannot"),
        (lambda: SpreadView("v", events=CheckedOut, row=Spend, each=lambda e: e.lines, evolve=sell), "each= needs a"),
        (lambda: App("Shop"), "app 'Shop': a name is lower case"),
        (lambda: App("shop", partitions=0), "app shop: partitions=0 must be between 1 and 4096"),
        (lambda: App("shop", deciders=[baskets, make()]), "app shop: two deciders are named 'baskets'"),
        (lambda: App("shop", views=[open_baskets, open_baskets]), "app shop: two views are named 'open_baskets'"),
        (
            lambda: App("shop", deciders=[baskets], views=[view(events=Stray, evolve=kept, key=None)]),
            "app shop: view v reads Stray, which decider baskets never writes",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)  # fmt: skip
def test_a_wrong_definition_names_the_class_and_the_mend(definition: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        definition()


def price(event: Opened) -> float:
    return 1.0


def test_looking_up_what_an_app_does_not_have_lists_what_it_has() -> None:
    assert app.decider("baskets") is baskets
    assert app.view("household_spend") is household_spend
    with pytest.raises(ConfigurationError, match="no decider for category 'x'; it has: baskets"):
        app.decider("x")
    with pytest.raises(ConfigurationError, match="no view 'x'; it has: open_baskets, household_spend, product_sales"):
        app.view("x")


def test_the_hash_of_a_view_says_which_generations_its_code_can_read() -> None:
    @dataclass(frozen=True)
    class Wider(Spend):
        more: int = 0

    def by_total(event: CheckedOut) -> Decimal:
        return event.total

    same = [view(), view(evolve=lambda row, event: row)]
    assert len({one.hash for one in same}) == 1
    others = [view(version=2), view(indexes=("tier",)), view(row=Wider), view(key=by_total), view(key=None)]
    assert len({one.hash for one in [same[0], *others]}) == 6


def test_a_view_knows_its_categories_and_kind() -> None:
    assert open_baskets.stream_keyed
    assert not household_spend.stream_keyed
    both = FoldView("both", events=Opened | Foreign, row=Spend, evolve=lambda r, e: r, key=str_key)
    assert both.categories == ("baskets", "payments")
    assert SpreadView("s", events=CheckedOut, row=Spend, each=lines, evolve=sell).items is not None
    assert FoldView("f", events=BasketEvent, row=Spend, evolve=summarise).items is None  # type: ignore[arg-type]


def str_key(event: Opened | Foreign) -> str:
    return "k"


def test_definitions_say_what_they_are() -> None:
    assert repr(app) == "App('shop', partitions=4)"
    assert repr(baskets) == "Decider('baskets', version=1)"
    assert repr(open_baskets) == "FoldView('open_baskets', version=1)"
    assert Add.__leftfold__.type == "baskets.Add.v1"
