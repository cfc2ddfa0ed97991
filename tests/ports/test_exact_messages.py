"""A message is written only when it is read as an equal one: else what is decided now differs from what is folded."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_serializer

from leftfold import App, Command, ConfigurationError, ContractError, Decider, DecisionFailed, Event, memory
from leftfold.ports.message_codec import MessageCodec, exact_json, has_exact_values


class Size(Enum):
    SMALL = "small"


class Rank(Enum):
    FIRST = 1


@dataclass(frozen=True)
class Card:
    cents: int


@dataclass(frozen=True)
class Cash:
    cents: int


class Line(BaseModel):
    product: str


class GiftLine(Line):
    card: str


class Sold(Event, category="sales", key="till"):
    till: str


class Plain(Sold):
    amount: Decimal = Decimal("1.50")
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    id: UUID = UUID(int=7)
    size: Size | None = Size.SMALL
    prices: tuple[tuple[str, Decimal], ...] = (("tea", Decimal("2.0")),)
    counts: dict[str, int] = {"tea": 1}  # noqa: RUF012  # pydantic copies it
    words: list[str] = Field(default_factory=list)
    label: str = Field(default="x", max_length=3)
    day: date | None = None


class Tagged(Sold):
    numbers: frozenset[int]


class Weighed(Sold):
    kilos: float


class Paid(Sold):
    how: Card | Cash


class Listed(Sold):
    lines: tuple[Line, ...]


class Loose(Sold):
    data: dict[str, Any]


class Ranked(Sold):
    by_rank: dict[Rank, int]


class Aliased(Sold):
    amount: int = Field(alias="amt")


class Renamed(Sold):
    model_config = ConfigDict(alias_generator=str.upper, populate_by_name=True, serialize_by_alias=False)

    unit_price: int


class Hidden(Sold):
    secret: str = Field(exclude=True)


class Sale(Sold):
    cents: int


class Rounded(Sold):
    price: Decimal

    @field_serializer("price")
    def _rounded(self, price: Decimal) -> str:
        return f"{price:.1f}"


EXACT = [
    Plain(till="a"), Weighed(till="a", kilos=1.5), Paid(till="a", how=Card(5)), Loose(till="a", data={"texts": ["a"]}),
    Listed(till="a", lines=(Line(product="x"),)), Renamed(till="a", unit_price=3),
    Rounded(till="a", price=Decimal("0.5")), Tagged(till="a", numbers=frozenset({3, 1})),
]  # fmt: skip
OTHERS: list[tuple[Sold, str]] = [
    (Weighed(till="a", kilos=math.inf), "kilos: Input should be a valid number"),
    (Weighed(till="a", kilos=math.nan), "kilos: Input should be a valid number"),
    (Paid(till="a", how=Cash(5)), r"its how is Cash\(cents=5\), and is read as Card\(cents=5\)"),
    (Listed(till="a", lines=(GiftLine(product="x", card="y"),)), "its lines is .*GiftLine.*, and is read as .*Line"),
    (Loose(till="a", data={"n": Decimal(1)}), "its data is .*Decimal.*, and is read as"),
    (Ranked(till="a", by_rank={Rank.FIRST: 1}), "by_rank.1.*: Input should be 1"),
    (Aliased(till="a", amt=1), "amt: Field required"),
    (Hidden(till="a", secret="x"), "secret: Field required"),
    (Rounded(till="a", price=Decimal("0.55")), "its price is .*0.55.*, and is read as"),
    (Sold(till="\ud800"), "cannot be written: .*surrogates not allowed"),
]


@pytest.mark.parametrize("event", EXACT, ids=lambda one: type(one).__name__)
def test_what_is_read_equal_is_written_as_ever(event: Sold) -> None:
    codec: MessageCodec[Any] = MessageCodec([type(event)])
    assert exact_json(event) == codec.encode(event)
    assert codec.decode(codec.types[type(event)], exact_json(event)) == event


@pytest.mark.parametrize(("event", "message"), OTHERS, ids=lambda one: type(one).__name__)
def test_what_would_be_read_as_another_message_is_refused(event: Sold, message: str) -> None:
    with pytest.raises(ContractError, match=f"^{type(event).__name__} .*{message}"):
        exact_json(event)


@pytest.mark.parametrize("event", [event for event, _ in OTHERS[:-1]], ids=lambda one: type(one).__name__)
def test_twin_without_the_check_it_is_written_and_read_as_another_one_or_not_at_all(event: Sold) -> None:
    codec: MessageCodec[Any] = MessageCodec([type(event)])
    value = codec.encode(event)
    with suppress(ContractError):
        assert codec.decode(codec.types[type(event)], value) != event


def test_equal_sets_are_written_alike() -> None:
    """One id belongs to one body: a command that is sent again may come from a process that hashes otherwise."""
    one, other = frozenset([0, 8]), frozenset([8, 0])
    assert list(one) != list(other)
    assert exact_json(Tagged(till="a", numbers=one)) == exact_json(Tagged(till="a", numbers=other))
    assert Tagged(till="a", numbers=one).model_dump() == {"till": "a", "numbers": one}
    assert Tagged.model_json_schema(mode="serialization") == Tagged.model_json_schema(mode="validation")


class Label(BaseModel, frozen=True):
    numbers: frozenset[int]
    at: datetime | None = None


class Stick(Command, category="labels", key="till"):
    till: str
    label: Label


class Stuck(Event, category="labels", key="till"):
    till: str
    labels: tuple[Label, ...]


def test_models_inside_a_message_follow_its_rules() -> None:
    one, other = Label(numbers=frozenset([0, 8])), Label(numbers=frozenset([8, 0]))
    assert one.model_dump_json() != other.model_dump_json()
    assert exact_json(Stick(till="a", label=one)) == exact_json(Stick(till="a", label=other))
    assert exact_json(Stuck(till="a", labels=(one,))) == exact_json(Stuck(till="a", labels=(other,)))
    naive = b'{"numbers": [], "at": "2026-01-31T12:00:00"}'
    with pytest.raises(ValidationError, match="timezone"):
        Stick.model_validate_json(b'{"till": "a", "label": %b}' % naive)
    assert Stuck.model_validate_json(b'{"till": "a", "labels": [%b]}' % naive).labels[0].at  # it may be written already


def test_only_fields_that_always_come_back_are_written_without_a_look() -> None:
    """Reading back costs microseconds, which events of plain fields need not pay."""
    assert has_exact_values(Plain)
    assert not any(has_exact_values(type(event)) for event, _ in OTHERS[:-1])


NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001
WRONG: Any = None


class NaiveDefault(Sold):
    at: datetime = NAIVE


class NaiveFactory(Sold):
    at: datetime = Field(default_factory=lambda: NAIVE)


class NoneDefault(Sold):
    count: int = WRONG


class OtherDefault(Sold):
    tags: tuple[str, ...] = ("a", 1)  # type: ignore[assignment]


class FloatDefault(Sold):
    price: Decimal = 0.1  # type: ignore[assignment]


class TextDefault(Sold):
    size: Size = "small"  # type: ignore[assignment]


class LowerDefault(Sold):
    model_config = ConfigDict(str_to_lower=True)

    word: str = "ABC"


class Counting(Sold):
    count: int = 1

    def model_post_init(self, context: object, /) -> None:
        vars(self)["count"] += 1


def check_decision_fails(type_: type[Sold], event: Callable[[], Sold], message: str) -> None:
    sales = Decider(
        "sales",
        commands=Named,
        events=type_,
        state=int,
        initial_state=0,
        decide=lambda command, state: [event()],
        evolve=lambda state, event: state + 1,
    )
    with (
        memory(App("shop", deciders=[sales]), now=NAIVE.replace(tzinfo=UTC)) as world,
        pytest.raises(DecisionFailed, match=message),
    ):
        world.client.send(Named(till="a"))
    assert world.events("sales") == []


@pytest.mark.parametrize(
    ("type_", "field", "message"),
    [
        (NaiveDefault, "at", "at: Input should have timezone info"),
        (NoneDefault, "count", "count: Input should be a valid integer"),
        (OtherDefault, "tags", "tags.1: Input should be a valid string"),
        (FloatDefault, "price", "its price is 0.1, and is read as Decimal.*; give it a value or a default of its type"),
        (TextDefault, "size", "its size is 'small', and is read as <Size"),
        (LowerDefault, "word", "its word is 'ABC', and is read as 'abc'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_default_that_is_not_read_again_is_refused_in_a_decider(type_: type[Sold], field: str, message: str) -> None:
    """Defaults are not validated by pydantic."""
    with pytest.raises(ContractError, match=message):
        exact_json(type_(till="a"))
    with pytest.raises(ConfigurationError, match=rf"^decider sales: {type_.__name__}.{field}: its default .* written;"):
        check_decision_fails(type_, lambda: type_(till="a"), "")


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (NaiveFactory, "at: Input should have timezone info"),
        (Counting, "its count is 2, and is read as 3"),
    ],
)
def test_an_event_that_makes_a_value_that_is_not_read_again_fails_its_decision(type_: type[Sold], message: str) -> None:
    check_decision_fails(type_, lambda: type_(till="a"), message)


class Validated(Sold):
    model_config = ConfigDict(validate_default=True)

    count: int = Field(default_factory=lambda: 1)


class Private(Sold):
    _seen: int = PrivateAttr(default=0)


class Odd(Sold):
    whole: Decimal = 1  # type: ignore[assignment]
    made: int = Field(default_factory=lambda: 1)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_sound_defaults_cost_no_look() -> None:
    assert has_exact_values(Validated)
    assert has_exact_values(Private)
    assert exact_json(Odd(till="a")) == b'{"till":"a","whole":1,"made":1}'
    assert exact_json(NaiveDefault(till="a", at=NAIVE.replace(tzinfo=UTC))), "another value than the default is right"


BERLIN = ZoneInfo("Europe/Berlin")


@dataclass(frozen=True, slots=True)
class Slot:
    at: datetime


@dataclass(frozen=True)
class LateSlot(Slot):
    pass


class Planned(Sold):
    at: datetime
    slots: tuple[Slot, ...] = ()
    days: dict[datetime, list[int]] = {}  # noqa: RUF012  # pydantic copies it
    times: frozenset[datetime] = frozenset()
    label: Label | None = None


@pytest.mark.parametrize(
    "at",
    [
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
        datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
        datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN),
        datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN, fold=1),
    ],
    ids=str,
)
def test_a_time_in_an_hour_that_its_zone_repeats_or_omits_is_written(at: datetime) -> None:
    """Such a time equals no time of another zone (PEP 495), so the one that it is read as neither."""
    planned = Planned(
        till="a",
        at=at,
        slots=(Slot(at),),
        days={at: [1]},
        times=frozenset({at}),
        label=Label(numbers=frozenset({1}), at=at),
    )
    again = MessageCodec([Planned]).decode(b"sales.Planned.v1", exact_json(planned))
    assert (again != planned, again.at.astimezone(UTC)) == (True, at.astimezone(UTC))
    assert again.slots[0].at == again.at
    with pytest.raises(ContractError, match=r"its slots is \(LateSlot.*, and is read as \(Slot"):
        exact_json(Planned(till="a", at=at, slots=(LateSlot(at),)))


class Named(Command, category="sales", key="till"):
    till: str
    cents: int = 1

    @cached_property
    def twice(self) -> int:
        return 2 * self.cents


@pytest.mark.parametrize(
    "made",
    [
        lambda: Plain(till="a").model_copy(update={"counts": {"tea": 1.5}}),
        lambda: Plain(till="a").model_copy(update={"at": NAIVE}),
        lambda: Plain.model_construct(till="a", at=NAIVE),
        lambda: Plain.model_construct(till="a", amount="x"),
        lambda: Plain.model_construct(amount=Decimal(1)),
        lambda: Named(till="a").model_copy(update={"unknown": 1}),
    ],
)
def test_ways_around_validation_make_no_message_that_could_not_be_read(made: Callable[[], Event | Command]) -> None:
    with pytest.raises(ValidationError):
        made()


def test_a_changed_copy_is_the_message_with_these_values() -> None:
    prices: Any = [["cake", 2]]
    changed = Plain(till="a").model_copy(update={"amount": Decimal(3), "prices": prices}, deep=True)
    assert changed == Plain(till="a", amount=Decimal(3), prices=(("cake", Decimal(2)),))
    assert changed == Plain.model_construct(till="a", amount=Decimal(3), prices=prices)
    assert MessageCodec([Plain]).decode(b"sales.Plain.v1", exact_json(changed)) == changed
    one = Named(till="a")
    assert (one.twice, one.model_copy(update={"cents": 5}).twice, one.model_copy()) == (2, 10, one)
    assert Aliased(till="a", amt=1).model_copy(update={"amount": 2}).amount == 2


def test_an_event_that_is_made_around_validation_fails_its_decision() -> None:
    made = Sale(till="a", cents=1)
    check_decision_fails(Sale, lambda: made.model_copy(update={"cents": 1.5}), "cents")
