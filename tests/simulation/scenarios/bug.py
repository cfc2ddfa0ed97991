"""What a planted bug is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from leftfold.testing.simulation.schedules import Scenario
from tests.simulation.scenarios.purse import PURSE

__all__ = ["Bug", "Patch", "module_of"]

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
