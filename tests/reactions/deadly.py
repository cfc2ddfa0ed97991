"""A reaction that kills its process at one event, while others are under way beside it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from leftfold import Delivery, Reaction
from leftfold.engine.reactions.deadline_executor import DEATHS, PoisonPillTracker
from leftfold.engine.reactions.pending import PendingDelivery
from tests.domains.visits import Paid, app_with
from tests.reactions.hooks import post

__all__ = ["KILLER", "NAME", "PATIENCE", "TWIN", "app"]

TWIN = "TESTS_DEADLY_TWIN"
"""What in the environment takes a part of the mechanism away: `forgetful` or `together`."""
NAME, KILLER, PATIENCE = "deadly", "killer", 5.0
_innocents: set[str] = set()
_is_begun = threading.Event()


def _awaited(condition: Callable[[], bool]) -> None:
    """Waits for a condition, in vain where an event is tried alone."""
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


def act(event: Paid, delivery: Delivery) -> None:
    """Dies with others under way, or is one of them."""
    post(f"/{event.visit}", delivery, delivery.idempotency_key)
    if event.visit == KILLER:
        _is_begun.set()
        _awaited(lambda: len(_innocents) >= 2)
        os.kill(os.getpid(), signal.SIGKILL)
    _innocents.add(event.visit)
    _awaited(_is_begun.is_set)
    if _is_begun.is_set():
        _awaited(lambda: False)  # still under way when the process dies
    _innocents.discard(event.visit)


def _together(self: PoisonPillTracker, pending: PendingDelivery) -> int:
    deaths = _deaths(self, pending)
    return deaths if deaths >= DEATHS else 0


_deaths = PoisonPillTracker.deaths
if os.environ.get(TWIN) == "forgetful":
    PoisonPillTracker.hold = lambda self, place, left: None  # type: ignore[method-assign]
if os.environ.get(TWIN) == "together":
    PoisonPillTracker.deaths = _together  # type: ignore[method-assign]
app = app_with(Reaction(NAME, events=Paid, act=act, since="start"))
