"""What `simulate` sees in an App of a user: its reactions, failing code, a check across deciders, timers far ahead."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from leftfold import App, Command, ConfigurationError, Delivery, Event, FoldView, Reaction, Timer
from leftfold.testing.simulation import simulate
from tests.domains.trade import Checkout, Drop, Input, Paid, Pay, Place, Placed, Sends, checkout_with
from tests.domains.trade import app as trade

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def two_orders(chance: random.Random) -> Sequence[Sequence[Command]]:
    return [[Place(order=name, product="p", at=NOON), Pay(order=name)] for name in ("o1", "o2")]


def trading(**other: Any) -> App:
    return App("trade", partitions=2, deciders=trade.deciders, **other)


def wrong(app: App, **options: Any) -> tuple[str, ...]:
    """What is broken in the first of a few schedules that breaks a promise."""
    report = simulate(app, commands=two_orders, schedules=2, **options)
    return report.failure.wrong if report.failure else ()


def reacting(act: Callable[[Any, Delivery], None], attempts: int = 1) -> Reaction[Any]:
    return Reaction("receipts", events=Placed, act=act, attempts=attempts, backoff=0.1, since="start")


def test_reactions_call_nothing_outside() -> None:
    called: list[Event] = []
    assert not wrong(trading(reactions=[reacting(lambda event, delivery: called.append(event))]))
    assert not called


def test_a_test_gives_what_a_reaction_calls() -> None:
    real: list[Event] = []
    called: list[Event] = []
    receipts = reacting(lambda event, delivery: real.append(event))
    assert not wrong(trading(reactions=[receipts]), acts={receipts: lambda event, delivery: called.append(event)})
    assert ({event.order for event in called if isinstance(event, Placed)}, real) == ({"o1", "o2"}, [])
    with pytest.raises(ConfigurationError, match="app trade has no reaction 'receipts'; add it"):
        wrong(trading(), acts={receipts: receipts.act})


def _fails(*_: Any) -> Any:
    raise KeyError("the user's bug")


def test_a_reaction_that_always_fails_breaks_a_promise() -> None:
    receipts = reacting(_fails, attempts=2)
    (found, *_) = wrong(trading(reactions=[receipts]), acts={receipts: receipts.act})
    assert found.startswith("dead-lettered by receipts: o")
    assert "KeyError" in found
    assert "the user's bug" in found


def _reacts(given: Input, state: Checkout) -> Sequence[Sends]:
    return _fails() if isinstance(given, Paid) else []


def test_a_process_that_fails_on_an_input_breaks_a_promise() -> None:
    (found, *_) = wrong(trading(processes=[checkout_with(react=_reacts)]))
    assert found.startswith("dead-lettered by checkout: o")
    assert "KeyError" in found


def test_a_fold_that_fails_breaks_a_promise() -> None:
    view = FoldView("bills", events=Placed, row=Checkout, evolve=_fails)
    found = sorted(wrong(trading(views=[view])))
    assert [one.split(": KeyError")[0] for one in found] == [f"parked: row {key} of view bills" for key in ("o1", "o2")]


def test_a_check_is_given_the_events_of_all_deciders_at_once() -> None:
    seen: list[dict[str, set[type[Event]]]] = []

    def never_paid(streams: Mapping[str, Sequence[Event]]) -> Iterable[str]:
        seen.append({key: {type(event) for event in events} for key, events in streams.items()})
        yield from (f"{key} is paid" for key, classes in seen[-1].items() if classes == {Placed, Paid})

    assert sorted(wrong(trading(), check=never_paid)) == ["o1 is paid", "o2 is paid"]
    assert seen[0] == {"o1": {Placed, Paid}, "o2": {Placed, Paid}}


def _reminded(given: Input, state: Checkout) -> Sequence[Timer[Sends]]:
    if not isinstance(given, Placed):
        return []
    return [Timer(name="remind", at=given.at.replace(year=2099), command=Drop(order=given.order, why="late"))]


def test_a_timer_far_ahead_may_be_left() -> None:
    assert not wrong(trading(processes=[checkout_with(react=_reminded)]))


def test_what_would_test_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="schedules=0 would test nothing"):
        simulate(trade, schedules=0)
    loads = iter([two_orders(random.Random(0))])
    with pytest.raises(ConfigurationError, match="commands= gave no command"):
        simulate(trade, commands=lambda chance: next(loads, []), schedules=2)


def test_a_load_that_is_empty_for_some_seeds_is_drawn_again() -> None:
    sizes: list[int] = []

    def some(chance: random.Random) -> Sequence[Sequence[Command]]:
        sizes.append(chance.randint(0, 1))
        return two_orders(chance)[: sizes[-1]]

    assert simulate(trade, commands=some, schedules=3).failure is None
    assert (sizes.count(1), 0 in sizes) == (3, True)


@pytest.mark.parametrize(
    ("app", "missing"),
    [
        (App("late", processes=[checkout_with()]), "checkout of app late needs category orders"),
        (App("late", deciders=trade.deciders[1:], reactions=[reacting(_fails)]), "receipts .* needs .* orders"),
        (App("late", deciders=trade.deciders[:1], processes=[checkout_with()]), "checkout .* needs .* payments"),
    ],
)
def test_an_app_that_waits_for_another_is_refused(app: App, missing: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{missing}, which no decider here decides"):
        simulate(app, schedules=1)


def test_an_app_whose_code_does_not_fail_keeps_every_promise() -> None:
    assert not wrong(trading(processes=[checkout_with()]))
