from __future__ import annotations

from decimal import Decimal

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


def test_a_misspelt_class_keyword_of_an_event_is_refused() -> None:
    with pytest.raises((TypeError, ConfigurationError), match="categori"):

        class Torn(Event, categori="things", key="id"):
            id: str


def test_a_misspelt_class_keyword_of_a_command_is_refused() -> None:
    with pytest.raises((TypeError, ConfigurationError), match="reject"):

        class Torn(Command, category="things", key="id", reject=(Closed,)):
            id: str


def test_a_key_that_is_no_field_is_refused_with_the_fields_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"Torn: key='thing_id' is no field of it \(fields: id, size\)"):

        class Torn(Event, category="things", key="thing_id"):
            id: str
            size: int


def test_a_key_that_is_no_plain_string_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Torn: the key field 'id' must be a plain str"):

        class Torn(Event, category="things", key="id"):
            id: int


def test_a_category_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Torn: a category without a key; add key="):

        class Torn(Event, category="things"):
            id: str


@pytest.mark.parametrize("category", ["Things", "9things", "thin gs", "things.events", "things/x", "Ding\u00e9"])
def test_a_category_that_is_no_part_of_a_topic_name_is_refused(category: str) -> None:
    with pytest.raises(ConfigurationError, match="must be lower case"):
        type("Torn", (Event,), {"__annotations__": {"id": str}, "__module__": __name__}, category=category, key="id")


@pytest.mark.parametrize(
    ("version", "upcasts"),
    [(2, {}), (3, {1: upcast}), (3, {2: upcast}), (1, {1: upcast}), (2, {1: upcast, 2: upcast}), (0, {})],
)
def test_a_gap_in_the_upcasts_is_refused_when_the_class_is_made(version: int, upcasts: dict[int, object]) -> None:
    with pytest.raises(ConfigurationError, match=f"Torn: version={version} needs one upcast from each earlier"):
        type(
            "Torn",
            (Event,),
            {"__annotations__": {"id": str}, "__module__": __name__},
            category="things",
            key="id",
            version=version,
            upcasts=upcasts,
        )


def test_rejecting_what_is_no_domain_error_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"Torn: rejects=<class 'ValueError'> is no subclass of DomainError"):

        class Torn(Command, category="things", key="id", rejects=(ValueError,)):
            id: str


def test_two_rejections_of_one_name_are_refused() -> None:
    namesake = type("Closed", (DomainError,), {"__annotations__": {}, "__module__": __name__})
    with pytest.raises(ConfigurationError, match="Torn: two errors in rejects have one name"):

        class Torn(Command, category="things", key="id", rejects=(Closed, namesake)):
            id: str


def test_validation_turns_json_numbers_and_texts_into_exact_money() -> None:
    text = '{"basket_id":"b","product":"p","price":"0.10"}'
    assert Added.model_validate_json(text).price == Decimal("0.10")
    assert '"price":"0.10"' in Added.model_validate_json(text).model_dump_json()
