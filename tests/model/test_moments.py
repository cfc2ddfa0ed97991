from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leftfold.engine.processing.log_time import LogTime, SourceTime, Watermark
from leftfold.model.encoding import time_at, time_in

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ANY_TIME = st.one_of(
    st.none(), st.sampled_from([0, -1, 1 << 62, -(1 << 62), 1_767_225_600_000]).map(time_at),
    st.datetimes(timezones=st.just(UTC)), st.timedeltas(timedelta(days=-3), timedelta(days=3)).map(NOW.__add__),
)  # fmt: skip


@given(st.binary(max_size=40) | st.datetimes().map(lambda at: at.isoformat().encode()))
def test_any_text_is_a_time_with_its_zone_or_none(text: bytes) -> None:
    found = time_in(text)
    assert found is None or found.tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [b"", b"yesterday", b"2026-01-01", b"2026-01-01T00:00:00", b"0001-01-01T00:00:00+23:59", b"\xff"],
)
def test_what_is_no_moment_is_none(text: bytes) -> None:
    assert time_in(text) is None


def test_a_moment_is_in_utc_however_it_was_written() -> None:
    assert time_in(b"2026-01-01T01:00:00+01:00") == NOW
    assert time_in(b"2026-01-01T00:00:00Z") == NOW
    assert time_at(1_767_225_600_000) == NOW


@given(st.integers())
def test_any_number_of_milliseconds_is_a_time(milliseconds: int) -> None:
    assert datetime(1970, 1, 1, tzinfo=UTC) <= time_at(milliseconds) <= datetime.max.replace(tzinfo=UTC)


@given(ANY_TIME, ANY_TIME, ANY_TIME, st.booleans())
def test_whatever_a_record_claims_the_clock_goes_on(
    time: datetime | None, appended: datetime | None, end: datetime | None, loading: bool
) -> None:
    source = SourceTime(time, appended, end)
    at = source.is_at(loading=loading)
    assert at is None or time is None or at in (time, appended, end) or time <= at
    log = LogTime(["a"])
    log.tell(0, Watermark.decode(Watermark({"a": source}).encode()))
    log.now(0)
