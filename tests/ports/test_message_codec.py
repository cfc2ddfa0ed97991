from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from pydantic import ConfigDict, Field, JsonValue, PrivateAttr

from leftfold import ConfigurationError, ContractError, Event, Json
from leftfold.ports.message_codec import MessageCodec, digest, event_id, exact_json, read_recorded, utc_text
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Added, CheckedOut, Opened
from tests.domains.values import decimals, texts


def _price_from_cents(fields: Json) -> Json:
    return {"id": fields["id"], "price": str(Decimal(str(fields["cents"])) / 100)}


def _with_currency(fields: Json) -> Json:
    return {**fields, "currency": "USD"}


class Priced(Event, category="prices", key="id", version=3, upcasts={1: _price_from_cents, 2: _with_currency}):
    id: str
    price: Decimal
    currency: str


def _with_a_bug(fields: Json) -> Json:
    raise AttributeError("a bug in an upcast")


class Broken(Event, category="prices", key="id", version=2, upcasts={1: _with_a_bug}):
    id: str


codec: MessageCodec[Any] = MessageCodec([Opened, Added, CheckedOut, Priced, Broken])
HEADERS = (
    ("ce_id", b"e1"),
    ("ce_type", b"baskets.Opened.v1"),
    ("ce_time", b"2026-01-01T00:00:00Z"),
    ("ce_sequence", b"4"),
    ("ce_decision", b"2/3"),
    ("ce_correlationid", b"c"),
    ("ce_causationid", b"d"),
)
OPENED = b'{"basket_id":"b","household":"h"}'


@given(texts, texts, decimals)
def test_a_message_comes_back_equal(basket: str, product: str, price: Decimal) -> None:
    event = Added(basket_id=basket, product=product, price=price)
    assert codec.decode(codec.types[Added], codec.encode(event)) == event


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (b"prices.Priced.v1", b'{"id":"p","cents":1250}'),
        (b"prices.Priced.v2", b'{"id":"p","price":"12.5"}'),
        (b"prices.Priced.v3", b'{"id":"p","price":"12.5","currency":"USD","later":1}'),
    ],
)
def test_every_version_up_to_the_class_reads_as_the_class(type_: bytes, value: bytes) -> None:
    assert codec.decode(type_, value) == Priced(id="p", price=Decimal("12.5"), currency="USD")


def test_what_an_upcast_returns_is_read_by_the_same_rules_as_what_needs_none() -> None:
    """Strict types take a time from JSON and not its text from Python, and any JSON holds numbers, not Decimals."""

    class Strict(Event, category="prices", key="id", version=2, upcasts={1: _with_currency}):
        model_config = ConfigDict(strict=True)

        id: str
        at: datetime
        tags: tuple[str, ...]
        data: dict[str, JsonValue]
        price: Decimal
        more: Decimal
        currency: str

    body = b'{"id":"p","at":"2026-01-01T00:00:00Z","tags":["a"],"data":{"w":[1.5,1e+20]},"price":"1.50","more":2.5%s}'
    strict: MessageCodec[Any] = MessageCodec([Strict])
    old = strict.decode(b"prices.Strict.v1", body % b"")
    assert old == strict.decode(b"prices.Strict.v2", body % b',"currency":"USD"')
    assert (old.price, old.more, old.data) == (Decimal("1.50"), Decimal("2.5"), {"w": [1.5, 1e20]})


@pytest.mark.parametrize("number", [0.00005, 1e-7, 0.1, 1e16, 5e-324, 1e308, -0.0, 123456789012345680.0])
def test_an_upcast_leaves_floats_as_they_were(number: float) -> None:
    class Rated(Event, category="prices", key="id", version=2, upcasts={1: dict}):
        model_config = ConfigDict(strict=True)

        id: str
        rate: float
        data: JsonValue

    rated: MessageCodec[Any] = MessageCodec([Rated])
    body = exact_json(Rated(id="p", rate=number, data=number))
    assert rated.decode(b"prices.Rated.v1", body) == rated.decode(b"prices.Rated.v2", body)


def test_upcasts_see_money_exactly() -> None:
    found = codec.decode(b"prices.Priced.v1", b'{"id":"p","cents":0.1}')
    assert str(found.price) == "0.001"


def test_a_newer_version_is_refused_and_not_guessed() -> None:
    for read in (codec.decode, codec.wanted):
        with pytest.raises(ContractError, match="prices.Priced version 4 is not one of 1..3"):
            read(b"prices.Priced.v4", b"{}")


def test_a_class_that_is_not_wanted_is_passed_over_by_wanted_and_refused_by_decode() -> None:
    assert codec.wanted(b"baskets.Emptied.v7", b"?") is None
    with pytest.raises(ContractError, match=r"unknown type 'baskets.Emptied.v7'; this code knows baskets.Added.v1"):
        codec.decode(b"baskets.Emptied.v7", b"?")


@pytest.mark.parametrize("type_", [b"", b"Opened", b"baskets.Opened", b"baskets.Opened.vx", b".v1", b"\xff\xfe"])
def test_a_type_that_is_none_breaks_the_contract(type_: bytes) -> None:
    with pytest.raises(ContractError, match="ce_type|version x|unknown"):
        codec.decode(type_, OPENED)


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b"null", b"[]", b"1", b'"x"', b"{}", b"{", b"\xff\xfe", b"\x00", OPENED[:-1], OPENED + b"x",
        b'{"basket_id":1,"household":"h"}', b'{"basket_id":"\xed\xa0\x80","household":"h"}',
        b'{"basket_id":"\\ud800","household":"h"}', b"[" * 10_000, b'{"a":' * 10_000,
        b'{"x":' * 10_000 + b"1" + b"}" * 10_000,
    ],
    ids=lambda value: repr(value)[:24],
)  # fmt: skip
@pytest.mark.parametrize("type_", [b"baskets.Opened.v1", b"prices.Priced.v1", b"prices.Priced.v2", b"prices.Broken.v1"])
def test_a_value_that_is_no_such_message_breaks_the_contract(type_: bytes, value: bytes | None) -> None:
    with pytest.raises(ContractError, match=f"no {type_.decode()}: "):
        codec.decode(type_, value)


@pytest.mark.parametrize("price", ["NaN", "Infinity", "-Infinity", '"NaN"', '"sNaN"', '"x"', "[]", "true", "null"])
def test_what_is_no_exact_number_is_no_money(price: str) -> None:
    with pytest.raises(ContractError, match="price"):
        codec.decode(b"baskets.Added.v1", f'{{"basket_id":"b","product":"p","price":{price}}}'.encode())


@pytest.mark.parametrize("price", ["1" * 100_000, '"1e99999999999"', '"' + "9" * 100_000 + '"'])
def test_a_monstrous_number_is_exact_or_refused_but_never_a_crash(price: str) -> None:
    try:
        found = codec.decode(b"baskets.Added.v1", f'{{"basket_id":"b","product":"p","price":{price}}}'.encode())
    except ContractError:
        return
    assert found.price == Decimal(price.strip('"'))


def test_two_classes_with_one_wire_name_are_refused() -> None:
    class Namesake(Event, category="baskets", key="id", name="Opened"):
        id: str

    both: list[type[Event]] = [Opened, Namesake]
    with pytest.raises(ConfigurationError, match=r"Namesake and Opened both have the wire name baskets.Opened"):
        MessageCodec(both)


def test_foreign_types_do_not_pile_up() -> None:
    small: MessageCodec[Any] = MessageCodec([Opened])
    for number in range(5000):
        small.wanted(b"other.Type%d.v1" % number, b"")
    assert len(small._foreign) <= 1000


@given(texts, texts, texts, texts)
def test_event_ids_are_uuid5_and_belong_to_one_place(category: str, key: str, other: str, command: str) -> None:
    one = event_id(category, key, command, 0)
    assert uuid.UUID(one).version == 5
    assert one == event_id(category, key, command, 0)
    assert one != event_id(category, key, command, 1)
    assert (one == event_id(category, other, command, 0)) == (key == other)


def test_different_bodies_have_different_digests() -> None:
    assert digest(b"a") == digest(b"a") != digest(b"b")
    assert len(digest(b"")) == 16


def test_times_are_utc_text_and_must_have_a_zone() -> None:
    assert utc_text(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == "2026-01-01T00:00:00Z"
    with pytest.raises(ContractError, match="has no time zone"):
        utc_text(datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_record_reads_as_an_event_with_its_metadata() -> None:
    found = read_recorded(codec, RawRecord("baskets.events", 3, 9, b"b", OPENED, HEADERS))
    assert found is not None
    assert found.event == Opened(basket_id="b", household="h")
    assert (found.key, found.id, found.version, found.decision) == ("b", "e1", 4, (2, 3))
    assert (found.time, found.correlation_id, found.causation_id) == (datetime(2026, 1, 1, tzinfo=UTC), "c", "d")
    assert found.position.next_offset("baskets.events", 3) == 10


@pytest.mark.parametrize("name", ["ce_id", "ce_time", "ce_sequence", "ce_decision"])
@pytest.mark.parametrize("value", [b"\xff", b"", None, b"x/y/z", "missing"])
def test_broken_headers_break_the_contract_with_the_place(name: str, value: Any) -> None:
    if (name, value) in {("ce_id", b""), ("ce_id", b"x/y/z")}:
        return
    headers = [(n, value if n == name else v) for n, v in HEADERS if n != name or value != "missing"]
    with pytest.raises(ContractError, match=r"baskets.events\[3\]@9"):
        read_recorded(codec, RawRecord("baskets.events", 3, 9, b"b", OPENED, headers))


def test_a_type_header_without_a_value_breaks_the_contract() -> None:
    headers: Any = [(n, None if n == "ce_type" else v) for n, v in HEADERS]
    with pytest.raises(ContractError, match="ce_type"):
        read_recorded(codec, RawRecord("baskets.events", 3, 9, b"b", OPENED, headers))


made: list[dict[str, int]] = []


def _made() -> dict[str, int]:
    made.append({})
    return made[-1]


class Generated(Event, category="prices", key="id"):
    id: str
    number: uuid.UUID = Field(default_factory=uuid.uuid4)
    at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    price: Any = Decimal(1)
    _made_when_read: dict[str, int] = PrivateAttr(default_factory=_made)


class Certain(Generated):
    price: Decimal = Decimal(1)


class Numbered(Event, category="prices", key="id"):
    id: str
    _number: object = PrivateAttr(default=None)

    def model_post_init(self, context: object, /) -> None:
        self._number = object()  # type: ignore[misc]  # pydantic lets private attributes of frozen models be set


def test_a_time_whose_offset_has_seconds_is_refused_since_json_has_minutes_alone() -> None:
    """Berlin was 53 minutes and 28 seconds ahead of UTC before 1893."""
    with pytest.raises(ContractError, match=r"its at is .*23, 6, 32.* and is read as .*23, 7"):
        exact_json(Certain(id="a", at=datetime(1850, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))))


def test_private_attributes_are_not_written_and_may_differ_in_what_is_read() -> None:
    event = Generated(id="a", price="1")
    event._made_when_read["total"] = 1
    again = MessageCodec([Generated]).decode(b"prices.Generated.v1", exact_json(event))
    assert (again.number, again._made_when_read) == (event.number, {})
    assert exact_json(Numbered(id="a")) == b'{"id":"a"}'
    with pytest.raises(ContractError, match=r"its price is Decimal.*, and is read as '1'; give it a value"):
        exact_json(Generated(id="a"))


def test_where_factories_make_values_these_alone_are_looked_at() -> None:
    """Reading the whole message again would take three times as long as writing it."""
    event, others = Certain(id="a"), len(made)
    assert exact_json(event) == MessageCodec([Certain]).encode(event)
    assert len(made) == others, "it was not read again"
    exact_json(Generated(id="a", price="1"))
    assert len(made) == others + 2, "it was made, and read again"
