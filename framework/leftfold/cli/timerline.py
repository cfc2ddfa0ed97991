"""A timer as a row: for people, or as JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from leftfold.cli.console import amount, lasting
from leftfold.engine.timer_order import SetTimer
from leftfold.engine.told_time import ToldTime

__all__ = ["row_of", "shown", "told_of"]

_STALE = 10.0
"""Routers speak several times a second; one that has not for so long is gone or stuck."""
_NAMED = 3


def row_of(process: str, timer: SetTimer, told: ToldTime) -> dict[str, Any]:
    """A timer as one object; `left` is in seconds of log time, None where nobody knows how late it is."""
    due = datetime.fromisoformat(timer.due.at)
    left = None if told.now is None else (due - told.now).total_seconds()
    return {
        "process": process,
        "key": timer.key,
        "timer": timer.name,
        "due": timer.due.at,
        "log_time": told.now,
        "left": left,
        "overdue": left is not None and left <= 0,
        "sends": timer.due.type,
        "command": _body(timer.due.value),
        "by": timer.due.by,
        "correlation_id": timer.due.correlation,
        "partition": timer.partition,
    }


def shown(row: dict[str, Any]) -> dict[str, object]:
    """The row as a table shows it."""
    left = row["left"]
    told = "unknown" if left is None else lasting(left) if left > 0 else f"overdue for {lasting(-left)}"
    return {**row, "left": told, "sends": f"{row['sends']} {json.dumps(row['command'], ensure_ascii=False)}"}


def told_of(process: str, count: int, told: ToldTime, workers: int) -> str:
    """A remark: how many timers there are, how late it is in the log, and what keeps them from firing."""
    head = f"{process}: {amount(count, 'timer')}"
    if told.now is not None:
        head += f"; log time {told.now.isoformat(timespec='seconds').replace('+00:00', 'Z')} (slowest: {told.slowest})"
    elif told.told is not None and not told.silent:
        head += "; nobody can tell how late it is in the log: old events are being loaded"
    elif told.told is not None:
        more = f" and {amount(len(told.silent) - _NAMED, 'other')}" if len(told.silent) > _NAMED else ""
        head += f"; how late it is in {', '.join(told.silent[:_NAMED])}{more}, no router knows yet"
    if told.told is None or (datetime.now(UTC) - told.told).total_seconds() > _STALE:
        since = f" since {told.told.isoformat(timespec='seconds').replace('+00:00', 'Z')}" if told.told else ""
        head += f"; no router has said anything{since}, so no timer fires; start: leftfold run {process}"
    elif not workers:
        head += f"; no worker is there, so no timer fires; start: leftfold run {process}"
    return head


def _body(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
