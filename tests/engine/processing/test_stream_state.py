from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold import ContractError
from leftfold.engine.processing.stream_state import KEEP_BYTES, Stream, StreamCodec, answer
from tests.domains.shop import Basket, baskets
from tests.domains.values import texts

codec = StreamCodec(baskets.state, baskets.initial_state)
ERROR = {"error": "Closed", "message": "m", "fields": {"basket_id": "b"}}


def empty() -> Stream[Basket]:
    return Stream(0, Basket(), {}, {})


def remember(stream: Stream[Basket], id_: str, seen: float) -> int:
    return stream.remember(id_, answer(id_, "d", 1, 1, None, seen))


def test_the_last_32_answers_are_kept_however_old() -> None:
    stream = empty()
    for number in range(40):
        assert remember(stream, f"c{number}", number * 1000.0) == 0
    assert list(stream.answered) == [f"c{number}" for number in range(8, 40)]


def test_answers_of_the_last_60_seconds_are_kept_however_many() -> None:
    stream = empty()
    for number in range(500):
        assert remember(stream, f"c{number}", number * 0.5) == 0
    assert next(iter(stream.answered)) == "c379"
    assert 0.5 * (499 - 379) == 60


def test_beyond_a_thousand_the_oldest_go_and_are_counted() -> None:
    stream = empty()
    dropped = [remember(stream, f"c{number}", 0.0) for number in range(1010)]
    assert sum(dropped) == 10
    assert dropped[:1000] == [0] * 1000
    assert list(stream.answered) == [f"c{number}" for number in range(10, 1010)]


def test_the_window_is_bounded_in_bytes_and_what_leaves_early_is_counted() -> None:
    stream, long = empty(), {**ERROR, "message": "m" * 600}
    dropped = [stream.remember(f"c{n}", answer(f"c{n}", "d", 1, 0, long, 0.0)) for n in range(800)]
    assert len(codec.encode(stream)) < KEEP_BYTES + 1000
    assert sum(dropped) == 800 - len(stream.answered) > 0
    assert list(stream.answered) == [f"c{n}" for n in range(800 - len(stream.answered), 800)]


def test_the_last_32_answers_stay_whatever_they_weigh_until_the_record_must_shed_them() -> None:
    stream, huge = empty(), {**ERROR, "message": "m" * 10_000}
    for number in range(40):
        stream.remember(f"c{number}", answer(f"c{number}", "d", 1, 0, huge, 0.0))
    assert len(stream.answered) == 32
    before = len(codec.encode(stream))
    assert stream.shed(25_000) == 3
    assert before - len(codec.encode(stream)) >= 25_000
    assert list(stream.answered) == [f"c{n}" for n in range(11, 40)]
    assert stream.shed(10**9) == 28
    assert list(stream.answered) == ["c39"]


def test_a_copy_changes_alone() -> None:
    stream = empty()
    other = stream.copy()
    remember(other, "c", 0.0)
    other.origins["t/0"] = (1, 0)
    assert stream == empty()


outcomes = st.tuples(st.integers(0, 9), st.none()) | st.just((0, ERROR))


@given(
    st.integers(0, 10**9),
    st.builds(Basket, texts, st.lists(st.tuples(texts, st.decimals(allow_nan=False, allow_infinity=False))).map(tuple)),
    st.dictionaries(texts, outcomes, max_size=5),
    st.dictionaries(texts, st.tuples(st.integers(0, 10**12), st.integers(0, 9)), max_size=3),
)
def test_a_stream_comes_back_from_its_record(
    version: int, state: Basket, answers: dict[str, Any], origins: dict[str, tuple[int, int]]
) -> None:
    answered = {id_: answer(id_, "d", 3, events, error, 7.0) for id_, (events, error) in answers.items()}
    stream = Stream(version, state, answered, origins)
    record = codec.encode(stream)
    assert codec.decode(record, 7.0) == stream
    assert codec.version(record) == version
    assert codec.encode(codec.decode(record, 0.0)) == record


def test_the_record_is_what_the_format_says() -> None:
    stream = Stream(2, Basket("h", (("p", Decimal("1.50")),)), {}, {"t/0": (5, 1)})
    stream.remember("c1", answer("c1", "d1", 1, 2, None, 0.0))
    stream.remember('"', answer('"', "d2", 2, 0, ERROR, 0.0))
    assert json.loads(codec.encode(stream)) == {
        "version": 2,
        "state": {"household": "h", "lines": [["p", "1.50"]], "closed": False},
        "answered": [["c1", "d1", 1, 2], ['"', "d2", 2, ERROR]],
        "origins": {"t/0": [5, 1]},
    }


@pytest.mark.parametrize(
    "record",
    [b"", b"{}", b"[]", b"null", b'{"version":1,"state":{},"answered":[1],"origins":{}}', b'{"version":"x"}', b"\xff",
     b'{"version":1,"state":{"closed":"?"},"answered":[],"origins":{}}',
     b'{"version":1,"state":{},"answered":[],"origins":[]}'],
)  # fmt: skip
def test_a_record_that_is_none_breaks_the_contract(record: bytes) -> None:
    with pytest.raises(ContractError):
        codec.decode(record, 0.0)
