from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from hypothesis import given as generated
from hypothesis import strategies as st

from leftfold import Cancel, ContractError, Decider, DecisionFailed, Event, Finished, FoldView, Process, Rejected
from leftfold.testing import check_deciding_twice, check_interleavings, check_redelivery, fold, given
from tests.domains.shop import (
    Add,
    Added,
    Basket,
    BasketCommand,
    BasketEvent,
    CheckedOut,
    CheckOut,
    Closed,
    Open,
    Opened,
    Spend,
    Summary,
    TooDear,
    Undeclared,
    baskets,
    baskets_with,
    household_spend,
    open_baskets,
    product_sales,
)
from tests.domains.trade import PAID, PLACED, RESERVED, Confirm, Drop, OutOfStock, Reserve, checkout
from tests.engine.fold_bench import out

ONE = Decimal(1)
OPENED, ADDED = Opened(basket_id="b", household="h"), Added(basket_id="b", product="p", price=ONE)
ADD, CLOSED = Add(basket_id="b", product="p", price=ONE), out("b", "h")
NOON = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))


def test_given_when_then_reads_as_a_sentence() -> None:
    given(baskets).when(ADD).then(ADDED)
    given(baskets, OPENED, ADDED).when(CheckOut(basket_id="b")).then(out("b", "h", p=1))
    given(baskets, CLOSED).when(ADD).then_rejected(Closed(basket_id="b"))
    given(baskets, OPENED).when(Open(basket_id="b", household="h")).then_nothing()


def test_then_fails_when_something_else_was_written() -> None:
    with pytest.raises(AssertionError, match=r"(?s)wrote.*Added.*not.*nothing"):
        given(baskets).when(ADD).then_nothing()
    with pytest.raises(AssertionError, match="not"):
        given(baskets).when(ADD).then(ADDED, ADDED)


def test_then_fails_when_the_command_was_rejected_and_names_the_error() -> None:
    with pytest.raises(AssertionError, match="was rejected: Closed"):
        given(baskets, CLOSED).when(ADD).then(ADDED)


def test_then_rejected_fails_on_acceptance_on_another_error_and_on_an_undeclared_one() -> None:
    with pytest.raises(AssertionError, match="was not rejected; it wrote"):
        given(baskets).when(ADD).then_rejected(Closed(basket_id="b"))
    with pytest.raises(AssertionError, match=r"with Closed\(basket_id='b'\), not with Closed\(basket_id='c'\)"):
        given(baskets, CLOSED).when(ADD).then_rejected(Closed(basket_id="c"))
    with pytest.raises(AssertionError, match="Add does not declare Undeclared; add it to its rejects="):
        given(baskets).when(Add(basket_id="b", product="undeclared", price=ONE)).then_rejected(Undeclared())


def test_then_does_not_swallow_a_bug() -> None:
    with pytest.raises(RuntimeError, match="a bug in decide"):
        given(baskets).when(Add(basket_id="b", product="crash", price=ONE))


class Stray(Event, category="baskets", key="basket_id"):
    basket_id: str


class _Dearer(TooDear):
    """A refusal that no client knows by its name."""


def _writing(*events: Event) -> Decider[Any, Any, Any]:
    return baskets_with(decide=lambda command, state: iter(events))


def test_when_takes_any_iterable_of_events_as_a_worker_does() -> None:
    given(_writing(OPENED, ADDED)).when(ADD).then(OPENED, ADDED)


def test_when_refuses_events_that_a_worker_refuses() -> None:
    with pytest.raises(DecisionFailed, match="Added has key 'c', but the command decides for 'b' only"):
        given(_writing(Added(basket_id="c", product="p", price=ONE))).when(ADD)
    with pytest.raises(DecisionFailed, match=r"Stray\(basket_id='b'\) is none of the events of decider baskets"):
        given(_writing(Stray(basket_id="b"))).when(ADD)


def test_when_refuses_a_state_that_could_not_be_stored() -> None:
    forgetful = baskets_with(decide=lambda command, state: [OPENED], evolve=lambda state, event: None)
    with pytest.raises(ContractError):
        given(forgetful).when(ADD)


def test_then_rejected_fails_on_a_subclass_of_a_declared_error() -> None:
    def refuse(command: BasketCommand, state: Basket) -> list[BasketEvent]:
        raise dearer

    dearer = _Dearer(price=ONE)
    with pytest.raises(AssertionError, match="Add does not declare _Dearer; add it to its rejects="):
        given(baskets_with(decide=refuse)).when(ADD).then_rejected(dearer)


def test_fold_gives_rows_by_key_for_every_kind_of_view() -> None:
    assert fold(open_baskets, OPENED, ADDED) == {"b": Summary(1, ONE)}
    assert fold(open_baskets, OPENED, CLOSED) == {}
    assert fold(household_spend, OPENED, out("b", "h", p=1), out("c", "h", q=2)) == {"h": Spend(Decimal(3), "base")}
    assert set(fold(product_sales, out("b", "h", p=1, q=2))) == {"p", "q"}


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_fold_refuses_an_item_of_another_type_than_each_declares() -> None:
    wrong = out("b", "h")
    vars(wrong)["lines"] = (("p", "1"),)  # no event is made so, and a caller of `fold` may have patched one
    with pytest.raises(ContractError, match="each: '1' is str, and the field holds an instance of Decimal"):
        fold(product_sales, wrong)


commands = st.lists(
    st.one_of(
        st.builds(Open, basket_id=st.sampled_from("bc"), household=st.sampled_from("hi")),
        st.builds(
            Add,
            basket_id=st.sampled_from("bc"),
            product=st.sampled_from(["p", "twice"]),
            price=st.decimals(0, 200, places=2),
        ),
        st.builds(CheckOut, basket_id=st.sampled_from("bc")),
    ),
    max_size=12,
)


@generated(commands)
def test_deciding_twice_adds_nothing(history: list[BasketCommand]) -> None:
    check_deciding_twice(baskets, history)


def test_deciding_twice_finds_a_rule_that_depends_on_more_than_command_and_state() -> None:
    numbers = count()

    def impure(command: BasketCommand, state: Basket) -> Sequence[BasketEvent]:
        return [Added(basket_id=command.basket_id, product=str(next(numbers)), price=ONE)]

    with pytest.raises(AssertionError, match="decide must be pure"):
        check_deciding_twice(baskets_with(decide=impure), [ADD])


def test_deciding_twice_finds_a_refusal_by_chance() -> None:
    numbers = count()

    def impure(command: BasketCommand, state: Basket) -> Sequence[BasketEvent]:
        raise TooDear(price=Decimal(next(numbers)))

    with pytest.raises(AssertionError, match="decide must be pure"):
        check_deciding_twice(baskets_with(decide=impure), [ADD])


def test_deciding_twice_finds_a_state_that_storing_changes() -> None:
    class Shouting(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Shouting) and str(self) == str(other)

        __hash__ = str.__hash__

    def shouting(state: Basket, event: BasketEvent) -> Basket:
        return replace(state, household=Shouting("H")) if isinstance(event, Opened) else state

    with pytest.raises(AssertionError, match="storing changed the state"):
        check_deciding_twice(baskets_with(evolve=shouting), [Open(basket_id="b", household="h"), ADD])


def latest(row: Spend | None, event: CheckedOut) -> Spend | None:
    return Spend(event.total, "last one wins")


def test_interleavings_pass_for_a_sum_and_fail_for_the_last_one() -> None:
    streams = [[out("a", "h", p=n)] for n in range(1, 5)]
    check_interleavings(household_spend, *streams)
    check_interleavings(product_sales, *streams)
    wins = FoldView("wins", events=CheckedOut, row=Spend, key=lambda e: e.household, evolve=latest)
    with pytest.raises(AssertionError, match="view wins gives .* of seed 7.*must not depend on the order"):
        check_interleavings(wins, *streams, seed=7)


def test_interleavings_keep_the_order_within_a_stream() -> None:
    check_interleavings(open_baskets, [OPENED, ADDED, CLOSED], [Opened(basket_id="c", household="h")])


@dataclass(frozen=True)
class Seen:
    totals: Mapping[str, Decimal]
    hour: int
    at: datetime


def two_last(row: Seen | None, event: CheckedOut) -> Seen:
    totals = {**(row.totals if row else {}), event.household: event.total}
    return Seen(dict(list(totals.items())[-2:]), 0, NOON)


def hour_of_the_first(row: Seen | None, event: CheckedOut) -> Seen:
    return Seen({}, row.at.hour if row else 12, NOON)


@pytest.mark.parametrize("evolve", [two_last, hour_of_the_first])
def test_interleavings_fail_where_storing_a_row_between_two_events_changes_it(
    evolve: Callable[[Seen | None, CheckedOut], Seen],
) -> None:
    view = FoldView("seen", events=CheckedOut, row=Seen, evolve=evolve)
    with pytest.raises(AssertionError, match=r"view seen gives .* if the row is stored between two events, but Seen"):
        check_interleavings(view, [out("b", household) for household in ("tea", "milk", "bread", "apple")])


def test_an_error_is_compared_with_all_its_fields() -> None:
    dear = given(baskets).when(Add(basket_id="b", product="p", price=Decimal(101)))
    dear.then_rejected(TooDear(price=Decimal(101)))
    with pytest.raises(AssertionError, match="not with TooDear"):
        dear.then_rejected(TooDear(price=Decimal(102)))


def test_a_process_that_has_finished_takes_answers_only() -> None:
    late = given(checkout, PLACED, RESERVED, PAID)
    late.when(PAID).then_nothing()
    with pytest.raises(AssertionError, match=r"(?s)led to.*nothing.*not.*Confirm"):
        late.when(PAID).then(Confirm(order="o"), Finished())
    given(checkout, PLACED, RESERVED).when(PAID).then(Confirm(order="o"), Finished())
    refused = Rejected(Reserve(product="p", order="o"), OutOfStock(product="p"))
    late.when(refused).then(Cancel("patience"), Drop(order="o", why="no p left"))


def test_a_process_is_given_no_refusal_that_its_command_does_not_declare() -> None:
    refused = Rejected(Reserve(product="p", order="o"), Undeclared())
    with pytest.raises(AssertionError, match="Reserve does not declare Undeclared, so no such refusal comes back"):
        given(checkout, PLACED).when(refused)


def test_interleavings_take_a_list_for_each_stream_and_refuse_an_event_and_two_streams_in_one_list() -> None:
    b, c = out("b", "h", p=1), out("c", "h", q=2)
    wins = FoldView("wins", events=CheckedOut, row=Spend, key=lambda e: e.household, evolve=latest)
    with pytest.raises(TypeError, match=r"takes a list of events for each stream, not CheckedOut\(.*; say \[event\]"):
        check_interleavings(wins, b, c)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="of several streams \\(baskets/b, baskets/c\\); give a list for each"):
        check_interleavings(wins, [b, c])


def test_fold_refuses_what_is_no_event() -> None:
    for wrong in ([ADDED], ADD):
        with pytest.raises(TypeError, match=r"fold takes events, not .*; a list is written fold\(view, \*events\)"):
            fold(open_baskets, wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Tally:
    products: Mapping[str, int] = field(default_factory=dict[str, int])


def _counting(tally: Tally) -> Tally:
    products: Any = tally.products
    products["p"] = products.get("p", 0) + 1
    return tally


def _tallies(decide: Callable[[Any, Tally], Any], evolve: Callable[[Tally, Any], Tally]) -> Decider[Any, Tally, Any]:
    definition: Any = {"commands": BasketCommand, "events": BasketEvent, "decide": decide, "evolve": evolve}
    return Decider("baskets", state=Tally, initial_state=Tally(), **definition)


def _decides_tally(command: Any, tally: Tally) -> list[BasketEvent]:
    return [Added(basket_id=command.basket_id, product=str(len(tally.products)), price=ONE)]


def test_deciding_twice_finds_a_state_that_is_changed_in_place() -> None:
    def deciding(command: Any, tally: Tally) -> list[BasketEvent]:
        _counting(tally)
        return [ADDED]

    for decider in (
        _tallies(_decides_tally, lambda tally, event: _counting(tally)),
        _tallies(deciding, lambda tally, event: tally),
    ):
        with pytest.raises(AssertionError, match=r"baskets changed the state that it was given.*\{'p': 1\}"):
            check_deciding_twice(decider, [ADD])


def test_a_mapping_that_is_changed_in_place_stays_in_its_stream() -> None:
    decider = _tallies(_decides_tally, lambda tally, event: _counting(tally))
    for _ in range(2):
        given(decider).when(ADD).then(Added(basket_id="b", product="0", price=ONE))
    assert decider.initial_state == Tally()


def test_redelivery_finds_a_state_that_is_changed_in_place() -> None:
    definition: Any = {"inputs": Added, "sends": CheckOut, "state": Tally, "initial_state": Tally()}
    process: Process[Any, Any, Any] = Process(
        "tally",
        correlate=lambda event: event.basket_id,
        react=lambda given, tally: [],
        evolve=lambda tally, event: _counting(tally),
        **definition,
    )
    with pytest.raises(AssertionError, match=r"process tally changed the state that it was given.*\{'p': 1\}"):
        check_redelivery(process, [ADDED])


def test_deciding_twice_stores_the_last_state_too() -> None:
    def numbered(state: Basket, event: BasketEvent) -> Basket:
        return replace(state, household=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    with pytest.raises(ContractError, match="5 is int"):
        check_deciding_twice(baskets_with(evolve=numbered), [ADD])


def test_deciding_twice_raises_what_decide_and_evolve_raise() -> None:
    with pytest.raises(RuntimeError, match="a bug in decide"):
        check_deciding_twice(baskets, [Add(basket_id="b", product="crash", price=ONE)])
    with pytest.raises(DecisionFailed, match="raised Undeclared, which Add does not declare"):
        check_deciding_twice(baskets, [Add(basket_id="b", product="undeclared", price=ONE)])


def test_deciding_twice_finds_an_evolve_that_is_not_pure() -> None:
    numbers = count()

    def impure(state: Basket, event: BasketEvent) -> Basket:
        return replace(state, household=str(next(numbers)))

    with pytest.raises(AssertionError, match="evolve must be pure"):
        check_deciding_twice(baskets_with(evolve=impure), [ADD])


def test_given_refuses_a_history_that_a_stream_or_an_instance_cannot_have() -> None:
    with pytest.raises(AssertionError, match=r"Added\(basket_id='c'.*is in another stream than Add\(basket_id='b'"):
        given(baskets, Added(basket_id="c", product="p", price=ONE)).when(ADD)
    with pytest.raises(AssertionError, match=r"\[Added\(.*is none of the events of decider baskets"):
        given(baskets, [ADDED]).when(ADD)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    other = PLACED.model_copy(update={type(PLACED).__leftfold__.key: "another"})
    with pytest.raises(AssertionError, match="belongs to another instance; checkout.correlate gave"):
        given(checkout, PLACED).when(other)


def test_given_names_the_event_for_which_evolve_gave_no_state() -> None:
    forgetful = baskets_with(evolve=lambda state, event: None)
    with pytest.raises(ContractError, match=r"None is NoneType.*baskets.evolve gave it for Added\("):
        given(forgetful, ADDED).when(ADD)
