from __future__ import annotations

import pytest
import typer

from leftfold.cli.options import seconds


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90.0), ("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0), ("250 ms", 0.25), (60.0, 60.0)]
)
def test_lengths_of_time_are_read_as_people_write_them(text: str | float, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-1s", "1d", "soon", "1 s s"])
def test_what_is_no_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="write 30s, 5m or 1h"):
        seconds(text)
