"""Bells that ring at a time: a process of timers alone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from leftfold import App, Command, Decider, Event, Process, Timer

__all__ = ["Rang", "Ring", "Wind", "Wound", "alarm_called", "app", "bells"]


class Wound(Event, category="bells", key="bell"):
    bell: str
    at: datetime


class Rang(Event, category="bells", key="bell"):
    bell: str


class Wind(Command, category="bells", key="bell"):
    bell: str
    at: datetime


class Ring(Command, category="bells", key="bell"):
    bell: str


BellCommand: TypeAlias = Wind | Ring
BellEvent: TypeAlias = Wound | Rang


def _bell(command: BellCommand, rang: int) -> Sequence[BellEvent]:
    match command:
        case Wind(bell=bell, at=at):
            return [Wound(bell=bell, at=at)]
        case Ring(bell=bell):
            return [Rang(bell=bell)]


def _alarm(given: Wound, state: int) -> Sequence[Ring | Timer[Ring]]:
    return [Timer(name="ring", at=given.at, command=Ring(bell=given.bell))]


bells = Decider(
    "bells",
    commands=BellCommand,
    events=BellEvent,
    state=int,
    initial_state=0,
    decide=_bell,
    evolve=lambda rang, event: rang + isinstance(event, Rang),
)


def alarm_called(name: str) -> Process[Wound, int, Ring]:
    """The process that rings a bell at its time."""
    return Process(
        name,
        inputs=Wound,
        sends=Ring,
        state=int,
        initial_state=0,
        correlate=lambda given: given.bell,
        react=_alarm,
        evolve=lambda wound, given: wound + 1,
    )


app = App("belfry", partitions=4, deciders=[bells], processes=[alarm_called("alarm")])
