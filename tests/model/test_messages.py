from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypeAlias, Union

import pytest
from pydantic import ConfigDict, ValidationError, computed_field

from leftfold import Command, ConfigurationError, DomainError, Event, Json
from leftfold.model.typing import members, missing_arms
from leftfold.ports.message_codec import exact_json
from tests.domains import shop
from tests.domains.shop import Add, Added, Basket, CheckedOut, CheckOut, Closed, Open, Opened, TooDear


def upcast(fields: Json) -> Json:
    return fields


def test_an_event_is_a_frozen_value() -> None:
    one = Added(basket_id="b", product="p", price=Decimal("1.10"))
    assert one == Added(basket_id="b", product="p", price=Decimal("1.10"))
    assert hash(one) == hash(one.model_copy())
    with pytest.raises(ValidationError, match="frozen"):
        one.product = "q"  # type: ignore[misc]


def test_readers_of_events_ignore_unknown_fields_and_commands_refuse_them() -> None:
    assert Added.model_validate({"basket_id": "b", "product": "p", "price": "1", "new": 1}).product == "p"
    with pytest.raises(ValidationError, match="Extra inputs"):
        Add.model_validate({"basket_id": "b", "product": "p", "price": "1", "new": 1})


def test_category_and_key_are_inherited_and_name_and_version_are_not() -> None:
    class Base(Event, category="things", key="id"):
        id: str

    class Kept(Base, name="ThingKept", version=2, upcasts={1: upcast}):
        pass

    class Later(Kept):
        pass

    assert Kept.__leftfold__.type == "things.ThingKept.v2"
    assert Later.__leftfold__.type == "things.Later.v1"


def test_a_command_with_a_computed_field_that_its_reader_would_refuse_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Doubled.double is a computed_field; make it a property or a field"):

        class Doubled(Command, category="things", key="id"):
            id: str

            @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
            @property
            def double(self) -> str:
                return self.id * 2

    class Ignored(Command, category="things", key="id"):
        model_config = ConfigDict(extra="ignore")

        id: str

        @computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
        @property
        def double(self) -> str:
            return self.id * 2

    assert exact_json(Ignored(id="a")) == b'{"id":"a","double":"aa"}'


def test_what_a_command_rejects_adds_to_what_it_inherits() -> None:
    assert Add.__leftfold__.rejects == (Closed, TooDear)


ID: dict[str, type] = {"id": str}
THING: dict[str, Any] = {"category": "things", "key": "id"}
NAMESAKE = type("Closed", (DomainError,), {"__annotations__": {}, "__module__": __name__})
UPCASTS = "Torn: version={} needs one upcast from each earlier"


@pytest.mark.parametrize(
    ("base", "fields", "options", "message"),
    [
        (Event, ID, {"categori": "things", "key": "id"}, "categori"),
        (Command, ID, {**THING, "reject": (Closed,)}, "reject"),
        (
            Event, {"id": str, "size": int}, {"category": "things", "key": "thing_id"},
            r"Torn: key='thing_id' is no field of it \(fields: id, size\)",
        ),
        (Event, {"id": int}, THING, "Torn: the key field 'id' must be a plain str"),
        (Event, ID, {"category": "things"}, "Torn: a category without a key; add key="),
        (Command, ID, {**THING, "rejects": (ValueError,)}, r"Torn: rejects=<class 'ValueError'> is no subclass of Dom"),
        (Command, ID, {**THING, "rejects": (Closed, NAMESAKE)}, "Torn: two errors in rejects have one name"),
        *(
            (Event, ID, {"category": category, "key": "id"}, "must be lower case")
            for category in ("Things", "9things", "thin gs", "things.events", "things/x", "Ding\u00e9")
        ),
        *(
            (Event, ID, {**THING, "version": version, "upcasts": dict.fromkeys(of, upcast)}, UPCASTS.format(version))
            for version, of in ((2, ()), (3, (1,)), (3, (2,)), (1, (1,)), (2, (1, 2)), (0, ()))
        ),
    ],
)  # fmt: skip
def test_a_wrong_class_is_refused_when_it_is_made(
    base: type, fields: dict[str, type], options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ConfigurationError), match=message):
        types.new_class(
            "Torn", (base,), options, lambda space: space.update(__annotations__=fields, __module__=__name__)
        )


def test_validation_turns_json_numbers_and_texts_into_exact_money() -> None:
    text = '{"basket_id":"b","product":"p","price":"0.10"}'
    assert Added.model_validate_json(text).price == Decimal("0.10")
    assert '"price":"0.10"' in Added.model_validate_json(text).model_dump_json()


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


class Pair(NamedTuple):
    x: int = 0
    y: int = 0


def test_a_default_of_a_field_stays_what_it_is() -> None:
    class Kept(Event, category="things", key="id"):
        id: str
        pair: Pair = Pair(1, 2)
        schema_: dict[str, str] = {"type": "datetime"}  # noqa: RUF012  # it is never written to

    kept = Kept(id="a")
    assert kept.pair == Pair(1, 2)
    assert kept.schema_ == {"type": "datetime"}


def test_times_need_a_zone_at_every_depth_whatever_their_field_is_called() -> None:
    class Timed(Event, category="things", key="id"):
        id: str
        metadata: datetime | None = None
        default: tuple[datetime, ...] = ()

    for field in ({"metadata": "2026-01-01T00:00:00"}, {"default": ["2026-01-01T00:00:00"]}):
        with pytest.raises(ValidationError, match="timezone"):
            Timed.model_validate({"id": "a", **field})


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


class Rules:
    def no_arm_for_open(self, command: Any, /, state: Basket) -> Sequence[Any]:
        match command:
            case Add() | CheckOut():
                return []
        return []


@pytest.mark.parametrize(
    ("function", "missing"),
    [
        (Rules().no_arm_for_open, ("Open",)),
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


def two(fields: Json, more: Json) -> Json:
    raise AssertionError(f"{fields} {more} is not read")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [(None, "is None, which is no function"), (two, r"two takes .*; it is called as upcasts\[1\]\(fields\)")],
)
def test_an_upcast_that_cannot_be_called_is_refused_where_it_is_decided(wrong: Any, why: str) -> None:
    class Moved(Event, category="baskets", key="basket_id", version=2, upcasts={1: wrong}):
        basket_id: str

    with pytest.raises(ConfigurationError, match=rf"decider baskets: Moved: upcasts\[1\].*{why}"):
        shop.baskets_with(events=shop.BasketEvent | Moved)
