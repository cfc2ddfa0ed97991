"""Commands that fold event by event say so when they are asked about a view that Spark computes as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli.shell import Typed

APP = "--app=services.reports.app:app"


@pytest.mark.parametrize(
    "words",
    [("explain", "store_daily", "367/2017-03-01"), ("retry", "store_daily"), ("verify", "store_daily")],
    ids=str,
)
def test_a_computed_view_cannot_be_looked_at_event_by_event(
    typed: Callable[..., Typed], words: tuple[str, ...]
) -> None:
    told = typed(*words, APP)
    assert told.code == 2
    assert "view store_daily is computed as a whole by Spark" in told.err
    assert told.err.endswith(
        "leftfold rebuild store_daily\nfor these commands: export LEFTFOLD_APP=services.reports.app:app\n"
    )


@pytest.mark.parametrize("option", ["--hold", "--sample=1%"])
def test_a_computed_view_cannot_be_held_back_or_sampled(typed: Callable[..., Typed], option: str) -> None:
    told = typed("rebuild", "store_daily", option, APP)
    assert (told.code, "--hold and --sample are for views that are folded" in told.err) == (2, True)
