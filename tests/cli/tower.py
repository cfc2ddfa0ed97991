"""The belfry beside a view that is folded slowly, and a process that has never run."""

from __future__ import annotations

import time
from dataclasses import dataclass

from leftfold import App, FoldView
from tests.process.alarms import Wound, alarm_called, bells

__all__ = ["app", "with_younger"]


@dataclass(frozen=True)
class Times:
    times: int


def slowly(row: Times | None, event: Wound) -> Times:
    time.sleep(0.1)
    return Times(row.times + 1 if row else 1)


wound = FoldView("wound", events=Wound, row=Times, evolve=slowly)
app = App("tower", partitions=1, deciders=[bells], processes=[alarm_called("quiet")], views=[wound])
with_younger = App("younger", partitions=1, processes=[alarm_called("younger")])
