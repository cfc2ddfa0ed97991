"""What a planted bug is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from leftfold.engine.processing import command_processor
from leftfold.testing.simulation.schedules import Scenario
from tests.simulation.scenarios.purse import PURSE

__all__ = ["Bug", "Patch", "decide_with", "module_of"]

Patch = tuple[Any, str, Any]
"""Where, which attribute, and what stands there instead."""


@dataclass(frozen=True)
class Bug:
    """What is patched, and the scenario that must show it."""

    patches: Callable[[], Sequence[Patch]]
    scenario: Scenario = PURSE


def module_of(cls: type) -> ModuleType:
    """The module of a class."""
    return sys.modules[cls.__module__]


def decide_with(change: Callable[[Any, Any], Any]) -> Sequence[Patch]:
    """Every command is decided as what is made of it beside its stream: `change(stream, received)`."""
    decide = command_processor.decide

    def changed(decider: Any, codec: Any, stream: Any, received: Any, *more: Any) -> Any:
        return decide(decider, codec, stream, change(stream, received), *more)

    return [(command_processor, "decide", changed)]
