"""What happens a thousand times is reported twice: the first, and how often since."""

from __future__ import annotations

from leftfold.engine.progress import AGAIN, ReportLimiter
from tests.reports import Reports


def test_repeated_reports_are_one_report_and_then_a_count() -> None:
    reported, now = Reports(), 5.0
    seldom = ReportLimiter(reported, lambda: now)
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
