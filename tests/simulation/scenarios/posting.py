"""The scenario of reactions: each deposit is posted, with tries that fail and take time, and one that is refused."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

from leftfold.model.app import App
from leftfold.model.messages import Command, Event
from leftfold.model.reaction import Delivery, Reaction
from leftfold.testing.simulation.environment import active
from leftfold.testing.simulation.schedules import Scenario
from tests.simulation.scenarios.purse import load_of
from tests.worker.bank import bank

__all__ = ["POST", "REFUSED"]

_BANK = bank("post", partitions=3)
_DECIDER = _BANK.app.deciders[0]
_EVENTS: Any = Union[_DECIDER.events]  # noqa: UP007  # made at run time
_FAILS = 0.2
REFUSED = 7
"""The amount of a deposit that is never posted."""
_POSTED: dict[str, list[int]] = defaultdict(list)
"""The versions of the events that were posted, by stream, in this run."""


def _post(event: Event, delivery: Delivery) -> None:
    """Posts an event in up to half a virtual second; some tries fail, before or after they took effect."""
    world = active()
    world.scheduler.wait(world.random.random() * 0.5)
    if getattr(event, "amount", 0) == REFUSED or world.random.random() < _FAILS:
        raise OSError("not now")
    _POSTED[delivery.key].append(delivery.version)
    if world.random.random() < _FAILS:
        raise OSError("no answer")


def _load(chance: random.Random) -> Sequence[Sequence[Command]]:
    _POSTED.clear()
    return load_of(_BANK)(chance)


def _check(streams: Mapping[str, Sequence[Any]]) -> Iterable[str]:
    """Each event is posted, behind the earlier ones of its stream, unless it is refused and parked."""
    for key, events in streams.items():
        posted = _POSTED[key]
        firsts = list(dict.fromkeys(posted))
        if firsts != sorted(firsts):
            yield f"posted out of order: {key}: {posted}"
        wanted = {version for version, event in enumerate(events, 1) if getattr(event, "amount", 0) != REFUSED}
        yield from (f"not posted: {key} {version}" for version in sorted(wanted.difference(posted)))
        for version in set(posted) - set(range(1, len(events) + 1)):
            yield f"posted though not written: {key} {version}"


_REACTION = Reaction(
    "letters", events=_EVENTS, act=_post, attempts=20, backoff=0.05, longest=0.5, timeout=5.0, at_once=3, since="start"
)
POST = Scenario(
    App("post", partitions=3, deciders=[_DECIDER], reactions=[_REACTION]), _load, check=_check, is_burying=True
)
