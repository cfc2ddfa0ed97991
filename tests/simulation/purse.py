"""The scenario of the write path: two workers and two clients, whose commands are accepted, refused, or empty."""

from __future__ import annotations

import random
from collections.abc import Sequence

from leftfold.messages import Command
from leftfold.testing.simulation.schedules import Scenario
from tests.worker.bank import bank

__all__ = ["PURSE"]

_BANK = bank("purse", partitions=3)
_ACCOUNTS, _CLIENTS, _COMMANDS = 5, 2, 8


def _load(chance: random.Random) -> Sequence[Sequence[Command]]:
    return [[_command(chance) for _ in range(_COMMANDS)] for _ in range(_CLIENTS)]


def _command(chance: random.Random) -> Command:
    account = f"a{chance.randrange(_ACCOUNTS)}"
    return chance.choice(
        [
            _BANK.deposit(account, chance.randrange(9) + 1),
            _BANK.deposit(account, 2, parts=chance.randrange(3) + 1),
            _BANK.withdraw(account, 3),
            _BANK.look(account),
        ]
    )


PURSE = Scenario(_BANK.app, _load)
