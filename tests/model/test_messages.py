from __future__ import annotations

import types
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from leftfold import Command, ConfigurationError, DomainError, Event, Json
from tests.domains.shop import Add, Added, Closed, TooDear


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
