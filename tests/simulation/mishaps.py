"""The scenarios of damaged topics: cut, trimmed or made again under workers of the purse."""

from __future__ import annotations

from leftfold.testing.simulation.schedules import Scenario
from tests.simulation.purse import load_of
from tests.worker.bank import bank

__all__ = ["CUT", "LOG", "REMADE"]

_BANK = bank("mishaps", partitions=3)
LOG = Scenario(_BANK.app, load_of(_BANK), kinds=("cut events", "copy events"), is_operated=True)
CUT = Scenario(_BANK.app, load_of(_BANK), kinds=("cut commands",), is_operated=True)
REMADE = Scenario(_BANK.app, load_of(_BANK), kinds=("remake commands", "trim commands"))
