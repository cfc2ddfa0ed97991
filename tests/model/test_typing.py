from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias, Union

import pytest

from leftfold import Command, ConfigurationError, Event
from leftfold.model.typing import members, missing_arms
from tests.domains import shop
from tests.domains.shop import Add, Added, Basket, CheckedOut, CheckOut, Open, Opened

Nested: TypeAlias = Opened | Annotated[Added, "why"]


def test_members_flattens_unions_aliases_and_annotations_in_order() -> None:
    assert members(Opened, Event, "x") == (Opened,)
    assert members(Nested | CheckedOut, Event, "x") == (Opened, Added, CheckedOut)
    assert members(Union[Opened, Added], Event, "x") == (Opened, Added)  # noqa: UP007  # the old spelling works too


def test_members_refuses_what_is_no_message_of_the_kind() -> None:
    with pytest.raises(ConfigurationError, match="decider x: .*Added.* is no subclass of Command"):
        members(Open | Added, Command, "decider x")
    with pytest.raises(ConfigurationError, match="decider x: .* is no subclass of Event"):
        members(Opened | None, Event, "decider x")


def test_members_refuses_a_class_without_a_category() -> None:
    class Loose(Event):
        id: str

    with pytest.raises(ConfigurationError, match="view x: Loose has no category"):
        members(Loose, Event, "view x")


def no_arm_for_add(command: Any, state: Basket) -> Sequence[Any]:
    match command:
        case Open():
            return []
        case CheckOut():
            return []
    return []


def wildcard(command: Any, state: Basket) -> Sequence[Any]:
    match command:
        case Open():
            return []
        case _:
            return []


def capture(command: Any, state: Basket) -> Sequence[Any]:
    match command:
        case Open():
            return []
        case other:
            return [other]


def together(command: Any, state: Basket) -> Sequence[Any]:
    match command:
        case Open() | Add():
            return []
        case shop.CheckOut() as out:
            return [out]
    return []


def by_base(command: Any, state: Basket) -> Sequence[Any]:
    match command:
        case shop._BasketCommand():
            return []
    return []


def without_match(command: Any, state: Basket) -> Sequence[Any]:
    return [command] if isinstance(command, Open) else []


def matches_something_else(command: Any, state: Basket) -> Sequence[Any]:
    match state:
        case Basket():
            return []


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        (no_arm_for_add, ("Add",)),
        (wildcard, ()),
        (capture, ()),
        (together, ()),
        (by_base, ()),
        (without_match, ()),
        (matches_something_else, ()),
        (len, ()),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_arm_is_missing_only_where_a_match_on_the_argument_leaves_one_out(
    function: Callable[..., Any], missing: tuple[str, ...]
) -> None:
    assert missing_arms(function, 0, [Open, Add, CheckOut]) == missing
