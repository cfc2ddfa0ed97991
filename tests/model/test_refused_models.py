"""What would not be read as it is written: a definition refuses such types, and an encoding such values."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import AliasPath, BaseModel, Field, PrivateAttr, TypeAdapter

from leftfold import (
    App,
    Command,
    ConfigurationError,
    ContractError,
    Decider,
    DecisionFailed,
    Event,
    FoldView,
    memory,
)
from leftfold.model.row_codec import RowCodec
from leftfold.model.state_codec import Storage
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


@dataclass(frozen=True)
class Base:
    a: int = 0


@dataclass(frozen=True)
class Derived(Base):
    b: int = 0


class DerivedA(A):
    y: int = 0


NO_A = A()


@dataclass(frozen=True)
class Bases:
    base: Base = Base()
    a: A = NO_A
    several: tuple[Base, ...] = ()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Bases(base=Derived()), r"Derived\(.*\) is Derived, and the field holds an instance of Base itself"),
        (Bases(several=(Base(), Derived())), "is Derived, and the field holds an instance of Base itself"),
        (Bases(a=DerivedA()), "is DerivedA, and the field holds an instance of A itself"),
    ],
    ids=str,
)
def test_a_value_of_a_subclass_is_refused_since_it_would_be_read_as_its_base(value: Bases, words: str) -> None:
    storage, rows = Storage[Bases](Bases, "test"), RowCodec(Bases, (), "test")
    assert storage.decode(storage.encode(value)) == Bases(several=(Base(), Base())[: len(value.several)])
    for encode in (storage.encode_checked, rows.encode):
        encode(Bases(several=(Base(),)))
        with pytest.raises(ContractError, match=words):
            encode(value)
    assert isinstance(storage.fitting(value), ContractError)


def test_a_row_of_a_subclass_is_refused_since_it_would_be_read_as_its_base() -> None:
    with pytest.raises(ContractError, match="is Derived, and the view holds Base itself"):
        RowCodec(Base, (), "test").encode(Derived())


class Nameless(Base):
    def __repr__(self) -> str:
        raise RuntimeError


def test_a_refused_row_needs_no_repr() -> None:
    with pytest.raises(ContractError, match="Nameless, of which repr.* is Nameless, and the view holds Base itself"):
        RowCodec(Base, (), "test").encode(Nameless())


def test_a_subclass_that_is_declared_later_is_refused_too() -> None:
    @dataclass(frozen=True)
    class First:
        a: int = 0

    storage = Storage[Any](First, "test")
    assert storage.encode_checked(First()) == b'{"a":0}'

    class Second(First):
        pass

    with pytest.raises(ContractError, match="is Second, and the field holds an instance of First itself"):
        storage.encode_checked(Second())
    assert storage.encode_checked(First()) == b'{"a":0}'


@dataclass(frozen=True)
class Node:
    n: int = 0
    next: Node | None = None


@dataclass(frozen=True)
class Tree:
    kids: tuple[Tree, ...] = ()
    made: ClassVar[list[int]] = []

    def __post_init__(self) -> None:
        self.made.append(len(self.kids))


def test_a_state_that_is_wide_is_not_read_again_when_it_is_stored() -> None:
    storage, tree = Storage[Tree](Tree, "test"), Tree((Tree(),) * 150)
    assert (len(storage.encode_checked(tree)), Tree.made) == (len(storage.encode(tree)), [0, 150])


def test_a_state_that_is_too_deep_to_be_read_again_fails_the_decision() -> None:
    """There are 255 levels that pydantic writes, and 200 that it reads."""
    things = Decider(
        "things",
        commands=Do,
        events=Happened,
        state=Node,
        initial_state=Node(),
        decide=lambda command, state: [Happened(id=command.id)] * (150 if state.next is None else 1),
        evolve=lambda state, event: Node(state.n + 1, state),
    )
    with memory(App("a", deciders=[things]), now=datetime(2026, 1, 1, tzinfo=UTC)) as world:
        world.client.send(Do(id="x"))
        for _ in range(49):
            world.client.send(Do(id="x"))
        for _ in range(2):
            with pytest.raises(DecisionFailed, match=r"recursion limit exceeded .*; keep it within 200 levels"):
                world.client.send(Do(id="x"))
        assert len(world.stream("things", "x")) == 199


class Timed(BaseModel, frozen=True, ser_json_temporal="milliseconds"):
    born: date | None = None
    pause: timedelta = timedelta(0)


@dataclass(frozen=True)
class Held:
    timed: tuple[Timed, ...] = ()


class Timely(Event, category="timed", key="id", ser_json_temporal="seconds"):
    id: str
    born: date


class Around(Event, category="timed", key="id"):
    id: str
    later: Later


class Time(Command, category="timed", key="id"):
    id: str


class Later(BaseModel, frozen=True):
    held: tuple[Held, ...]


@pytest.mark.parametrize("row", [Timed, Held])
def test_times_that_are_written_as_numbers_are_refused_in_state_items_and_rows(row: Any) -> None:
    refusal = "Timed has ser_json_temporal='milliseconds', and its times could be read as others .*; remove it"
    with pytest.raises(ConfigurationError, match=f"^test: {refusal}"):
        Storage[Any](row, "test")
    with pytest.raises(ConfigurationError, match=f"^view v: row.*: {refusal}"):
        FoldView("v", events=Around, row=row, evolve=lambda row, event: row)


@pytest.mark.parametrize(("event", "setting"), [(Timely, "Timely has .*'seconds'"), (Around, "Timed has .*'millis")])
def test_times_that_are_written_as_numbers_are_refused_in_messages(event: Any, setting: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^decider timed: {event.__name__}: {setting}"):
        Decider(
            "timed",
            commands=Time,
            events=event,
            state=int,
            initial_state=0,
            decide=lambda command, state: [],
            evolve=lambda state, event: 0,
        )


def test_twin_pydantic_guesses_the_unit_of_a_number() -> None:
    written = TypeAdapter(Timed).dump_json(Timed(born=date(1970, 3, 1), pause=timedelta(minutes=5)))
    read = TypeAdapter(Timed).validate_json(written)
    assert (read.born, read.pause) == (date(2131, 7, 16), timedelta(days=3, hours=11, minutes=20))


def test_a_model_that_is_not_frozen_is_refused_with_how_to_freeze_one() -> None:
    class Loose(BaseModel):
        n: int = 0

    with pytest.raises(ConfigurationError, match=r"Loose is not frozen; write class Loose\(BaseModel, frozen=True\)"):
        Storage(Loose, "test")
