"""An App of which a timer waits for an hour, and a view is folded slowly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from leftfold import App, Command, Decider, Event, FoldView, Process, Timer

__all__ = ["Hush", "Hushed", "Ring", "Rung", "app", "with_younger"]


class Rung(Event, category="bells", key="bell"):
    bell: str
    at: datetime


class Hushed(Event, category="bells", key="bell"):
    bell: str


class Ring(Command, category="bells", key="bell"):
    bell: str
    at: datetime


class Hush(Command, category="bells", key="bell"):
    bell: str


@dataclass(frozen=True)
class Times:
    times: int


def decide(command: Ring | Hush, state: int) -> Sequence[Rung | Hushed]:
    match command:
        case Ring(bell=bell, at=at):
            return [Rung(bell=bell, at=at)]
        case Hush(bell=bell):
            return [Hushed(bell=bell)]


def later(event: Rung, state: int) -> Sequence[Timer[Hush]]:
    return [Timer(name="hush", at=event.at + timedelta(hours=1), command=Hush(bell=event.bell))]


def slowly(row: Times | None, event: Rung) -> Times:
    time.sleep(0.1)
    return Times(row.times + 1 if row else 1)


def process(name: str) -> Process[Rung, int, Hush]:
    return Process(
        name,
        inputs=Rung,
        sends=Hush,
        state=int,
        initial_state=0,
        correlate=lambda event: event.bell,
        react=later,
        evolve=lambda state, event: state + 1,
    )


bells = Decider(
    "bells",
    commands=Ring | Hush,
    events=Rung | Hushed,
    state=int,
    initial_state=0,
    decide=decide,
    evolve=lambda state, event: state + 1,
)
rung = FoldView("rung", events=Rung, row=Times, evolve=slowly)
app = App("tower", partitions=1, deciders=[bells], processes=[process("quiet")], views=[rung])
with_younger = App("younger", partitions=1, processes=[process("younger")])
