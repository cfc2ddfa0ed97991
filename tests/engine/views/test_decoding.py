from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from leftfold.engine.views.decoding import Decoded, EventDecoder, whole_decisions
from leftfold.errors import ContractError
from leftfold.ports.protocols import RawRecord
from tests.domains.shop import Added, open_baskets

PROCESSOR = (
    ("ce_specversion", b"1.0"),
    ("ce_id", b"0"),
    ("ce_source", b"/shop/baskets"),
    ("ce_type", b"baskets.Added.v1"),
    ("ce_subject", b"b-1"),
    ("ce_time", b"2026-01-01T00:00:00Z"),
    ("ce_sequence", b"7"),
    ("ce_decision", b"1/2"),
)


VALUE = b'{"basket_id":"b-1","product":"p","price":"5"}'


def record(headers: list[tuple[str, bytes]], key: bytes | None = b"b-1", value: bytes | None = None) -> RawRecord:
    return RawRecord("baskets.events", 3, 41, key, value or VALUE, headers)


def same(one: Decoded, other: Decoded) -> bool:
    """Errors are equal when they say the same."""
    fields = [[getattr(d, name) for name in Decoded._fields if name != "error"] + [repr(d.error)] for d in (one, other)]
    return fields[0] == fields[1]


def test_a_record_of_a_processor_is_decoded_whole() -> None:
    found = EventDecoder([open_baskets]).decode(record(list(PROCESSOR)))
    assert found == Decoded(
        "baskets.events",
        3,
        41,
        "b-1",
        Added(basket_id="b-1", product="p", price=Decimal(5)),
        None,
        7,
        False,
        "2026-01-01T00:00:00Z",
        b"baskets.Added.v1",
    )


def test_a_broken_sequence_in_its_usual_place_is_an_error_of_the_record() -> None:
    broken = [(name, b"seven" if name == "ce_sequence" else value) for name, value in PROCESSOR]
    assert isinstance(EventDecoder([open_baskets]).decode(record(broken)).error, ContractError)


values = st.sampled_from(
    [
        b"baskets.Added.v1",
        b"baskets.Added.v9",
        b"baskets.Other.v1",
        b"",
        b"\xff",
        b"7",
        b" 7",
        b"-1",
        b"1/1",
        b"2/2",
        b"1/3",
        b"x",
    ]
)


@given(
    st.permutations(range(len(PROCESSOR))),
    st.dictionaries(st.integers(0, len(PROCESSOR) - 1), values, max_size=3),
    st.integers(0, len(PROCESSOR)),
    st.sampled_from([b"b-1", b"", b"\xff", None]),
    st.sampled_from([VALUE, b"{}", b"\xff", None]),
    st.booleans(),
)
def test_the_short_way_decodes_as_the_long_way_does(
    order: list[int], changed: dict[int, bytes], kept: int, key: bytes | None, value: bytes | None, in_order: bool
) -> None:
    places = list(range(len(PROCESSOR))) if in_order else order[:kept]
    headers = [(PROCESSOR[place][0], changed.get(place, PROCESSOR[place][1])) for place in places]
    whole, decoder = RawRecord("baskets.events", 3, 41, key, value, headers), EventDecoder([open_baskets])
    assert same(decoder.decode(whole), decoder._decode_any(whole))


def decoded(partition: int, offset: int, last: bool) -> Decoded:
    return Decoded("baskets.events", partition, offset, "b-1", None, None, 1, last, "")


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=20))
def test_what_is_held_back_is_what_follows_the_last_whole_decision_of_its_partition(
    log: list[tuple[int, bool]],
) -> None:
    records = [decoded(partition, offset, last) for offset, (partition, last) in enumerate(log)]
    whole, rest = whole_decisions(records)
    ends = {p: max([r.offset for r in records if r.partition == p and r.last], default=-1) for p in range(3)}
    assert whole == [r for r in records if r.offset <= ends[r.partition]]
    assert rest == [r for r in records if r.offset > ends[r.partition]]
