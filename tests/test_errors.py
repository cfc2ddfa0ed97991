from __future__ import annotations

import copy
import dataclasses
import pickle
from decimal import Decimal

import pytest

from leftfold import (
    Command,
    ConfigurationError,
    ConflictError,
    ContractError,
    DecisionFailed,
    DomainError,
    Fenced,
    InfrastructureError,
    LeftfoldError,
    LogGap,
    OutcomeUnknown,
    StaleViewError,
    ViewNotBuilt,
)
from leftfold.engine.processing.command_wire import nack, to_error
from leftfold.errors import is_interruption
from tests.domains.shop import Closed, TooDear

ALL: list[LeftfoldError] = [
    Closed(basket_id="b"),
    TooDear(price=Decimal("100.01")),
    ConflictError("b", 3, 4),
    OutcomeUnknown("id-1", "the broker is not reachable"),
    DecisionFailed("why"),
    ContractError("why"),
    StaleViewError("why"),
    ViewNotBuilt("why"),
    ConfigurationError("why"),
    InfrastructureError("why"),
    LogGap("why"),
    Fenced("why"),
]


@pytest.mark.parametrize("error", ALL, ids=lambda e: type(e).__name__)
def test_an_error_survives_pickling_and_copying(error: LeftfoldError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize("error", ALL, ids=lambda e: type(e).__name__)
def test_everything_raised_on_purpose_is_a_leftfold_error(error: LeftfoldError) -> None:
    with pytest.raises(LeftfoldError):
        raise error


def test_domain_errors_are_equal_by_class_and_fields() -> None:
    assert Closed(basket_id="b") == Closed(basket_id="b")
    assert hash(Closed(basket_id="b")) == hash(Closed(basket_id="b"))
    assert Closed(basket_id="b") != Closed(basket_id="c")

    class Shut(DomainError):
        basket_id: str

    assert Closed(basket_id="b") != Shut(basket_id="b")
    assert Closed(basket_id="b") != "basket b is closed"


def test_the_message_is_filled_from_the_fields_and_their_defaults() -> None:
    assert str(Closed(basket_id="{b}")) == "basket {b} is closed"
    assert str(TooDear(price=Decimal("100.10"))) == "100.10 is more than 100"
    assert repr(Closed(basket_id="b")) == "Closed(basket_id='b')"


class Late(DomainError, message="{days} days late, {weeks} weeks"):
    days: int
    weeks: int = dataclasses.field(init=False)
    kind: str = dataclasses.field(init=False, default="late")

    def __post_init__(self) -> None:
        self.weeks = self.days // 7


class Bring(Command, category="things", key="id", rejects=(Late,)):
    id: str


def test_a_field_that_an_error_makes_itself_is_made_again_where_the_error_is_copied_or_received() -> None:
    late = Late(days=15)
    for again in (pickle.loads(pickle.dumps(late)), copy.copy(late), to_error(nack(late), Bring)):
        assert again == late
        assert isinstance(again, Late)
        assert (str(again), again.weeks) == ("15 days late, 2 weeks", 2)


def test_an_error_without_a_message_says_its_name() -> None:
    class Sleepy(DomainError):
        pass

    assert str(Sleepy()) == "Sleepy"


def test_a_message_that_names_no_field_is_refused_with_the_class() -> None:
    with pytest.raises(ConfigurationError, match=r"Torn: the message names \['basket'\], which are no fields"):

        class Torn(DomainError, message="basket {basket} is torn"):
            basket_id: str


def test_a_field_that_is_missing_or_unknown_is_refused() -> None:
    with pytest.raises(TypeError, match="basket_id"):
        Closed()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="basket"):
        Closed(basket="b")  # type: ignore[call-arg]


def test_a_misspelt_class_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="mesage"):

        class Torn(DomainError, mesage="torn"):  # type: ignore[call-arg]
            pass


def test_conflicts_and_unknown_outcomes_carry_what_to_do_next() -> None:
    assert "'b' is at version 4, not at 3" in str(ConflictError("b", 3, 4))
    assert "send it again with id='id-1'" in str(OutcomeUnknown("id-1"))


def test_exit_codes_are_those_of_the_tree() -> None:
    codes = {type(error).__name__: error.exit_code for error in ALL}
    assert {n: c for n, c in codes.items() if c != 1} == {
        "ConfigurationError": 78,
        "InfrastructureError": 69,
        "LogGap": 69,
        "Fenced": 75,
    }


def test_an_error_that_is_its_own_cause_is_no_interruption() -> None:
    error, other = InfrastructureError("why"), InfrastructureError("other")
    error.__cause__ = error
    assert not is_interruption(error)
    error.__cause__, other.__cause__ = other, error
    assert not is_interruption(error)
    other.__cause__ = KeyboardInterrupt()
    assert is_interruption(error)
