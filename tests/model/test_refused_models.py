"""Models whose fields would not be read as they are written: a definition refuses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import AliasPath, Field, PrivateAttr

from leftfold import Command, ConfigurationError, Decider, Event, FoldView
from leftfold.model.rows import RowCodec
from leftfold.model.state_encoding import Storage
from tests.model.test_stored_models import A, Firm, Whole


class ByName(Firm, validate_by_name=True):
    x: int = Field(0, alias="ex")


class ByOlderName(Firm, populate_by_name=True):
    x: int = Field(0, validation_alias="ex")


class ByAlias(Firm, serialize_by_alias=True):
    x: int = Field(0, alias="ex")


@pytest.mark.parametrize(
    ("type_", "stored"), [(ByName, b'[{"x":1}]'), (ByOlderName, b'[{"x":1}]'), (ByAlias, b'[{"ex":1}]')], ids=str
)
def test_an_alias_that_is_read_as_it_is_written_may_be_used(type_: Any, stored: bytes) -> None:
    storage, value = Storage[Any](tuple[type_, ...], "test"), (type_(ex=1),)
    assert storage.encode_checked(value) == stored
    assert storage.decode(stored) == value


class Aliased(Firm):
    x: int = Field(0, alias="ex")


class Exchanged(Firm, validate_by_name=True):
    x: int = Field(0, alias="y")
    y: int = Field(0, alias="x")


class OneWay(Firm, serialize_by_alias=True):
    x: int = Field(0, serialization_alias="ex")


class Deep(Firm):
    x: int = Field(0, validation_alias=AliasPath("ex", 0))


class Hidden(Firm):
    x: int = Field(0, exclude=True)


class Loose(Firm, extra="allow"):
    x: int = 0


class Private(Firm):
    x: int = 0
    _y: int = PrivateAttr(0)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._y = 1


@dataclass(frozen=True)
class AliasedDataclass:
    x: Annotated[int, Field(alias="ex")] = 0


class Outer(Firm):
    inner: tuple[Aliased, ...] = ()


class Roots(Firm):
    one: Whole | A


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (Aliased, "Aliased.x is not read by the name .*; set validate_by_name=True"),
        (Outer, "Aliased.x is not read by the name that it is written by"),
        (AliasedDataclass, "AliasedDataclass.x is not read by the name that it is written by"),
        (Exchanged, "Exchanged.x is not read by the name that it is written by"),
        (OneWay, "OneWay.x is not read by the name .*; give it one alias="),
        (Deep, "Deep.x is not read by the name that it is written by"),
        (Hidden, "Hidden.x is excluded from what is written.*; remove exclude="),
        (Loose, "Loose has fields without a type; set extra='ignore'"),
        (Private, "Private is read without its __init__.*; set _y in model_post_init"),
        (Roots, "Roots.one: a RootModel has no place for the tag"),
    ],
    ids=str,
)
def test_a_model_that_would_not_be_read_as_it_is_written_is_refused(type_: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"test: .*{message}"):
        Storage(tuple[type_, ...], "test")


@pytest.mark.parametrize("row", [Aliased, Exchanged, Deep, ByAlias])
def test_a_row_that_its_class_does_not_take_by_name_is_refused(row: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"test: row: {row.__name__}.x is not read .*validate_by_name"):
        RowCodec(row, (), "test")


@pytest.mark.parametrize("row", [ByName, Hidden, OneWay, Loose, Private], ids=str)
def test_the_fields_of_a_row_itself_are_stored_by_name(row: Any) -> None:
    codec, value = RowCodec(row, (), "test"), row()
    assert codec.columns == (b"x",)
    assert codec.decode(dict(zip(codec.columns, codec.encode(value), strict=True))) == value


class Happened(Event, category="things", key="id"):
    id: str


class Do(Command, category="things", key="id"):
    id: str


def test_a_view_and_a_decider_name_the_class_and_the_field_when_they_are_declared() -> None:
    def fold(row: Outer | None, event: Happened) -> Outer:
        return row or Outer()

    def decide(command: Do, state: Outer) -> list[Happened]:
        return []

    with pytest.raises(ConfigurationError, match=r"view v: row Outer.inner: Aliased.x is not read"):
        FoldView("v", events=Happened, row=Outer, evolve=fold)
    with pytest.raises(ConfigurationError, match=r"decider things: state: Aliased.x is not read"):
        Decider("things", commands=Do, events=Happened, state=Outer, initial_state=Outer(), decide=decide, evolve=fold)
