"""Scenarios of the purse with mishaps of their own, which the others never meet: what each is, see `MISHAPS`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from leftfold.engine.processing.partition_processor import PartitionProcessor
from leftfold.engine.processing.worker_tasks import TaskSpec
from leftfold.kafka.worker.clients import KafkaClientSupplier
from leftfold.model.app import App
from leftfold.model.messages import Command
from leftfold.ports.protocols import LogReader, RawRecord
from leftfold.testing.simulation.environment import active
from leftfold.testing.simulation.schedules import Scenario
from tests.simulation.scenarios.purse import load_of
from tests.worker.bank import bank

__all__ = [
    "BROKEN",
    "COMMITS",
    "CUT",
    "HEAVY",
    "LOG",
    "MISHAPS",
    "MISPLACED",
    "OUTBOX",
    "REMADE",
    "REUSED",
    "SLOW",
    "STRAY",
    "UPGRADED",
]

_BANK = bank("mishaps", partitions=3)
LOG = Scenario(_BANK.app, load_of(_BANK), kinds=("cut events", "copy events"), is_operated=True)
CUT = Scenario(_BANK.app, load_of(_BANK), kinds=("cut commands",), is_operated=True)
REMADE = Scenario(_BANK.app, load_of(_BANK), kinds=("remake commands", "trim commands"))
MISPLACED = Scenario(_BANK.app, load_of(_BANK), kinds=("misplace commands", "misplace commands", "kill", "late"))
REUSED = Scenario(_BANK.app, load_of(_BANK, accounts=1), shares_ids=True)
OUTBOX = Scenario(_BANK.app, load_of(_BANK), kinds=("break outbox", "kill", "unanswered", "late"))
COMMITS = Scenario(_BANK.app, load_of(_BANK), kinds=("reset", "reset", "reset", "silent"))
BROKEN = Scenario(_BANK.app, load_of(_BANK), kinds=("break sender", "kill", "unanswered", "late"))


def _many(chance: random.Random) -> Sequence[Sequence[Command]]:
    """More commands of one account than are remembered, over more than a minute."""
    return [[_BANK.deposit("a0", chance.randrange(9) + 1) for _ in range(60)] for _ in range(2)]


STRAY = Scenario(_BANK.app, _many, kinds=("stray",), pace=1.5)

_LONG = "a" * 300


def _refused(chance: random.Random) -> Sequence[Sequence[Command]]:
    """Long refusals of one account: all of them are too much for its record, those of one client are not."""
    few = [_BANK.deposit(_LONG, 1), _BANK.withdraw(_LONG, 100), _BANK.withdraw(_LONG, 100), _BANK.withdraw(_LONG, 100)]
    return [[chance.choice(few) for _ in range(12)] for _ in range(2)]


HEAVY = Scenario(_BANK.app, _refused, make=partial(KafkaClientSupplier, max_bytes=12_500))


def _sleep(seconds: float) -> None:
    """Virtual time passes."""
    active().scheduler.wait(seconds)


_SLOW = bank("slow", partitions=3, sleep=_sleep)


def _dwelling(chance: random.Random) -> Sequence[Sequence[Command]]:
    """Commands of many clients at once, which take seconds each to decide: together more than a transaction may."""
    return [[_SLOW.dwell(f"a{chance.randrange(5)}", 0.5 + chance.random()) for _ in range(2)] for _ in range(16)]


SLOW = Scenario(_SLOW.app, _dwelling)


class _SlowDisk(KafkaClientSupplier):
    """Restores of a later version read one record after the other, each of which takes more than a second."""

    _seconds = 0.0

    def processor(self, app: App, task: TaskSpec) -> PartitionProcessor[Any]:
        self._seconds = 1.6 if task.version > 1 else 0.0
        return super().processor(app, task)

    def open_log(self) -> LogReader:
        log = super().open_log()
        slow: Any = _OneByOne(log, self._seconds) if self._seconds else log
        return slow  # type: ignore[no-any-return]  # it hands on what it does not know


class _OneByOne:
    def __init__(self, log: LogReader, seconds: float) -> None:
        self._log, self._seconds = log, seconds

    def poll(self, limit: int, timeout: float) -> Sequence[RawRecord]:
        if records := self._log.poll(1, timeout):
            active().scheduler.wait(self._seconds)
        return records

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


UPGRADED = Scenario(_BANK.app, load_of(_BANK), make=_SlowDisk, upgraded=bank("mishaps", version=2, partitions=3).app)

MISHAPS = {
    "damaged log": LOG,
    "cut commands": CUT,
    "commands made again or trimmed": REMADE,
    "stray commands": STRAY,
    "commands in partitions of others": MISPLACED,
    "ids that two clients use": REUSED,
    "long refusals": HEAVY,
    "slow deciders": SLOW,
    "commits that arrive twice or get no answer": COMMITS,
    "broken senders of answers": BROKEN,
    "broken senders of commands": OUTBOX,
    "upgraded deciders": UPGRADED,
}
