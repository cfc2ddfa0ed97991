"""What happens a thousand times is reported twice: the first, and how often since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leftfold.engine.progress import AGAIN, ReportLimiter


def test_repeated_reports_are_one_report_and_then_a_count() -> None:
    reported: list[tuple[str, Mapping[str, Any]]] = []
    now = 5.0
    seldom = ReportLimiter(lambda what, details: reported.append((what, details)), lambda: now)
    for _ in range(1000):
        seldom.report("decide failed", {"why": "x"}, kind="one")
    seldom.report("decide failed", {"why": "y"}, kind="other", times=7)
    now += AGAIN
    seldom.report("decide failed", {"why": "z"}, kind="one")
    assert reported == [
        ("decide failed", {"why": "x", "times": 1}),
        ("decide failed", {"why": "y", "times": 7}),
        ("decide failed", {"why": "z", "times": 1000}),
    ]
