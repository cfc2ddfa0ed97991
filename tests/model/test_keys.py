"""Keys as text, and the partition that each has."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from functools import cache, partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from leftfold import ConfigurationError, ContractError, Event
from leftfold.model.keys import KeyCodec, item_type, key_type, murmur2, partition_of
from tests.domains.shop import Added, CheckedOut, Opened
from tests.domains.values import Color, Size, decimals, texts

HOSTILE = [
    "{tag}", "*", "?", "[a-z]", "a b", "a\r\nSET x 1\r\n", "\0", "a\0b", "../../etc/passwd", "a/b", "%2F", "%",
    "@", "#",
    "v:{x:1:0}:k", "\u202egnirts", "\u0000\uffff", "é", "e\u0301", "👩‍👩‍👧", "k" * 65_536,
    "ſ", " ", "~", ".", "..", "$5\r\nhello",
]  # fmt: skip
ALPHABET = re.compile(r"[A-Za-z0-9_.~%/-]+")
plain: KeyCodec[str] = KeyCodec(str, "test")
AT = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("key", HOSTILE, ids=lambda key: ascii(key[:12]))
def test_a_hostile_key_is_only_ever_text(key: str) -> None:
    encoded = plain.encode(key)
    assert ALPHABET.fullmatch(encoded)
    assert "/" not in encoded
    assert plain.decode(encoded) == key


NAMES = texts.filter(bool)
KINDS = st.tuples(NAMES, st.integers(), st.uuids(), decimals, st.dates(), st.sampled_from(Color), st.sampled_from(Size))


@given(NAMES, NAMES, NAMES, NAMES)
@example("e\u0301", "a", "é", "b")
@example("a/b", "c", "a", "b/c")
def test_every_text_comes_back_and_different_keys_stay_different(a: str, b: str, c: str, d: str) -> None:
    pairs: KeyCodec[tuple[str, str]] = KeyCodec(tuple[str, str], "test")
    assert plain.decode(plain.encode(a)) == a
    assert ALPHABET.fullmatch(plain.encode(a))
    assert (plain.encode(a) == plain.encode(c)) == (a == c)
    assert (pairs.encode((a, b)) == pairs.encode((c, d))) == ((a, b) == (c, d)), "parts run into each other"


@given(KINDS)
def test_a_tuple_of_every_kind_comes_back(key: tuple[Any, ...]) -> None:
    codec: KeyCodec[tuple[Any, ...]] = KeyCodec(tuple[str, int, UUID, Decimal, date, Color, Size], "test")
    encoded = codec.encode(key)
    assert encoded.count("/") == 6
    assert codec.decode(encoded) == key


@given(st.tuples(NAMES, NAMES))
@example(("a/b", "c/d"))
@example(("%2F", "%2F"))
@example(("%252F/", "100%"))
def test_what_a_person_types_for_a_key_is_that_key(key: tuple[str, str]) -> None:
    pair: KeyCodec[Any] = KeyCodec(tuple[str, str], "test")
    assert pair.read(pair.typed(pair.encode(key))) == key
    assert plain.read(plain.typed(plain.encode(key[0]))) == key[0]


@pytest.mark.parametrize(
    ("type_", "key"),
    [(str, ""), (str, 1), (int, "1"), (int, True), (UUID, "x"), (tuple[str, int], ("a",)), (tuple[str, int], "a"),
     (tuple[str, str], ("a", "")), (str, "\ud800"), (date, 1), (Color, 1),
     (Color, Size.SMALL), (date, AT), (datetime, AT.date())],
)  # fmt: skip
def test_a_key_of_another_type_breaks_the_contract(type_: Any, key: Any) -> None:
    codec: KeyCodec[Any] = KeyCodec(type_, "test")
    with pytest.raises(ContractError):
        codec.encode(key)


def test_a_time_may_be_a_key_and_equal_times_are_one_key() -> None:
    codec: KeyCodec[datetime] = KeyCodec(datetime, "test")
    assert codec.decode(codec.encode(AT)) == AT
    assert codec.encode(AT.astimezone(timezone(timedelta(hours=2)))) == codec.encode(AT)
    assert codec.decode("2026-01-01T14%3A00%3A00%2B02%3A00") == AT, "as it was written before"


@pytest.mark.parametrize(
    ("time", "why"),
    [
        (AT.replace(tzinfo=None), "has no time zone; keys hold aware times"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "is no time in UTC"),
    ],
)
def test_a_time_that_is_none_in_utc_is_no_key(time: datetime, why: str) -> None:
    with pytest.raises(ContractError, match=why):
        KeyCodec[datetime](datetime, "test").encode(time)


@pytest.mark.parametrize(
    ("type_", "text"),
    [(Color, "3"), (int, "x"), (Decimal, "x"), (date, "2026-01-01T12%3A00%3A00%2B00%3A00"), (tuple[int, int], "1")],
)
def test_a_stored_key_that_cannot_be_read_breaks_the_contract(type_: Any, text: str) -> None:
    with pytest.raises(ContractError, match="the stored key .* is no .*; rebuild the view"):
        KeyCodec(type_, "test").decode(text)
    with pytest.raises(ValueError, match="it is no"):
        KeyCodec(type_, "test").read(text)


class Rights(Flag):
    READ = 1
    WRITE = 2


class Alike(Enum):
    NUMBER = 1
    TEXT = "1"


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        (Rights, "test: key: Rights is a Flag, .*; use int or an Enum"),
        (tuple[str, Rights], "test: key: Rights is a Flag"),
        (Alike, "test: key: Alike.NUMBER and Alike.TEXT are both written as '1'"),
    ],
)
def test_a_key_of_an_enum_that_is_not_read_as_it_is_written_is_refused(type_: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        KeyCodec(type_, "test")


@pytest.mark.parametrize("type_", [float, bytes, Any, list[str], dict[str, str], str | None, tuple[str, float]])
def test_a_key_type_that_cannot_be_written_is_refused(type_: Any) -> None:
    with pytest.raises(ConfigurationError, match="test: a key of .* cannot be written; use str, int"):
        KeyCodec(type_, "test")


def typed(event: Added) -> tuple[str, Decimal]:
    return event.product, event.price


def untyped(event):  # type: ignore[no-untyped-def]
    return event.product.upper()


def test_the_key_type_comes_from_the_annotation_or_from_the_field_a_lambda_reads() -> None:
    assert key_type(typed, [Added], "test") == tuple[str, Decimal]
    assert key_type(lambda e: e.price, [Added], "test") is Decimal
    assert key_type(lambda e: (e.product, e.price), [Added], "test") == tuple[str, Decimal]
    assert key_type(lambda e: e.household, [Opened, CheckedOut], "test") is str


@pytest.mark.parametrize("key", [untyped, lambda e: e.model_extra, lambda e: 1, lambda e: e.price + 1])
def test_a_key_of_unknown_type_is_refused_with_the_remedy(key: Any) -> None:
    with pytest.raises(ConfigurationError, match="test: cannot tell the type of its key; write the key as a function"):
        key_type(key, [Added], "test")


class Priced(Event, category="baskets", key="basket_id"):
    basket_id: str
    price: str


def test_a_key_of_a_field_that_an_event_does_not_have_is_refused_with_the_fields_that_it_has() -> None:
    with pytest.raises(ConfigurationError, match="test: key= reads household, which Added does not have .it has .*, p"):
        key_type(lambda e: e.household, [Opened, Added], "test")
    with pytest.raises(ConfigurationError, match="the type of its key: the events disagree on price; write the key as"):
        key_type(lambda e: e.price, [Added, Priced], "test")


def test_a_key_that_may_be_none_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"str \| None cannot be written.*say it if no key is None: def key"):
        KeyCodec(str | None, "test")


def test_the_item_type_comes_from_the_annotation() -> None:
    def each(event: CheckedOut) -> Iterable[tuple[str, Decimal]]:
        return event.lines

    class Each:
        def __call__(self, event: CheckedOut, rate: int = 1) -> Iterable[tuple[str, Decimal]]:
            return each(event)

    for one in (each, partial(each), Each(), partial(partial(Each(), rate=2)), cache(each)):
        assert item_type(one, "test") == (str, Decimal)
    with pytest.raises(ConfigurationError, match=r"test: each= needs a function that says what it yields"):
        item_type(lambda event: event.lines, "test")
    with pytest.raises(ConfigurationError, match=r"test: each= needs a function that says what it yields"):
        item_type(partial(lambda event: event.lines), "test")


# From Kafka's own UtilsTest.testMurmur2 (org.apache.kafka.common.utils), as signed 32-bit numbers.
VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize("data", VECTORS)
def test_murmur2_gives_what_the_java_client_gives(data: bytes) -> None:
    assert murmur2(data) == VECTORS[data] & 0x7FFFFFFF


@given(st.binary(max_size=100), st.integers(1, 4096))
def test_a_key_has_one_partition_within_the_count(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


def test_keys_spread_over_the_partitions() -> None:
    found = [partition_of(b"basket-%d" % n, 12) for n in range(12_000)]
    assert all(800 < found.count(partition) < 1200 for partition in range(12))
