"""The scenario of the write path: two workers and two clients, whose commands are accepted, refused, or empty."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from leftfold.model.messages import Command
from leftfold.testing.simulation.schedules import Scenario
from tests.worker.bank import Bank, bank

__all__ = ["DECIDED", "FORGOTTEN", "PURSE", "RESTARTS", "WOKEN", "load_of"]

_BANK, _FULL = bank("purse", partitions=3), bank("full", partitions=1)
_ACCOUNTS, _CLIENTS, _COMMANDS = 5, 2, 8


def load_of(
    bank: Bank, *, accounts: int = _ACCOUNTS, commands: int = _COMMANDS
) -> Callable[[random.Random], Sequence[Sequence[Command]]]:
    """What draws the commands of each client."""

    def command(chance: random.Random) -> Command:
        account = f"a{chance.randrange(accounts)}"
        return chance.choice(
            [
                bank.deposit(account, chance.randrange(9) + 1),
                bank.deposit(account, 2, parts=chance.randrange(3) + 1),
                bank.withdraw(account, 3),
                bank.look(account),
            ]
        )

    return lambda chance: [[command(chance) for _ in range(commands)] for _ in range(_CLIENTS)]


PURSE = Scenario(_BANK.app, load_of(_BANK))
RESTARTS = replace(PURSE, kinds=("restart broker", "restart broker", "kill", "terminate", "kill later"))
"""Brokers that are started again, and may have forgotten what they decided, and workers that end meanwhile."""
DECIDED = replace(PURSE, kinds=("kill coordinator", "kill coordinator", "kill coordinator", "kill", "terminate"))
"""Brokers that are killed between the decision of a transaction and its markers, and may forget some of these."""
FORGOTTEN = replace(PURSE, kinds=("kill both", "kill both", "kill coordinator", "kill ender", "kill ender"))
"""The same, and soon after it the worker is killed that asked for that decision, or the one that takes over from it."""
WOKEN = Scenario(
    _FULL.app,
    load_of(_FULL, accounts=2, commands=40),
    kinds=("kill both", "kill both", "kill coordinator", "kill coordinator", "stop", "stop", "stop", "stop"),
)
"""Workers that stand still, and wake when others have taken their partition over, beside such brokers."""
