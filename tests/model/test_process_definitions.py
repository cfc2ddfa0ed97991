from __future__ import annotations

from typing import Any

import pytest

from leftfold import App, Command, ConfigurationError, Event, Rejected, memory
from leftfold.compatibility import Lock, compare, lock_of
from tests.domains.trade import (
    NOW,
    Checkout,
    Confirm,
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
    react,
    stock,
)


class Stray(Event, category="orders", key="order"):
    order: str


class Unknown(Command, category="orders", key="order"):
    order: str


def no_arm_for_paid(given: Any, state: Checkout) -> Any:
    match given:
        case Placed() | Rejected():
            return []


def no_arm_for_rejected(state: Checkout, given: Any) -> Any:
    match given:
        case Placed() | Paid():
            return state


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": "Checkout"}, "a name is lower case"),
    ({"version": 0}, "version=0 must be 1 or more"),
    ({"inputs": Rejected[Reserve]}, "no event is among its inputs"),
    ({"inputs": Placed | Rejected}, r"Rejected without its command; write Rejected\[Reserve\]"),
    ({"inputs": Placed | Rejected[Place]}, r"it never sends Place; add it to sends="),
    ({"inputs": Placed | Rejected[Confirm]}, "Confirm declares no errors; add them to its rejects="),
    ({"inputs": Placed | int}, "int'> is no subclass of Event"),
    ({"sends": Placed}, "is no subclass of Command"),
    ({"state": object, "initial_state": object()}, "process checkout: state"),
    ({"inputs": Placed | Paid | Rejected[Reserve], "react": no_arm_for_paid}, r"react.* has no arm for Paid"),
    ({"inputs": Placed | Paid | Rejected[Reserve], "evolve": no_arm_for_rejected}, "has no arm for Rejected"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_a_wrong_definition_names_the_class_and_the_mend(wrong: dict[str, Any], message: str) -> None:
    if "react" in wrong:
        message = message.replace("react", "no_arm_for_paid")
    with pytest.raises(ConfigurationError, match=message):
        checkout_with(**wrong)


def test_an_app_names_each_decider_and_process_once_and_knows_what_they_share() -> None:
    stray = checkout_with(
        inputs=Input | Stray,
        correlate=lambda given: given.order,
        react=lambda given, state: [],
        evolve=lambda state, given: state,
    )
    with pytest.raises(ConfigurationError, match="two deciders or processes are named 'orders'"):
        App("trade", deciders=[orders], processes=[checkout_with(name="orders")])
    with pytest.raises(ConfigurationError, match="process checkout reads Stray, which decider orders never writes"):
        App("trade", deciders=[orders], processes=[stray])
    with pytest.raises(ConfigurationError, match="sends Unknown, which decider orders does not decide"):
        App("trade", deciders=[orders], processes=[checkout_with(sends=Sends | Unknown)])
    app = App("trade", deciders=[orders], processes=[checkout])
    assert app.process("checkout") is checkout
    with pytest.raises(ConfigurationError, match="has no process 'chekout'; it has: checkout"):
        app.process("chekout")


def test_a_world_decides_everything_that_its_processes_send() -> None:
    with (
        pytest.raises(ConfigurationError, match="sends Re.*no decider in this world decides.*the decider of stock"),
        memory(App("trade", deciders=[orders, payments], processes=[checkout]), now=NOW),
    ):
        pass
    with memory(App("trade", deciders=[orders, stock], processes=[checkout]), now=NOW) as world:
        world.client.send(Place(order="o", product="p", at=NOW))
        with pytest.raises(ConfigurationError, match="decides no Pay"):
            world.client.send(Pay(order="o"))


def test_a_process_says_what_it_listens_to() -> None:
    assert checkout.categories == ("orders", "payments", "stock")
    assert checkout.hears(Reserve)
    assert not checkout.hears(Drop)
    assert repr(checkout) == "Process('checkout', version=1)"


def test_the_lock_notices_a_process_that_means_something_else() -> None:
    def patient(given: Any, state: Checkout) -> Any:
        return react(given, state) if isinstance(given, Placed) else []

    before = lock_of(App("trade", deciders=[orders], processes=[checkout]))
    assert Lock.from_json(before.to_json()) == before
    assert compare(before, lock_of(App("trade", deciders=[orders], processes=[checkout]))) == []
    (finding,) = compare(before, lock_of(App("trade", deciders=[orders], processes=[checkout_with(react=patient)])))
    assert str(finding).startswith("process checkout: react or evolve changed since leftfold.lock; raise version= to 2")
    raised = compare(
        before, lock_of(App("trade", deciders=[orders], processes=[checkout_with(react=patient, version=2)]))
    )
    assert [str(one) for one in raised if one.wrong] == []
