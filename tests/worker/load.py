"""A client under load: unique commands, each sent again with the same id until it is answered."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

from leftfold.engine.processing.command_wire import command_id
from leftfold.errors import InfrastructureError, LeftfoldError, OutcomeUnknown
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.model.messages import Command
from leftfold.model.position import Receipt
from tests.waiting import wait_until
from tests.worker.bank import Bank

__all__ = ["Load", "Sent"]

ACCOUNTS = 12
ROUND = 40
PAUSE = 0.02
_UNSETTLED = (OutcomeUnknown, InfrastructureError)


@dataclass
class Sent:
    """A command, how many events it writes when accepted, and what it was answered."""

    id: str
    account: str
    command: Command
    events: int
    answer: Receipt | LeftfoldError | None = None


class Load:
    """Sends rounds of commands while the block runs; what is open at its end is sent again until it is answered."""

    def __init__(self, settings: KafkaSettings, bank: Bank, *, patience: float = 240.0) -> None:
        self._bank, self._settings, self._patience = bank, settings, patience
        self.sent: list[Sent] = []
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        if kind is None:
            self._thread.join(self._patience)
            assert not self._thread.is_alive(), f"{len(self.open)} of {len(self.sent)} commands were never answered"
            if self._failed is not None:
                raise self._failed

    @property
    def open(self) -> list[Sent]:
        """What has no answer yet."""
        return [one for one in self.sent if one.answer is None]

    @property
    def answered(self) -> int:
        """How many have one."""
        return sum(one.answer is not None for one in self.sent)

    def wait_answered(self, more: int = 100, seconds: float = 240.0) -> None:
        """Waits until so many more are answered."""
        goal = self.answered + more
        wait_until(
            lambda: self._going() and self.answered >= goal, lambda: f"{goal} answers, not {self.answered}", seconds
        )

    def _going(self) -> bool:
        assert self._failed is None, f"the load failed: {self._failed!r}"
        return True

    def _run(self) -> None:
        numbers = count()
        try:
            with KafkaClient(self._bank.name, self._settings) as client:
                while not self._stop.is_set():
                    self.sent += [self._next(next(numbers)) for _ in range(ROUND)]
                    self._settle(client)
                    self._stop.wait(PAUSE)
                while self.open:
                    self._settle(client)
        except BaseException as error:
            self._failed = error
            raise

    def _settle(self, client: KafkaClient) -> None:
        asked = self.open
        answers = client.send_many([one.command for one in asked], ids=[one.id for one in asked], timeout=2.0)
        for one, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, _UNSETTLED):
                one.answer = answer

    def _next(self, number: int) -> Sent:
        account = f"account-{number % ACCOUNTS}"
        if number % 10 == 7:
            return Sent(command_id(), account, self._bank.withdraw(account, 1_000_000_000), 0)
        parts = 1 + number % 3
        return Sent(command_id(), account, self._bank.deposit(account, number, parts), parts)
