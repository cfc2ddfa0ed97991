"""A client under load, whose commands are sent again until they are answered; and what must be true of the log behind.

The audit is independent of the code that writes the log.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import NamedTuple, Self

from leftfold.engine.processing.command_wire import command_id
from leftfold.engine.processing.stream_state import MARK
from leftfold.errors import InfrastructureError, LeftfoldError, OutcomeUnknown
from leftfold.kafka.client.kafka_client import KafkaClient
from leftfold.kafka.settings import KafkaSettings
from leftfold.model import keys as names
from leftfold.model.keys import partition_of
from leftfold.model.messages import Command
from leftfold.model.position import Receipt
from leftfold.ports.codec import MessageCodec, header
from leftfold.ports.protocols import RawRecord
from tests.waiting import wait_until
from tests.worker.bank import Account, Bank
from tests.worker.broker import Broker

__all__ = ["Fact", "Load", "Sent", "audit", "facts", "violations", "wait_decided"]

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


class Fact(NamedTuple):
    """An event as an auditor sees it: the stream, its version, the command behind it and its place in the decision."""

    key: str
    version: int
    command: str
    k: int
    n: int
    partition: int
    offset: int


def facts(records: Iterable[RawRecord]) -> list[Fact]:
    """The events of an events topic."""
    return [_fact(record) for record in records]


def audit(broker: Broker, bank: Bank, sent: Sequence[Sent]) -> list[str]:
    """Everything that is wrong with a bank's topics after these commands, empty when all is well."""
    # A commit is answered once it is certain; what it wrote becomes visible a moment later.
    wait_until(lambda: not _open(broker, bank), lambda: "\n".join(_open(broker, bank)))
    # What ended a forgotten transaction is no event.
    events = [record for record in broker.records(names.events(bank.name)) if record.key != MARK]
    return [
        *violations(facts(events), sent),
        *_misplaced(events, bank),
        *_unfolded(events, broker.records(bank.state), bank),
        *_undecided(broker, bank),
    ]


def wait_decided(broker: Broker, bank: Bank) -> None:
    """Waits until nothing is left to decide: repeats of commands that are answered may still be in the topic."""
    wait_until(lambda: not _undecided(broker, bank), lambda: "\n".join(_undecided(broker, bank)))


def violations(found: Sequence[Fact], sent: Sequence[Sent]) -> list[str]:
    """What is wrong between commands and events."""
    return [*_sequences(found), *_decisions(found), *_outcomes(found, sent)]


def _sequences(found: Sequence[Fact]) -> list[str]:
    """Per stream 1..n, in the order of the log (I4: no fork)."""
    wrong, last = [], dict[str, int]()
    for fact in found:
        if fact.version != last.get(fact.key, 0) + 1:
            wrong.append(f"fork: {fact.key} goes from version {last.get(fact.key, 0)} to {fact.version}")
        last[fact.key] = fact.version
    return wrong


def _decisions(found: Sequence[Fact]) -> list[str]:
    """Of each decision all parts, once and side by side (I3: no double, I5: not torn)."""
    parts: dict[str, list[Fact]] = defaultdict(list)
    for fact in found:
        parts[fact.command].append(fact)
    wrong = []
    for command, group in parts.items():
        n = group[0].n
        if [fact.k for fact in group] != list(range(1, n + 1)):
            torn = len(group) < n
            wrong.append(f"{'torn' if torn else 'double'}: {command} has parts {[f'{f.k}/{f.n}' for f in group]}")
    return wrong


def _outcomes(found: Sequence[Fact], sent: Sequence[Sent]) -> list[str]:
    """Every command has the one outcome that it was told (I1: ledger, I2: no loss)."""
    written, last = Counter(fact.command for fact in found), {fact.command: fact.version for fact in found}
    wrong = [f"unasked: {command}" for command in written.keys() - {one.id for one in sent}]
    for one in sent:
        answer, events = one.answer, written[one.id]
        if answer is None:
            wrong.append(f"unanswered: {one.id}")
        elif isinstance(answer, Receipt):
            if events != one.events or answer.events != one.events:
                wrong.append(f"lost: {one.id} was told {answer.events} events, has {events} of {one.events}")
            elif events and answer.version != last[one.id]:
                wrong.append(f"misled: {one.id} was told version {answer.version}, is at {last[one.id]}")
        elif events:
            wrong.append(f"refused but written: {one.id} {answer!r}")
    return wrong


def _misplaced(events: Iterable[RawRecord], bank: Bank) -> list[str]:
    home = {r.key or b"": partition_of(r.key or b"", bank.app.partitions) for r in events}
    return [f"misplaced: {r.key!r} in {r.partition}" for r in events if r.partition != home[r.key or b""]]


def _unfolded(events: Iterable[RawRecord], states: Iterable[RawRecord], bank: Bank) -> list[str]:
    """Every state record is the fold of the events up to its version (I7), and the last one of all of them."""
    decider, codec = bank.decider, MessageCodec(bank.decider.events)
    folded: dict[str, list[Account]] = defaultdict(lambda: [decider.initial_state])
    for record in events:
        states_of = folded[(record.key or b"").decode()]
        states_of.append(decider.evolve(states_of[-1], codec.decode(header(record.headers, "ce_type"), record.value)))
    wrong, last = [], dict[str, int]()
    for record in states:
        key = (record.key or b"").decode()
        if key != "@" and record.value is not None:
            fields = json.loads(record.value)
            last[key] = version = fields["version"]
            if version >= len(folded[key]) or decider.state.decode(json.dumps(fields["state"])) != folded[key][version]:
                wrong.append(f"unfolded: the state of {key} at {version} is {fields['state']}")
    behind = {key for key, versions in folded.items() if last.get(key, 0) != len(versions) - 1}
    return wrong + [f"behind: the state of {key} ends at {last.get(key)}" for key in sorted(behind)]


def _open(broker: Broker, bank: Bank) -> list[str]:
    """Transactions that are still open (I13)."""
    wrong = []
    for topic in (names.events(bank.name), bank.state, names.dead(bank.name)):
        stable, high = broker.ends(topic, committed=True), broker.ends(topic, committed=False)
        wrong += [f"open: {topic}[{p}] is stable to {stable[p]} of {high[p]}" for p in high if stable[p] != high[p]]
    return wrong


def _undecided(broker: Broker, bank: Bank) -> list[str]:
    """Every command lies behind the committed offset (I12)."""
    left, ends = broker.left(bank), broker.ends(names.commands(bank.name), committed=True)
    return [f"undecided: commands[{p}] is at {left[p][0]} of {end}" for p, end in ends.items() if 0 < end != left[p][0]]


def _fact(record: RawRecord) -> Fact:
    k, n = header(record.headers, "ce_decision").split(b"/")
    return Fact(
        (record.key or b"").decode(),
        int(header(record.headers, "ce_sequence")),
        header(record.headers, "ce_causationid").decode(),
        int(k),
        int(n),
        record.partition,
        record.offset,
    )
