"""Gives an order about a timer, and tells what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import typer

from leftfold.cli.agreeing import agreed
from leftfold.cli.console import emit, note, say
from leftfold.cli.hints import for_app
from leftfold.cli.project import load_app
from leftfold.cli.signed import signed
from leftfold.cli.timing import Ordered, TimerWork, process_of
from leftfold.engine.timer_order import Action, Order, SetTimer
from leftfold.names import commands

__all__ = ["Wanted", "give"]

_NOT_TAKEN = 4


@dataclass(frozen=True)
class Wanted:
    """What was typed; `timeout` in seconds."""

    action: Action
    process: str
    key: str
    name: str
    reason: str
    by: str
    timeout: float
    yes: bool


def give(wanted: Wanted, app: str, kafka: str | None, *, as_json: bool) -> None:
    """Writes the order and waits for a worker to take it.

    Raises:
        Usage: there is no such timer, or no reason is given. typer.Exit: 4, when no worker took it in time, 1,
            when it was not to be given after all.
    """
    actor = signed(wanted.by, wanted.reason)
    whole = load_app(app, having=[wanted.process])
    process = process_of(whole, wanted.process)
    with TimerWork(whole, process, kafka) as work:
        timer = work.timer(wanted.key, wanted.name)
        agreed(_question(wanted, timer), yes=wanted.yes)
        now = work.told_time().now or datetime.now(UTC)
        order = Order(wanted.action, actor, wanted.reason, now)
        done = work.give(timer, order, wanted.timeout)
    _tell(wanted, order, done, as_json=as_json)
    if not done.taken:
        start = for_app(f"leftfold run {wanted.process}", app)
        note(
            f"no worker has taken it within {wanted.timeout:g} s; it stays in the log and counts once one does. Start "
            f"one: {start}"
        )
        raise typer.Exit(_NOT_TAKEN)


def _question(wanted: Wanted, timer: SetTimer) -> str:
    sends = f"{timer.due.type} {timer.due.value}"
    became = f"it sends {sends} now" if wanted.action is Action.FIRE else f"it will never send {sends}"
    return (
        f"{wanted.action.value} timer {timer.name} of {wanted.process} {timer.key}, due {timer.due.at}: {became}. Sure?"
    )


def _tell(wanted: Wanted, order: Order, done: Ordered, *, as_json: bool) -> None:
    topic, timer = commands(wanted.process), done.timer
    if as_json:
        place = {"topic": topic, "partition": timer.partition, "offset": done.offset}
        told = {"process": wanted.process, "key": timer.key, "timer": timer.name, "action": order.action.value}
        whom = {"actor": order.actor, "reason": order.reason, "id": done.id, "correlation_id": timer.due.correlation}
        emit({**told, "due": timer.due.at, **whom, **place, "taken": done.taken})
        return
    became = "taken; the timer is not set any more" if done.taken else "not taken yet"
    say(f"{wanted.process} {timer.key}: {order.action.value} timer {timer.name}, due {timer.due.at}: {became}")
    say(f"order {done.id} stands in {topic}[{timer.partition}]@{done.offset}; see: leftfold log trace {done.id}")
