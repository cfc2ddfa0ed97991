from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold import ContractError
from leftfold.engine.processing.log_time import SILENCE, LogTime, SourceTime, Watermark
from leftfold.model.encoding import time_at
from leftfold.ports.protocols import RawRecord

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OLD = datetime(2017, 5, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
A, B = "orders.events/0", "orders.events/1"


def test_time_is_where_the_slowest_source_is() -> None:
    time = LogTime([A, B])
    time.tell(0, Watermark({A: SourceTime(NOW, NOW)}))
    assert time.now(0) is None, "nothing is known of the other"
    time.tell(0, Watermark({B: SourceTime(OLD, NOW)}))
    assert time.now(0) == OLD


def test_a_source_at_its_end_goes_by_the_wall_clock() -> None:
    assert SourceTime(NOW, NOW, NOW + SECOND).is_at() == NOW + SECOND
    assert SourceTime(end=NOW).is_at() == NOW, "nothing ever came"
    assert SourceTime(NOW, NOW).is_at() == NOW, "more is waiting there"
    assert SourceTime().is_at() is None


def test_a_slow_load_of_old_events_is_in_the_past_until_it_falls_silent() -> None:
    loading = SourceTime(OLD, NOW, NOW + SECOND)
    assert loading.is_at() == OLD + SECOND
    assert SourceTime(OLD, NOW, NOW + SILENCE).is_at() == NOW + SILENCE
    assert SourceTime(NOW - SECOND, NOW, NOW + SECOND).is_at() == NOW + SECOND, "a second is not late"


def test_a_clock_that_runs_ahead_of_the_broker_does_not_move_time_ahead() -> None:
    assert SourceTime(NOW + timedelta(hours=1), NOW, NOW + SECOND).is_at() == NOW + SECOND
    assert SourceTime(NOW + timedelta(hours=1), NOW).is_at() == NOW


def test_a_watermark_counts_no_further_than_its_broker_time() -> None:
    """One router with a clock that is a year ahead would fire every timer, and none can be taken back."""
    checkpoint = Watermark({A: SourceTime(end=NOW + timedelta(days=365)), B: SourceTime(NOW, NOW, NOW + SECOND)})
    record = RawRecord("checkout.time", 0, 0, None, checkpoint.encode(), [], int((NOW + 2 * SECOND).timestamp() * 1000))
    time, rash = LogTime([A, B]), LogTime([A, B])
    time.tell(0, Watermark.of(record))
    rash.tell(0, checkpoint)
    assert (time.now(0), time.clock) == (NOW + SECOND, NOW + 2 * SECOND)
    assert rash.clock == NOW + timedelta(days=365), "the twin takes what it is told"
    assert Watermark.of(record).sources[A].is_at() == NOW + 2 * SECOND


def test_a_watermark_counts_once_the_inputs_before_it_are_taken() -> None:
    time = LogTime([A])
    time.tell(3, Watermark({A: SourceTime(OLD, NOW)}, {3: 5}))
    time.tell(3, Watermark({A: SourceTime(NOW, NOW)}, {3: 9}))
    assert time.now(4) is None
    assert time.now(5) == OLD
    assert time.now(8) == OLD
    assert time.now(9) == NOW


def test_an_input_moves_the_time_of_its_source() -> None:
    time = LogTime([A])
    time.tell(0, Watermark({A: SourceTime(end=NOW)}))
    assert time.now(0) == NOW
    time.tell(0, Watermark({A: SourceTime(end=NOW)}, {0: 5}))
    time.saw(A, OLD, NOW, 6, 3)
    assert time.now(7) == OLD, "old events are being loaded, and the next mark is not here yet"
    time.tell(0, Watermark({A: SourceTime(end=NOW)}, {0: 6}))
    assert time.now(7) == OLD, "this one was told before"
    time.saw("elsewhere/0", NOW, NOW, 7, 0)
    assert time.now(8) == OLD
    time.tell(0, Watermark({A: SourceTime(end=NOW)}, {0: 8}))
    assert time.now(8) == NOW


@pytest.mark.parametrize("names_next", [True, False], ids=["", "twin"])
def test_a_duplicate_that_is_written_late_does_not_hold_time_back(names_next: bool) -> None:
    """The routers know nothing of the record at 7: the twin's watermarks never count again."""
    time = LogTime([A])
    time.saw(A, OLD, OLD, 6, 3)
    time.saw(A, OLD, OLD, 7, 3)
    time.tell(0, Watermark({A: SourceTime(OLD, OLD, NOW)}, {0: 7}, {A: 3}))
    assert time.now(8) == OLD, "this router has not routed that event yet"
    time.tell(0, Watermark({A: SourceTime(OLD, OLD, NOW)}, {0: 7}, {A: 4} if names_next else {}))
    assert time.now(8) == (NOW if names_next else OLD)


def test_while_a_category_is_loaded_an_empty_one_does_not_move_time() -> None:
    time = LogTime([A, B])
    time.tell(0, Watermark({A: SourceTime(OLD, NOW, NOW + SECOND), B: SourceTime(end=NOW + SECOND)}))
    assert time.now(0) is None, "what belongs to B may be loaded next"
    time.tell(0, Watermark({B: SourceTime(OLD - SECOND, NOW + SECOND, NOW + SECOND)}))
    assert time.now(0) == OLD - SECOND
    quiet = NOW + 2 * SILENCE
    time.tell(0, Watermark({A: SourceTime(OLD, NOW, quiet), B: SourceTime(OLD, quiet, quiet)}))
    assert time.now(0) == OLD, "A has been silent for long, but the load goes on"
    time.tell(0, Watermark({A: SourceTime(OLD, NOW, quiet), B: SourceTime(NOW, NOW, quiet)}))
    assert time.now(0) == quiet, "nothing old has come for a minute"


def test_an_old_input_shows_a_load_before_any_watermark_does() -> None:
    time = LogTime([A, B])
    time.tell(0, Watermark({A: SourceTime(end=NOW), B: SourceTime(end=NOW)}))
    time.saw(A, OLD, NOW, 0, 0)
    assert time.now(1) is None


def test_events_that_come_hours_late_are_no_load() -> None:
    time, hours = LogTime([A, B]), timedelta(hours=23)
    time.tell(0, Watermark({A: SourceTime(NOW - hours, NOW, NOW + SECOND), B: SourceTime(end=NOW + SECOND)}))
    assert time.now(0) == NOW + SECOND - hours, "an empty partition does not stop timers for what comes late by nature"


def test_log_time_is_never_later_than_the_known_clock() -> None:
    time = LogTime([A, B])
    time.tell(0, Watermark({A: SourceTime(OLD, OLD + SECOND), B: SourceTime(OLD + SECOND, OLD + SECOND)}))
    assert time.now(0) == OLD
    assert time.clock == OLD + SECOND
    time.saw(A, OLD + SILENCE, OLD + SILENCE, 0, 0)
    assert time.clock == OLD + SILENCE
    time.tell(0, Watermark({B: SourceTime(end=NOW)}, {0: 7}))
    assert time.clock == NOW, "what waits for inputs tells the clock at once"


def test_a_watermark_comes_back_from_its_record_and_other_bytes_are_refused() -> None:
    checkpoint = Watermark({A: SourceTime(OLD, NOW, NOW + SECOND), B: SourceTime()}, {0: 7, 11: 0}, {A: 5})
    assert Watermark.decode(checkpoint.encode()) == checkpoint
    assert Watermark.decode(b'{"sources":{"a":{"newer":1}},"inputs":{},"more":2}') == Watermark({"a": SourceTime()})
    for wrong in (b"", b"{}", b"[]", b'{"sources":{"a":{"time":"x"}},"inputs":{}}', b'{"sources":[],"inputs":{}}'):
        with pytest.raises(ContractError, match="says no time"):
            Watermark.decode(wrong)


@pytest.mark.parametrize("lateness", [None, timedelta(hours=1), timedelta()])
def test_late_events_hold_time_back_no_longer_than_the_lateness_of_the_app(lateness: timedelta | None) -> None:
    time = LogTime([A, B], lateness)
    for round_ in range(100):
        at = NOW + round_ * timedelta(seconds=50)
        time.tell(0, Watermark({A: SourceTime(OLD, at, at + SECOND), B: SourceTime(end=at + SECOND)}))
        time.saw(A, OLD, at, round_, round_)
    if lateness is None:
        assert time.now(100) is None, "the twin: old events seem to be loaded, and no timer is due"
    else:
        assert time.now(100) == at - lateness


def test_events_within_the_lateness_hold_time_back() -> None:
    late = SourceTime(NOW - timedelta(minutes=30), NOW, NOW + SECOND)
    assert late.within(timedelta(hours=1)) == late
    assert SourceTime().within(timedelta()) == SourceTime()
    assert not late.within(timedelta()).is_loaded(NOW)


ANY_TIME = st.one_of(
    st.none(), st.sampled_from([0, -1, 1 << 62, -(1 << 62), 1_767_225_600_000]).map(time_at),
    st.datetimes(timezones=st.just(UTC)), st.timedeltas(timedelta(days=-3), timedelta(days=3)).map(NOW.__add__),
)  # fmt: skip


@given(ANY_TIME, ANY_TIME, ANY_TIME, st.booleans())
def test_any_times_of_a_source_leave_the_clock_valid(
    time: datetime | None, appended: datetime | None, end: datetime | None, loading: bool
) -> None:
    source = SourceTime(time, appended, end)
    at = source.is_at(loading=loading)
    assert at is None or time is None or at in (time, appended, end) or time <= at
    log = LogTime(["a"])
    log.tell(0, Watermark.decode(Watermark({"a": source}).encode()))
    log.now(0)
