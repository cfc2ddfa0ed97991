"""`leftfold plan` predicts without any server."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.cli.shell import Typed

APP = ("--app", "services.baskets.app:app")


def test_every_view_is_told_at_a_million_a_billion_and_a_trillion(typed: Callable[..., Typed]) -> None:
    told = typed("plan", "--json", *APP)
    assert told.code == 0, told.err
    rows = [json.loads(line) for line in told.out.splitlines()]
    views = {row["view"] for row in rows}
    assert len(rows) == 3 * len(views) == 12
    assert {row["events"] for row in rows} == {10**6, 10**9, 10**12}
    assert all(row["seconds"] > 0 and row["tasks"] >= 1 and row["machine_mb"] > 0 for row in rows)


def test_hardware_and_sizes_are_options(typed: Callable[..., Typed]) -> None:
    words = ("plan", "basket_summary", "--events", "1e12", "--partitions", "512", *APP)
    small, large = (
        typed(*words),
        typed(*words, "--cores", "512", "--machines", "32", "--brokers", "9", "--stores", "64"),
    )
    assert (small.code, large.code) == (0, 0)
    assert "1,000,000,000,000" in small.out
    assert "held up by" in small.out
    assert "512 cores of 32 machine(s), 9 broker(s), 64 server(s)" in large.out
    assert " d " in small.out
    assert " h " in large.out


def test_a_view_that_is_not_there_is_met_with_the_nearest(typed: Callable[..., Typed]) -> None:
    told = typed("plan", "basket_sumary", *APP)
    assert told.code == 2
    assert "basket_summary" in told.err


def test_what_is_sparks_is_refused_for_a_tail(typed: Callable[..., Typed]) -> None:
    told = typed("run", "basket_summary", "--trigger", "5", *APP)
    assert told.code == 2
    assert "say --engine spark" in told.err
