"""A trade whose process and stock misbehave, each at a product of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

from leftfold import App, Decider
from tests.domains.trade import (
    Checkout,
    Input,
    Placed,
    Release,
    Reserve,
    StockCommand,
    StockEvent,
    checkout_with,
    orders,
    payments,
    react,
    stock,
)

__all__ = ["KILLS", "RAISES", "UNDECIDABLE", "WRONG", "app", "corrected"]

RAISES, KILLS, WRONG, UNDECIDABLE = "raises", "kills", "wrong", "undecidable"


def _misbehaves(given: Input, state: Checkout) -> Sequence[Any]:
    if isinstance(given, Placed):
        if given.product == RAISES:
            raise KeyError("a bug in react")
        if given.product == KILLS:
            os.kill(os.getpid(), signal.SIGKILL)
        if given.product == WRONG:
            return ["neither command nor timer"]
    return react(given, state)


def _undecided(command: StockCommand, left: int) -> Sequence[StockEvent]:
    if command.product == UNDECIDABLE:
        raise KeyError("a bug in decide")
    return stock.decide(command, left)


_stock = Decider(
    "stock",
    commands=Reserve | Release,
    events=StockEvent,
    state=int,
    initial_state=2,
    decide=_undecided,
    evolve=stock.evolve,
)


def _with(**other: Any) -> App:
    return App("trade", partitions=4, deciders=[orders, _stock, payments], processes=[checkout_with(**other)])


def corrected(version: int) -> App:
    """The same with a process that misbehaves no more."""
    return _with(version=version)


app = _with(react=_misbehaves)
