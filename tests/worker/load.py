"""A client under load, whose commands are sent again until they are answered; and what must be true of the log then."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

from leftfold.engine.processing.command_wire import command_id
from leftfold.errors import InfrastructureError, OutcomeUnknown
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.messages import Command
from leftfold.ports.message_codec import header
from leftfold.ports.protocols import RawRecord
from leftfold.testing.simulation.witness import WitnessedCommand, is_undecided, violations
from tests.threads import Background
from tests.waiting import WAIT_SECONDS, wait_until
from tests.worker.bank import Bank
from tests.worker.broker import Broker
from tests.worker.hostile import ACCOUNT

__all__ = ["Fact", "Load", "Sent", "audit", "facts", "send"]

ACCOUNTS = 12
ROUND = 40
PAUSE = 0.02
_UNSETTLED = (OutcomeUnknown, InfrastructureError)


class Sent(WitnessedCommand):
    """A command that a client has sent, and what it was answered."""

    def __init__(self, id_: str, key: str, command: Command) -> None:
        super().__init__([id_], key, type(command).__leftfold__.category)
        self.command = command


class Load(Background):
    """Sends rounds of commands while the block runs; what is open at its end is sent again until it is answered."""

    def __init__(self, settings: KafkaSettings, bank: Bank) -> None:
        super().__init__(self._send)
        self._bank, self._settings = bank, settings
        self.sent: list[Sent] = []

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        self.stop.set()
        if kind is None:  # else nothing may be there that answers
            super().__exit__(kind, *more)

    def __str__(self) -> str:
        return f"a load with {len(self.open)} of {len(self.sent)} commands unanswered"

    @property
    def open(self) -> list[Sent]:
        """What has no answer yet."""
        return [one for one in self.sent if one.answer is None]

    @property
    def answered(self) -> int:
        """How many have one."""
        return sum(one.answer is not None for one in self.sent)

    def wait_answered(self, more: int = 100) -> None:
        """Waits until so many more are answered."""
        goal = self.answered + more
        wait_until(lambda: self.going and self.answered >= goal, lambda: f"{goal} answers, not {self.answered}")

    def _send(self, stop: threading.Event) -> None:
        numbers = count()
        with KafkaClient(self._bank.name, self._settings) as client:
            while not stop.is_set():
                self.sent += [self._next(next(numbers)) for _ in range(ROUND)]
                self._settle(client)
                stop.wait(PAUSE)
            while self.open:
                self._settle(client)

    def _settle(self, client: KafkaClient) -> None:
        asked = self.open
        answers = client.send_many([one.command for one in asked], ids=[one.id for one in asked], timeout=2.0)
        for one, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, _UNSETTLED):
                one.answer = answer

    def _next(self, number: int) -> Sent:
        account = f"account-{number % ACCOUNTS}"
        if number % 10 == 7:
            return Sent(command_id(), account, self._bank.withdraw(account, 1_000_000_000))
        return Sent(command_id(), account, self._bank.deposit(account, number, 1 + number % 3))


def send(client: KafkaClient, bank: Bank, amount: int) -> Sent:
    """A command that is answered."""
    sent = Sent(f"id-{amount}", ACCOUNT, bank.deposit(ACCOUNT, amount))
    sent.answer = client.send(sent.command, id=sent.id, timeout=WAIT_SECONDS)
    return sent


class Fact(NamedTuple):
    """An event: its stream, its version and the command behind it."""

    key: str
    version: int
    command: str


def facts(records: Iterable[RawRecord]) -> list[Fact]:
    """The events of an events topic."""
    return [
        Fact(
            (r.key or b"").decode(), int(header(r.headers, "ce_sequence")), header(r.headers, "ce_causationid").decode()
        )
        for r in records
    ]


def audit(broker: Broker, bank: Bank, sent: Sequence[Sent], lost: Sequence[str] = ()) -> list[str]:
    """Everything that is wrong with a bank's topics after these commands, as the simulator's witness sees it.

    Args:
        lost: ids of commands that end as dead letters.
    """
    # A commit is answered once it is certain; what it wrote becomes visible a moment later. Repeats may be there still.
    wait_until(
        lambda: not is_undecided(_seen(broker, bank), bank.app, lost),
        lambda: f"the end: {violations(_seen(broker, bank), bank.app, sent, lost=lost)[:9]}",
    )
    return violations(_seen(broker, bank), bank.app, sent, lost=lost)


def _seen(broker: Broker, bank: Bank) -> Any:
    """What a real broker holds of a bank, in the shape of a simulated cluster."""
    topics = (names.commands(bank.name), names.events(bank.name), bank.state, names.dead(bank.name))
    left = broker.left(bank)
    committed = {(topics[0], p): SimpleNamespace(offset=offset) for p, (offset, _) in left.items()}
    return SimpleNamespace(
        topics={topic: SimpleNamespace(partitions=_partitions(broker, topic)) for topic in topics},
        groups={bank.group: SimpleNamespace(committed=committed)},
        coordinator=SimpleNamespace(open=lambda: ()),
    )


def _partitions(broker: Broker, topic: str) -> list[Any]:
    stable, ends = (broker.ends(topic, committed=committed) for committed in (True, False))
    found: dict[int, list[Any]] = {partition: [] for partition in ends}
    for r in broker.records(topic):
        one = SimpleNamespace(key=r.key, value=r.value, headers=r.headers, offset=r.offset, timestamp=r.time)
        found[r.partition].append(one)
    return [
        SimpleNamespace(
            topic=SimpleNamespace(name=topic),
            number=number,
            committed=lambda records=records: records,
            stable_end=stable[number],
            end=ends[number],
        )
        for number, records in found.items()
    ]
