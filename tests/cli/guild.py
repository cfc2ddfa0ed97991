"""Bells that a process rings in time, with a view of them and a reaction that hears them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from leftfold import App, Delivery, FoldView, Reaction
from tests.process.alarms import Rang, Wound, alarm_called, bells

__all__ = ["HEARD", "app"]

HEARD = "TESTS_GUILD_HEARD"
"""What in the environment names the file where bells that were heard are written."""


@dataclass(frozen=True)
class Times:
    times: int


def hear(event: Rang, delivery: Delivery) -> None:
    with Path(os.environ[HEARD]).open("a", encoding="utf-8") as heard:
        heard.write(f"{event.bell}\n")


def fail(event: Rang, delivery: Delivery) -> None:
    raise RuntimeError(f"{event.bell} is not heard")


def count(row: Times | None, event: Wound) -> Times:
    return Times(row.times + 1 if row else 1)


app = App(
    "guild",
    partitions=1,
    deciders=[bells],
    processes=[alarm_called("watch")],
    views=[FoldView("wound", events=Wound, row=Times, evolve=count)],
    reactions=[
        Reaction("herald", events=Rang, act=hear),
        Reaction("mute", events=Rang, act=fail, attempts=1, since="start"),
    ],
    lateness=timedelta(),
)
