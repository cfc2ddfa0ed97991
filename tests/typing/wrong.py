# pyright: basic
"""Mistakes that type checkers must find, each where `E: mypy's code, pyright's rule` says; test_typing.py runs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from leftfold import Command, Decider, Delivery, FoldView, Process, QueryView, Reaction, SpreadView, memory
from leftfold.testing import given
from tests.typing.right import (
    Shelf,
    ShelfCommand,
    ShelfEvent,
    Sold,
    SoldOut,
    Stand,
    Stock,
    Stocked,
    Takings,
    Refill,
    RefillInput,
    add,
    app,
    by_both,
    decide,
    evolve,
    refill,
    refilled,
    refills,
    shelf_of,
    shelf_takings,
    shelves,
    sold_one,
    stands,
    stocked,
)


class OtherCommand(Command, category="others", key="id"):
    id: str


Stocked(shelf_id="s", product="p", count="many")  # E: arg-type, reportArgumentType
Stocked(shelf_id="s", product="p")  # E: call-arg, reportCallIssue
Stocked("s", "p", 1)  # E: call-arg, reportCallIssue
Stocked(shelf_id="s", product="p", count=1).count = 2  # E: misc, reportAttributeAccessIssue
SoldOut(wrong="p")  # E: call-arg, reportCallIssue
SoldOut("p")  # E: call-arg, reportCallIssue


def forgets_an_arm(command: ShelfCommand, state: Shelf) -> Sequence[ShelfEvent]:  # E: return, reportReturnType
    match command:
        case Stock():
            return []


def returns_one_event(command: ShelfCommand, state: Shelf) -> Stocked:
    return Stocked(shelf_id="s", product="p", count=1)


def evolves_something_else(state: Shelf, event: ShelfEvent) -> Takings:
    return Takings()


Decider(
    "shelves",
    commands=ShelfCommand,
    events=ShelfEvent,
    state=Shelf,
    initial_state=Shelf({}),
    decide=returns_one_event,  # E: arg-type, reportArgumentType
    evolve=evolve,
)
Decider(
    "shelves",
    commands=ShelfCommand,
    events=ShelfEvent,
    state=Shelf,
    initial_state=Shelf({}),
    decide=decide,
    evolve=evolves_something_else,  # E: arg-type, reportArgumentType
)
FoldView("view", events=ShelfEvent, row=Takings, evolve=add)  # E: arg-type, reportArgumentType
FoldView("view", events=Sold, row=Takings, evolve=add, key=lambda e: e.count)  # E: attr-defined, reportAttributeAccessIssue
FoldView("view", events=Sold, row=Takings, evolve=add, index=("total",))  # E: call-arg, reportCallIssue


def each(event: Stocked) -> Iterable[tuple[str, int]]:
    return [(event.product, event.count)]


def takes_text(row: Takings | None, item: str) -> Takings | None:
    return row


SpreadView("view", events=Stocked, row=Takings, each=each, evolve=takes_text)  # E: misc, reportArgumentType

QueryView("view", events=Sold, row=Stand, key=lambda r: r.shop, query="")  # E: attr-defined, reportAttributeAccessIssue
QueryView("view", events=Sold, row=Stand, query="")  # E: call-arg, reportCallIssue

given(shelves, OtherCommand(id="x"))  # E: call-overload, reportArgumentType+reportCallIssue
given(shelves).when(OtherCommand(id="x"))  # E: arg-type, reportArgumentType
given(shelves).when(Stock(shelf_id="s", product="p")).then(Takings())  # E: arg-type, reportArgumentType
given(shelves).when(Stock(shelf_id="s", product="p")).then_rejected(ValueError())  # E: arg-type, reportArgumentType

with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
    world.client.send(Stocked(shelf_id="s", product="p", count=1))  # E: arg-type, reportArgumentType
    world.views[by_both].get("p")  # E: arg-type, reportArgumentType
    row: Shelf | None = world.views[shelf_takings].get("s")  # E: assignment, reportAssignmentType
    world.views[stands].get("s")  # E: arg-type, reportArgumentType
    world.views[stocked].get("s").total  # E: union-attr, reportOptionalMemberAccess
    world.views["stocked"]  # E: index, reportArgumentType
    world.views[stocked].watch(after=5)  # E: arg-type, reportArgumentType
    world.views[by_both].watch(keys=["p"])  # E: list-item, reportArgumentType


def another_state(given: RefillInput, state: Shelf) -> Sequence[ShelfCommand]:
    return []


def another_input(state: Refill, given: OtherCommand) -> Refill:
    return state


Process(
    "refills",
    inputs=RefillInput,
    sends=ShelfCommand,
    state=Refill,
    initial_state=Refill(),
    correlate=shelf_of,
    react=another_state,  # E: arg-type, reportArgumentType
    evolve=refilled,
)
Process(
    "refills",
    inputs=RefillInput,
    sends=ShelfCommand,
    state=Refill,
    initial_state=Refill(),
    correlate=shelf_of,
    react=refill,
    evolve=another_input,  # E: arg-type, reportArgumentType
)
given(refills).when(Stock(shelf_id="s", product="p"))  # E: arg-type, reportArgumentType
given(refills).when(sold_one).then(OtherCommand(id="x"))  # E: arg-type, reportArgumentType


def another_event(event: Stocked, delivery: Delivery) -> None: ...


def another_delivery(event: Sold, delivery: str) -> None: ...


Reaction("posts", events=Sold, act=another_event)  # E: arg-type, reportArgumentType
Reaction("posts", events=Sold, act=another_delivery)  # E: arg-type, reportArgumentType
