from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer

from leftfold.cli.options import read_time, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90.0),
        ("90s", 90.0),
        ("1.5m", 90.0),
        ("2h", 7200.0),
        ("1d", 86_400.0),
        ("250 ms", 0.25),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("0", 0.0),
        (60.0, 60.0),
    ],
)
def test_lengths_of_time_are_read_as_people_write_them(text: str | float, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "-1s", "soon", "1 s s", "inf", "s"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write 30s, 5m or 1h"):
        seconds(text)


@pytest.mark.parametrize(("text", "ago"), [("30m", 1800), ("12h", 43_200), ("0d", 0), ("90d", 90 * 86_400)])
def test_an_age_is_the_time_so_long_ago(text: str, ago: float) -> None:
    latest = datetime.now(UTC) - timedelta(seconds=ago)
    assert latest <= read_time(text) <= datetime.now(UTC) - timedelta(seconds=ago)


def test_an_age_before_all_records_is_the_beginning() -> None:
    assert read_time("9999999d") == datetime(1970, 1, 1, tzinfo=UTC)


def test_a_time_is_read_with_its_zone() -> None:
    assert read_time("2026-11-01T12:00:00Z") == read_time("2026-11-01T13:00:00+01:00")
    with pytest.raises(typer.BadParameter, match="write 2026-11-01Z for UTC"):
        read_time("2026-11-01")


@pytest.mark.parametrize("text", ["", "30", "soon", "a year", "-1d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """A number alone is refused: it could be meant in days as well as in seconds."""
    with pytest.raises(typer.BadParameter, match="is no time; write 2026-01-01T00:00:00Z, or an age: 12h, 90d"):
        read_time(text)
