"""Fields of rows that hold other fields, or None: their values are checked at every depth before they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import cached_property
from types import GenericAlias
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    field_serializer,
    field_validator,
    model_validator,
)

from leftfold import ContractError
from leftfold.model.row_codec import RowCodec
from leftfold.model.state_codec import Storage
from tests.domains.values import Circle, Color, Everything, Group, Label, Size, Square, everything

NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001
AWARE = NAIVE.replace(tzinfo=UTC)


class Note(BaseModel):
    model_config = ConfigDict(frozen=True)
    at: datetime | None = None
    price: Decimal = Decimal(0)
    shape: Circle | Square | None = None


NO_NOTE = Note()


class Path(RootModel):  # type: ignore[type-arg]  # with an argument its root has no type here
    model_config = ConfigDict(frozen=True)
    root: tuple[int, ...]


@dataclass(frozen=True)
class Line:
    count: int = 1
    price: Decimal = Decimal(0)
    at: datetime | None = None
    note: Note = NO_NOTE


@dataclass(frozen=True)
class Nested:
    number: int | None = None
    truth: bool | None = None
    text: str | None = None
    price: Decimal | None = None
    at: datetime | None = None
    day: date | None = None
    size: Size | None = None
    kind: Literal["a", "b"] | None = None
    pair: tuple[int, str] = (0, "")
    prices: tuple[Decimal, ...] = ()
    times: frozenset[datetime] = frozenset()
    by_name: Mapping[str, Decimal] = field(default_factory=dict)
    until: Mapping[datetime, int] = field(default_factory=dict)
    line: Line | None = None
    lines: tuple[Line, ...] = ()
    shape: Circle | Square | Group | None = None
    label: Label | None = None
    path: Path | None = None


NOTHING = Nested()
codec = RowCodec(Nested, ("number",), "test")


def test_a_row_of_the_right_types_is_stored() -> None:
    line = Line(2, Decimal("1.5"), AWARE, Note(at=AWARE, shape=Circle(Decimal(1))))
    row = Nested(
        1, True, "x", Decimal(1), AWARE, AWARE.date(), Size.SMALL, "a", (1, "x"), (Decimal(1),), frozenset({AWARE}),
        {"x": Decimal(1)}, {AWARE: 1}, line, (line, line), Group((Square(Decimal(1), Color.RED),)),
        Label(text="x", size=Size.LARGE), Path((1, 2)),
    )  # fmt: skip
    for one in (row, NOTHING):
        assert codec.decode(dict(zip(codec.columns, codec.encode(one), strict=True))) == one


NO_ZONE = "has no time zone; rows"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"number": "1"}, "'1' is str, and the field holds a valid integer"),
        ({"number": 1.5}, "1.5 is float, and the field holds a valid integer"),
        ({"number": True}, "True is bool, and the field holds a valid integer"),
        ({"truth": 1}, "1 is int, and the field holds a valid boolean"),
        ({"text": 1}, "1 is int, and the field holds a valid string"),
        ({"price": Decimal("NaN")}, "is Decimal, and the field holds a finite number"),
        ({"price": Decimal("-Infinity")}, "is Decimal, and the field holds a finite number"),
        ({"price": float("nan")}, "nan is float, and the field holds an instance of Decimal"),
        ({"price": True}, "True is bool, and the field holds an instance of Decimal"),
        ({"prices": (1, "2")}, "'2' is str, and the field holds an instance of Decimal"),
        ({"at": NAIVE}, NO_ZONE),
        ({"at": AWARE.date()}, "is date, and the field holds a valid datetime"),
        ({"at": "2026-01-01T00:00:00Z"}, "is str, and the field holds a valid datetime"),
        ({"day": AWARE}, "is datetime, and the field holds a valid date"),
        ({"size": "s"}, "'s' is str, and the field holds an instance of Size"),
        ({"kind": "c"}, "'c' is str, and the field holds 'a' or 'b'"),
        ({"pair": (1,)}, "Field required"),
        ({"pair": (1, None)}, "None is NoneType, and the field holds a valid string"),
        ({"pair": [1, "x"]}, "is list, and the field holds a valid tuple"),
        ({"prices": (Decimal(1), Decimal("sNaN"))}, "is Decimal, and the field holds a finite number"),
        ({"times": frozenset({NAIVE})}, NO_ZONE),
        ({"times": {AWARE}}, "is set, and the field holds a valid frozenset"),
        ({"by_name": {"x": 1.5}}, "1.5 is float, and the field holds an instance of Decimal"),
        ({"by_name": {1: Decimal(1)}}, "1 is int, and the field holds a valid string"),
        ({"until": {NAIVE: 1}}, NO_ZONE),
        ({"line": Line(True)}, "True is bool, and the field holds a valid integer"),
        ({"line": Line(price=Decimal("NaN"))}, "is Decimal, and the field holds a finite number"),
        ({"line": Line(note=Note(at=NAIVE))}, NO_ZONE),
        ({"line": Circle(Decimal(1))}, "is Circle, and the field holds an instance of Line"),
        ({"lines": (Line(), Line(at=NAIVE))}, NO_ZONE),
        ({"lines": (Line(), None)}, "None is NoneType, and the field holds an instance of Line"),
        ({"lines": (Line(note=Note.model_construct(price="1")),)}, "'1' is str, and the field holds an instance of De"),
        ({"lines": (Line(note=Note(shape=Circle(Decimal("NaN")))),)}, "is Decimal, and the field holds a finite"),
        ({"shape": Group((Group((Circle(1.5),)),))}, "1.5 is float, and the field holds an instance of Decimal"),  # type: ignore[arg-type]
        ({"shape": Line()}, "is Line, and the field holds 'Circle', 'Square', 'Group'"),
        ({"label": Line()}, "is Line, and the field holds an instance of Label"),
        ({"path": Path.model_construct((1, "2"))}, "'2' is str, and the field holds a valid integer"),
        ({"text": "\ud800"}, "cannot be stored|Input should be a valid string"),
    ],
    ids=lambda value: repr(value) if isinstance(value, dict) else "",
)
def test_a_row_with_a_wrong_value_at_any_depth_is_not_stored(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ContractError, match=f"test: row Nested.{next(iter(values))}: .*({words})"):
        codec.encode(replace(NOTHING, **values))


@given(everything)
def test_what_is_checked_has_the_bytes_that_it_had_without_a_check(row: Everything) -> None:
    storage: Storage[Everything] = Storage(Everything, "test")
    assert storage.encode_checked(row) == storage.encode(row)
    again = storage.decode(storage.encode(row))
    assert storage.encode_checked(again) == storage.encode(row), "a row that was read can be stored again"


@dataclass(frozen=True)
class Kin:
    """A record in sets of its own kind."""

    name: str
    kin: frozenset[Kin] = frozenset()
    price: Decimal = Decimal(0)


@pytest.mark.parametrize(
    ("type_", "value", "wrong"),
    [
        (frozenset[Kin], {Kin("a"), Kin("b", frozenset({Kin("c")}))}, Kin("d", frozenset({Kin("e", price=1.5)}))),  # type: ignore[arg-type]
        (frozenset[Kin | None], {Kin("a"), None}, Label(text="x")),
        (frozenset[tuple[Kin, int]], {(Kin("a"), 1)}, (Kin("a"), "1")),
        (frozenset[frozenset[Line]], {frozenset({Line()})}, frozenset({Line(at=NAIVE)})),
        (frozenset[Circle | Square], {Circle(Decimal(1)), Square(Decimal(1), Color.RED)}, Circle(1.5)),  # type: ignore[arg-type]
        (frozenset[Note], {Note(), Note(at=AWARE)}, Note.model_construct(at=NAIVE)),
    ],
    ids=lambda value: str(value) if isinstance(value, GenericAlias) else "",
)
def test_a_set_of_records_is_stored_and_looked_into(type_: Any, value: set[object], wrong: object) -> None:
    storage: Storage[Any] = Storage(type_, "test")
    whole = frozenset(value)
    assert storage.decode(storage.encode_checked(whole)) == whole == storage.fitting(whole)
    with pytest.raises(ContractError, match=r"and the field holds|has no time zone; rows"):
        storage.encode_checked(whole | {wrong})


@pytest.mark.parametrize(
    ("type_", "number", "decimal"),
    [
        (Decimal, 1, Decimal(1)),
        (Decimal | None, sum([]), Decimal(0)),
        (tuple[Decimal, ...], (10**30, Decimal("1.5")), (Decimal(10**30), Decimal("1.5"))),
        (frozenset[Decimal], frozenset({2, 1}), frozenset({Decimal(1), Decimal(2)})),
        (Mapping[str, Decimal], {"x": -1}, {"x": Decimal(-1)}),
        (Line, Line(price=2, note=Note.model_construct(price=3)), Line(price=Decimal(2), note=Note(price=Decimal(3)))),  # type: ignore[arg-type]
        (Annotated[Decimal, Field(le=10)] | None, 10, Decimal(10)),
    ],
    ids=lambda value: str(value) if isinstance(value, GenericAlias) else "",
)
def test_an_int_is_stored_as_the_decimal_that_it_equals(type_: Any, number: object, decimal: object) -> None:
    storage: Storage[Any] = Storage(type_, "test")
    bounded: Storage[Any] = Storage(Annotated[Decimal, Field(le=10)] | None, "test")
    stored = storage.encode_checked(number)
    assert stored == storage.encode_checked(decimal), "or checksums would tell equal rows apart"
    assert repr(storage.decode(stored)) == repr(decimal)
    with pytest.raises(ContractError, match="11 is int"):
        bounded.encode_checked(11)


ran: list[str] = []


class Careful(BaseModel):
    """Its validators count, and refuse what they have made."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    amount: int

    @field_validator("amount", mode="before")
    @classmethod
    def parsed(cls, amount: object) -> int:
        ran.append("before")
        return int(str(amount).removesuffix(" EUR")) + 1

    @model_validator(mode="after")
    def checked(self) -> Careful:
        ran.append("after")
        return self

    @cached_property
    def double(self) -> int:
        return 2 * self.amount


@dataclass(frozen=True)
class Posted:
    amount: Careful
    posted: Posted | None = None

    def __post_init__(self) -> None:
        ran.append("post")


def test_a_check_runs_no_code_of_the_classes_that_it_looks_into() -> None:
    storage: Storage[Posted | None] = Storage(Posted | None, "test")
    value = Posted(Careful(amount="1 EUR"), Posted(Careful(amount="2 EUR")))  # type: ignore[arg-type]
    assert value.amount.double == 4
    ran.clear()
    assert storage.encode_checked(value) == b'{"amount":{"amount":2},"posted":{"amount":{"amount":3},"posted":null}}'
    assert ran == []


@pytest.mark.parametrize(
    ("type_", "stored", "value"),
    [
        (int | None, b"1.0", 1),
        (int | None, b"true", 1),
        (Decimal | None, b"1.5", Decimal("1.5")),
        (Note | None, b'{"at":"2026-01-01T00:00:00","price":1}', Note(at=NAIVE, price=Decimal(1))),
        (datetime | None, b'"2026-01-01T03:00:00+03:00"', AWARE.astimezone(timezone(timedelta(hours=3)))),
    ],
    ids=str,
)
def test_what_was_stored_without_a_check_is_still_read(type_: Any, stored: bytes, value: object) -> None:
    assert Storage(type_, "test").decode(stored) == value


@pytest.mark.parametrize("state", [(1, None), (True, AWARE), (1, NAIVE)], ids=repr)
def test_the_state_of_a_process_is_checked_as_rows_are(state: object) -> None:
    storage: Storage[Any] = Storage(tuple[int, datetime], "test", canonical=False)
    storage.check((1, AWARE))
    with pytest.raises(ContractError, match=r"test: .* (and the field holds|has no time zone; rows and state)"):
        storage.check(state)


@pytest.mark.parametrize("value", ["NaN", "sNaN", "-Infinity"])
def test_a_number_that_is_not_finite_is_no_field_of_a_row(value: str) -> None:
    @dataclass(frozen=True)
    class Priced:
        price: Decimal

    codec = RowCodec(Priced, (), "test")
    with pytest.raises(ContractError, match=rf"Decimal\('{value}'\) is Decimal, and the field holds a finite number"):
        codec.encode(Priced(Decimal(value)))
    assert codec.decode({b"price": value.encode()}).price.is_finite() is False, "an older row is read"


class Kind(Enum):
    NEW = "new"
    OLD = "old"


class Made(BaseModel):
    """Its fields hold other types than they are declared with, as its settings and validators make them."""

    model_config = ConfigDict(frozen=True, use_enum_values=True)
    kind: Kind = Kind.NEW
    kinds: frozenset[Kind] = frozenset()
    before: Kind | None = None
    words: tuple[str, ...] = ()
    plain: int = 0
    at: datetime = AWARE
    amount: Annotated[Decimal, AfterValidator(abs)] = Decimal(0)

    @field_validator("words")
    @classmethod
    def joined(cls, words: tuple[str, ...]) -> Any:
        return "+".join(words) or words

    @field_serializer("words")
    def split(self, words: Any) -> list[str]:
        return words.split("+") if words else []

    @field_validator("plain", mode="plain")
    @classmethod
    def parsed(cls, value: Any) -> int:
        return int(value.removesuffix(" EUR"))

    @field_serializer("plain")
    def shown(self, plain: int) -> str:
        return f"{plain} EUR"

    @model_validator(mode="after")
    def itself(self) -> Made:
        return self

    @field_validator("at")
    @classmethod
    def as_it_is(cls, at: datetime) -> datetime:
        return at


@dataclass(frozen=True)
class MadeRow:
    made: Made
    several: frozenset[Made] = frozenset()


def made(**fields: Any) -> Any:
    return Made(**fields)


def test_fields_of_the_types_that_validators_and_settings_make_are_stored() -> None:
    one = made(kind="old", kinds=["new", "old"], before="new", words=["a", "b"], plain="7 EUR", amount=-1)
    assert (one.kind, one.kinds, one.words, one.plain) == ("old", {"new", "old"}, "a+b", 7)
    storage: Storage[Any] = Storage(MadeRow, "test")
    for row in (MadeRow(one, frozenset({one})), MadeRow(made(kind="old", words=["a"])), MadeRow(made(before="old"))):
        stored = storage.encode_checked(row)
        again = storage.decode(stored)
        assert storage.encode_checked(again) == stored
        assert storage.fitting(row) is row
        assert again == row or row.made.kind is Kind.NEW, "a default stays a member until it is read"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kind": "older"}, "'older' is str, and the field holds an instance of Kind"),
        ({"words": 1}, "1 is int, and the field holds a valid tuple"),
        ({"amount": Decimal("NaN")}, "is Decimal, and the field holds a finite number"),
        ({"amount": "1"}, "'1' is str, and the field holds an instance of Decimal"),
        ({"amount": 1.5}, "1.5 is float, and the field holds an instance of Decimal"),
        ({"amount": True}, "True is bool, and the field holds an instance of Decimal"),
        ({"at": NAIVE}, "has no time zone; rows and state"),
    ],
    ids=str,
)
def test_fields_with_validators_are_refused_when_they_are_not_read_as_they_were(values: Any, words: str) -> None:
    storage: Storage[Any] = Storage(MadeRow, "test")
    row = MadeRow(made(kind="new").model_copy(update=values))
    with pytest.raises(ContractError, match=f"^test: .*({words})"):
        storage.encode_checked(row)
