"""What an operator tells an instance of a process to do with a timer: an input like any other (decision 31)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from leftfold.codec import utc_text
from leftfold.engine.batch import HeaderList, Outgoing
from leftfold.engine.inputs import CANCEL, DUE
from leftfold.engine.instance import Due
from leftfold.engine.received import CONTENT_TYPE, SPEC_VERSION, command_id

__all__ = ["Action", "Order", "SetTimer", "order_record"]


class Action(StrEnum):
    """What is to be done with a timer."""

    FIRE = "fire"
    CANCEL = "cancel"


class SetTimer(NamedTuple):
    """A timer as it stands in the state of a process."""

    partition: int
    key: str
    name: str
    due: Due


@dataclass(frozen=True)
class Order:
    """Who wants it and why, and what time it is in the log: the command that a fired timer sends bears that."""

    action: Action
    actor: str
    reason: str
    at: datetime


def order_record(app: str, process: str, timer: SetTimer, order: Order) -> Outgoing:
    """The input that fires a timer early, or ends it, as the input `by` set it: another setting is left alone.

    Each order has an id of its own, so that a trace tells which one took effect.
    """
    raw = timer.key.encode()
    value = {"name": timer.name, "at": timer.due.at, "by": timer.due.by, "actor": order.actor}
    value["reason"] = order.reason
    headers: HeaderList = [
        SPEC_VERSION,
        ("ce_id", command_id().encode()),
        ("ce_source", f"/{app}/{process}".encode()),
        ("ce_type", DUE if order.action is Action.FIRE else CANCEL),
        ("ce_subject", raw),
        ("ce_time", utc_text(order.at).encode()),
        ("ce_correlationid", timer.due.correlation.encode()),
        ("ce_causationid", timer.due.by.encode()),
        CONTENT_TYPE,
    ]
    return Outgoing(timer.partition, raw, json.dumps(value, separators=(",", ":")).encode(), headers)
