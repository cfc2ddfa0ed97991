"""What a first process gets wrong: told where it is written, or in the dead letter, never found out in silence."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from leftfold import (
    App,
    Cancel,
    Command,
    ConfigurationError,
    Decider,
    Delivery,
    Event,
    FoldView,
    Process,
    Reaction,
    SpreadView,
    Timer,
    memory,
)
from leftfold.testing import given

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Rung(Event, category="bells", key="bell"):
    bell: str


class Mended(Event, category="bells", key="bell"):
    bell: str


class Ring(Command, category="bells", key="bell"):
    bell: str


class Hush(Command, category="bells", key="bell"):
    bell: str


bells: Decider[Any, Any, Any] = Decider(
    "bells",
    commands=Ring | Hush,
    events=Rung,
    state=int,
    initial_state=0,
    decide=lambda command, state: [Rung(bell=command.bell)] if isinstance(command, Ring) else [],
    evolve=lambda state, event: state + 1,
)


@dataclass(frozen=True)
class Row:
    times: int


def wrong(given: object) -> Any:
    """What no type checker would let through."""
    return given


def process(**changed: Any) -> Process[Any, Any, Any]:
    said: dict[str, Any] = {
        "inputs": Rung,
        "sends": Hush,
        "state": int,
        "initial_state": 0,
        "correlate": lambda event: event.bell,
        "react": lambda event, state: [Hush(bell=event.bell)],
        "evolve": lambda state, event: state + 1,
    }
    return Process("quiet", **(said | changed))


def sending(out: object) -> Process[Any, Any, Any]:
    return process(react=lambda event, state: out)


async def later(*given: object) -> None:
    raise AssertionError(f"{given} is not awaited")


class Called:
    async def __call__(self, event: Rung, delivery: Delivery) -> None:
        raise AssertionError(f"{event} {delivery} is not awaited")


SLIPS: dict[str, tuple[Callable[[], object], str]] = {
    "async react": (
        lambda: process(react=wrong(later)),
        "process quiet: react is async, and the engine does not await it",
    ),
    "async correlate": (lambda: process(correlate=later), "process quiet: correlate is async"),
    "react of one argument": (
        lambda: process(react=lambda event: []),
        r"process quiet: react: <lambda> takes \(event\); it is called as react\(input, state\)",
    ),
    "evolve that is none": (lambda: process(evolve=None), "process quiet: evolve is None, which is no function"),
    "a list of inputs": (lambda: process(inputs=[Rung]), r"no subclass of Event; write a union, as in A \| B"),
    "a state that begins otherwise": (lambda: process(initial_state="0"), "initial_state= and state= must agree"),
    "a state that begins with nothing": (lambda: process(initial_state=None), "initial_state= and state= must agree"),
    "async act": (lambda: Reaction("tell", events=Rung, act=wrong(later)), "reaction tell: act is async"),
    "an object with async call": (lambda: Reaction("tell", events=Rung, act=wrong(Called())), "act is async"),
    "act without delivery": (lambda: Reaction("tell", events=Rung, act=wrong(print_one)), "takes .*called as act"),
    "one that gives up": (
        lambda: Reaction("tell", events=Rung, act=lambda event, delivery: None, gives_up=wrong(OSError)),
        r"gives_up=OSError is no tuple; write gives_up=\(OSError,\)",
    ),
    "a view folded later": (
        lambda: FoldView("rung", events=Rung, row=Row, evolve=wrong(later)),
        "view rung: evolve is async",
    ),
    "a spread of two": (
        lambda: SpreadView("rung", events=Rung, row=Row, each=wrong(lambda a, b: []), evolve=wrong(later)),
        r"view rung: each: <lambda> takes \(a, b\); it is called as each\(event\)",
    ),
    "a process among deciders": (
        lambda: App("a", deciders=[wrong(process())]),
        r"app a: deciders= holds Process\('quiet', version=1\), which is no Decider",
    ),
}


def print_one(event: Rung) -> None:
    raise AssertionError(f"never called with {event}")


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_told_where_it_is_written(slip: str) -> None:
    make, message = SLIPS[slip]
    with pytest.raises(ConfigurationError, match=message):
        make()


WRONG: dict[str, tuple[object, str]] = {
    "nothing": (None, "react gave None; give a list of what to send"),
    "one command": (Hush(bell="b"), r"react gave Hush\(bell='b'\); give a list"),
    "a class": ([Cancel], r"that is the class itself; write Cancel\(\.\.\.\)"),
    "an event": ([Rung(bell="b")], "a process gives commands, Timer, Cancel and Finished only"),
    "a command it may not send": ([Ring(bell="b")], "it may not send Ring; add the class to sends="),
    "no key": ([Hush(bell="")], "its key bell='' is none"),
    "the key that is reserved": ([Hush(bell="@")], "its key bell='@' is none"),
    "a timer without key": ([Timer(name="t", at=NOON, command=Hush(bell=""))], "its key bell='' is none"),
    "a timer without zone": (
        [Timer(name="t", at=NOON.replace(tzinfo=None), command=Hush(bell="b"))],
        "no time zone; take it from an event",
    ),
    "a timer of some time": ([Timer(name="t", at=wrong("noon"), command=Hush(bell="b"))], "is a datetime, not 'noon'"),
    "a timer called 5": ([Timer(name=wrong(5), at=NOON, command=Hush(bell="b"))], "a timer's name is a text"),
    "a cancel called 5": ([Cancel(wrong(5))], "a timer's name is a text"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_sent_is_dead_lettered_with_the_reason(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    """A timer whose name was no text was due for ever: the world, as a worker, never came to an end."""
    out, message = WRONG[wrong]
    with memory(App("a", deciders=[bells], processes=[sending(out)]), now=NOON) as world:
        world.client.send(Ring(bell="b"))
        world.advance(timedelta(hours=1))
        (dead,) = world.dead("quiet")
        assert not world.timers.list()
    (reason,) = [value.decode() for name, value in dead.headers if name == "dead_reason"]
    assert re.search(message, reason), reason
    assert [record.getMessage() for record in caplog.records] == [f"quiet: dead-lettered: {reason}"]


def test_a_state_of_another_type_is_never_stored() -> None:
    turned = process(evolve=lambda state, event: "rung")
    with memory(App("a", deciders=[bells], processes=[turned]), now=NOON) as world:
        world.client.send(Ring(bell="b"))
        world.client.send(Ring(bell="b"))
        assert len(world.dead("quiet")) == 2, "the second one met a state that it could read"


def test_a_coroutine_that_an_act_gives_is_a_failed_try(caplog: pytest.LogCaptureFixture) -> None:
    def act(event: Rung, delivery: Delivery) -> Coroutine[Any, Any, None]:
        return later(event, delivery)

    tell = Reaction("tell", events=Rung, act=wrong(act), attempts=2)
    with memory(App("a", deciders=[bells], reactions=[tell]), now=NOON, acts={tell: tell.act}) as world:
        world.client.send(Ring(bell="b"))
        assert [delivery.attempt for _, delivery in world.deliveries(tell)] == [1, 2]
        assert len(world.dead("tell")) == 1
    assert "tell: parked after 2 tries: TypeError" in caplog.text


def test_a_sentence_over_an_input_that_is_none_fails() -> None:
    with pytest.raises(AssertionError, match=r"Mended\(bell='b'\) is no input of process quiet; these are: Rung"):
        given(process()).when(Mended(bell="b"))


def test_the_clock_of_a_world_never_goes_back() -> None:
    with memory(App("a", deciders=[bells]), now=NOON) as world, pytest.raises(ValueError, match="turn the clock back"):
        world.advance(timedelta(seconds=-1))
