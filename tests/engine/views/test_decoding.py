from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from leftfold import Event, FoldView
from leftfold.engine.views.decoding import Decoded, EventDecoder, whole_decisions
from leftfold.errors import ContractError
from leftfold.ports.protocols import RawRecord

LANE = (
    ("ce_specversion", b"1.0"),
    ("ce_id", b"0"),
    ("ce_source", b"/shop/tills"),
    ("ce_type", b"tills.Rung.v1"),
    ("ce_subject", b"till-1"),
    ("ce_time", b"2026-01-01T00:00:00Z"),
    ("ce_sequence", b"7"),
    ("ce_decision", b"1/2"),
)


class Rung(Event, category="tills", key="till"):
    till: str
    cents: int


@dataclass(frozen=True)
class Takings:
    cents: int


def ring(row: Takings | None, event: Rung) -> Takings:
    return Takings(event.cents + (row.cents if row else 0))


takings = FoldView("takings", events=Rung, row=Takings, evolve=ring)


def record(headers: list[tuple[str, bytes]], key: bytes | None = b"till-1", value: bytes | None = None) -> RawRecord:
    return RawRecord("tills.events", 3, 41, key, value or b'{"till":"till-1","cents":5}', headers)


def same(one: Decoded, other: Decoded) -> bool:
    """Errors are equal when they say the same."""
    fields = [[getattr(d, name) for name in Decoded._fields if name != "error"] + [repr(d.error)] for d in (one, other)]
    return fields[0] == fields[1]


def test_a_record_of_a_lane_is_decoded_whole() -> None:
    found = EventDecoder([takings]).decode(record(list(LANE)))
    assert found == Decoded(
        "tills.events",
        3,
        41,
        "till-1",
        Rung(till="till-1", cents=5),
        None,
        7,
        False,
        "2026-01-01T00:00:00Z",
        b"tills.Rung.v1",
    )


def test_a_broken_sequence_in_its_usual_place_is_an_error_of_the_record() -> None:
    broken = [(name, b"seven" if name == "ce_sequence" else value) for name, value in LANE]
    assert isinstance(EventDecoder([takings]).decode(record(broken)).error, ContractError)


values = st.sampled_from(
    [
        b"tills.Rung.v1",
        b"tills.Rung.v9",
        b"tills.Other.v1",
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
    st.permutations(range(len(LANE))),
    st.dictionaries(st.integers(0, len(LANE) - 1), values, max_size=3),
    st.integers(0, len(LANE)),
    st.sampled_from([b"till-1", b"", b"\xff", None]),
    st.sampled_from([b'{"till":"till-1","cents":5}', b"{}", b"\xff", None]),
    st.booleans(),
)
def test_the_short_way_decodes_as_the_long_way_does(
    order: list[int],
    changed: dict[int, bytes],
    kept: int,
    key: bytes | None,
    value: bytes | None,
    in_order: bool,
) -> None:
    places = list(range(len(LANE))) if in_order else order[:kept]
    headers = [(LANE[place][0], changed.get(place, LANE[place][1])) for place in places]
    whole, decoder = RawRecord("tills.events", 3, 41, key, value, headers), EventDecoder([takings])
    assert same(decoder.decode(whole), decoder._decode_any(whole))


def decoded(partition: int, offset: int, last: bool) -> Decoded:
    return Decoded("tills.events", partition, offset, "till-1", None, None, 1, last, "")


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=20))
def test_what_is_held_back_is_what_follows_the_last_whole_decision_of_its_partition(
    log: list[tuple[int, bool]],
) -> None:
    records = [decoded(partition, offset, last) for offset, (partition, last) in enumerate(log)]
    whole, rest = whole_decisions(records)
    ends = {p: max([r.offset for r in records if r.partition == p and r.last], default=-1) for p in range(3)}
    assert whole == [r for r in records if r.offset <= ends[r.partition]]
    assert rest == [r for r in records if r.offset > ends[r.partition]]
