"""What users write and what type checkers must infer from it; run by test_typing.py under mypy and pyright."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TypeAlias, assert_type

from leftfold import (
    App,
    Cancel,
    Command,
    Decider,
    Delivery,
    DomainError,
    Event,
    Finished,
    FoldView,
    LeftfoldError,
    Process,
    QueryView,
    Reaction,
    Receipt,
    ReferenceFile,
    Rejected,
    SpreadView,
    Timer,
    memory,
)
from leftfold.client import Change, Entry, Page, Reader
from leftfold.testing import Given, GivenProcess, Then, ThenSent, fold, given


class _ShelfEvent(Event, category="shelves", key="shelf_id"):
    shelf_id: str


class Stocked(_ShelfEvent):
    product: str
    count: int


class Sold(_ShelfEvent, version=2, upcasts={1: lambda fields: {**fields, "price": "0"}}):
    product: str
    price: Decimal


ShelfEvent: TypeAlias = Stocked | Sold


class SoldOut(DomainError, message="no {product} left"):
    product: str


class _ShelfCommand(Command, category="shelves", key="shelf_id"):
    shelf_id: str


class Stock(_ShelfCommand):
    product: str
    count: int = 1


class Sell(_ShelfCommand, rejects=(SoldOut,)):
    product: str
    price: Decimal


ShelfCommand: TypeAlias = Stock | Sell


@dataclass(frozen=True)
class Shelf:
    counts: Mapping[str, int]


def decide(command: ShelfCommand, state: Shelf) -> Sequence[ShelfEvent]:
    match command:
        case Stock(shelf_id=shelf, product=product, count=count):
            assert_type(command, Stock)
            assert_type(count, int)
            return [Stocked(shelf_id=shelf, product=product, count=count)]
        case Sell():
            assert_type(command.price, Decimal)
            if not state.counts.get(command.product):
                raise SoldOut(product=command.product)
            return [Sold(shelf_id=command.shelf_id, product=command.product, price=command.price)]


def evolve(state: Shelf, event: ShelfEvent) -> Shelf:
    change = event.count if isinstance(event, Stocked) else -1
    return Shelf({**state.counts, event.product: state.counts.get(event.product, 0) + change})


shelves = Decider(
    "shelves",
    commands=ShelfCommand,
    events=ShelfEvent,
    state=Shelf,
    initial_state=Shelf({}),
    decide=decide,
    evolve=evolve,
)
assert_type(shelves, Decider[Stock | Sell, Shelf, Stocked | Sold])
assert_type(shelves.fold(Shelf({}), [Stocked(shelf_id="s", product="p", count=1)]), Shelf)


@dataclass(frozen=True)
class Takings:
    total: Decimal = Decimal(0)


def take(row: Takings | None, event: ShelfEvent) -> Takings | None:
    match event:
        case Stocked():
            return row
        case Sold():
            return replace(row or Takings(), total=(row or Takings()).total + event.price)


def add(row: Takings | None, event: Sold) -> Takings | None:
    return Takings((row.total if row else Decimal(0)) + event.price)


def product_and_shelf(event: Sold) -> tuple[str, str]:
    return event.product, event.shelf_id


def each(event: Stocked) -> Iterable[tuple[str, int]]:
    return [(event.product, event.count)]


def count(row: Takings | None, item: int) -> Takings | None:
    return Takings(Decimal(item))


shelf_takings = FoldView("shelf_takings", events=ShelfEvent, row=Takings, evolve=take)
assert_type(shelf_takings, FoldView[Stocked | Sold, Takings, str])
one_event = FoldView("one_event", events=Sold, row=Takings, evolve=add)
assert_type(one_event, FoldView[Sold, Takings, str])
by_product = FoldView("by_product", events=Sold, row=Takings, key=lambda e: e.product, evolve=add, indexes=("total",))
assert_type(by_product, FoldView[Sold, Takings, str])
by_both = FoldView("by_both", events=Sold, row=Takings, key=product_and_shelf, evolve=add)
assert_type(by_both, FoldView[Sold, Takings, tuple[str, str]])
stocked = SpreadView("stocked", events=Stocked, row=Takings, each=each, evolve=count)
assert_type(stocked, SpreadView[Takings, str])


@dataclass(frozen=True)
class Stand:
    shelf: str
    day: date
    total: Decimal


stands = QueryView(
    "stands",
    events=ShelfEvent,
    row=Stand,
    key=lambda r: (r.shelf, r.day),
    query="SELECT ...",
    references={"shelves": ReferenceFile("shelves.csv", row=Stand)},
    late=timedelta(hours=1),
)
assert_type(stands, QueryView[Stand, tuple[str, date]])
assert_type(QueryView("x", events=Sold, row=Stand, key=lambda r: r.shelf, query=""), QueryView[Stand, str])

assert_type(fold(shelf_takings, Sold(shelf_id="s", product="p", price=Decimal(1))), Mapping[str, Takings])
assert_type(fold(by_both), Mapping[tuple[str, str], Takings])

empty = given(shelves)
assert_type(empty, Given[Stock | Sell, Stocked | Sold])
assert_type(empty.when(Stock(shelf_id="s", product="p")), Then[Stocked | Sold])
given(shelves, Stocked(shelf_id="s", product="p", count=1)).when(
    Sell(shelf_id="s", product="p", price=Decimal(1))
).then(Sold(shelf_id="s", product="p", price=Decimal(1)))
given(shelves).when(Sell(shelf_id="s", product="p", price=Decimal(1))).then_rejected(SoldOut(product="p"))


@dataclass(frozen=True)
class Refill:
    product: str = ""


RefillInput: TypeAlias = Sold | Stocked | Rejected[Sell]


def shelf_of(given: RefillInput) -> str | None:
    match given:
        case Sold() | Stocked():
            return given.shelf_id
        case Rejected(command=command):
            assert_type(command, Sell)
            return command.shelf_id


def refill(given: RefillInput, state: Refill) -> Sequence[ShelfCommand | Timer[ShelfCommand] | Cancel | Finished]:
    match given:
        case Sold(shelf_id=shelf, product=product):
            later = Stock(shelf_id=shelf, product=state.product)
            return [
                Stock(shelf_id=shelf, product=product),
                Timer(name="later", at=datetime(2026, 1, 1, tzinfo=UTC), command=later),
            ]
        case Stocked():
            return [Cancel("later"), Finished()]
        case Rejected(error=error):
            assert_type(error, DomainError)
            return []


def refilled(state: Refill, given: RefillInput) -> Refill:
    return replace(state, product=given.product) if isinstance(given, Sold) else state


refills = Process(
    "refills",
    inputs=RefillInput,
    sends=ShelfCommand,
    state=Refill,
    initial_state=Refill(),
    correlate=shelf_of,
    react=refill,
    evolve=refilled,
)
assert_type(refills, Process[Sold | Stocked | Rejected[Sell], Refill, Stock | Sell])
unfilled = given(refills)
assert_type(unfilled, GivenProcess[Sold | Stocked | Rejected[Sell], Stock | Sell])
sold_one = Sold(shelf_id="s", product="p", price=Decimal(1))
assert_type(unfilled.when(sold_one), ThenSent[Stock | Sell])
given(refills, sold_one).when(Stocked(shelf_id="s", product="p", count=1)).then(Cancel("later"), Finished())


def post(event: Sold | Stocked, delivery: Delivery) -> None:
    """Notifies a customer."""


posts = Reaction(
    "posts", events=Sold | Stocked, act=post, gives_up=(ValueError,), since=datetime(2026, 1, 1, tzinfo=UTC)
)
assert_type(posts, Reaction[Sold | Stocked])
app = App(
    "shop", deciders=[shelves], processes=[refills], reactions=[posts], views=[shelf_takings, by_both, stocked, stands]
)


async def reads() -> None:
    with memory(app, now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        receipt = world.client.send(Stock(shelf_id="s", product="p"), expected_version=0)
        assert_type(receipt, Receipt)
        assert_type(await world.client.asend(Stock(shelf_id="s", product="p"), id="x"), Receipt)
        answers = world.client.send_many([Stock(shelf_id="s", product="p")])
        assert_type(answers, list[Receipt | LeftfoldError])
        each = world.client.send_each((Stock(shelf_id=s, product="p") for s in "ab"), window=10, ids=iter("xy"))
        assert_type(each, Iterator[Receipt | LeftfoldError])
        assert_type(world.deliveries(posts), list[tuple[Sold | Stocked, Delivery]])
        assert_type(world.views[shelf_takings], Reader[Takings, str])
        assert_type(world.views[shelf_takings].get("s", after=receipt.position, timeout=1.0), Takings | None)
        assert_type(await world.views[by_both].aget(("p", "s")), Takings | None)
        assert_type(world.views[by_both].many([("p", "s")]), dict[tuple[str, str], Takings])
        assert_type(world.views[by_both].scan(limit=1), Page[Takings, tuple[str, str]])
        assert_type(world.views[stocked].find(total=1), dict[str, Takings])
        assert_type(world.views[stocked].entry("p"), Entry[Takings])
        sold = world.views[stocked]
        assert_type(sold.between("total", at_least=Decimal(1), limit=3), dict[str, Takings])
        assert_type(sold.top("total", 3), dict[str, Takings])
        assert_type(sold.count(total=Decimal(1)), int)
        assert_type([change.row for change in sold.watch(timeout=0.0)], list[Takings | None])
        assert_type(await world.views[by_both].amany([("p", "s")]), dict[tuple[str, str], Takings])
        assert_type(await world.views[by_both].atop("total", 1), dict[tuple[str, str], Takings])
        assert_type(await world.views[by_both].ascan(), Page[Takings, tuple[str, str]])
        async for change in world.views[by_both].awatch(timeout=0.0):
            assert_type(change, Change[Takings, tuple[str, str]])
        assert_type(world.views[stands].get(("s", date(2026, 1, 1))), Stand | None)
