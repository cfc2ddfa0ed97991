"""A bank with a category of its own for each test: small rules, and some that misbehave when asked to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import new_class
from typing import Any, Literal, TypeVar, Union

from leftfold.errors import DomainError
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.decider import Decider
from leftfold.model.messages import Command, Event

__all__ = ["ACCOUNTS", "PARTITIONS", "Account", "Bank", "Overdrawn", "bank"]

PARTITIONS = 4
ACCOUNTS = {names.partition_of(name.encode(), 2): name for name in map(str, range(20))}
"""One of each partition, where there are two."""
M = TypeVar("M", bound=Command | Event)


class Overdrawn(DomainError, message="account {account} holds {balance}, which is too little"):
    """The account holds too little."""

    account: str
    balance: int


class Deposit(Command):
    """Puts money in, in `parts` events."""

    account: str
    amount: int
    parts: int = 1


class Withdraw(Command):
    """Takes money out, if there is enough."""

    account: str
    amount: int


class Look(Command):
    """Is accepted and writes nothing."""

    account: str


class Swell(Command):
    """Writes an event, or makes a state, of so many characters."""

    account: str
    what: Literal["event", "state"]
    size: int


class Dwell(Command):
    """Puts one unit in, and takes so many seconds to decide that."""

    account: str
    seconds: float


class Strike(Command):
    """Does what no decider should."""

    account: str
    how: Literal["kill", "exit", "leave", "raise"]


class Deposited(Event):
    account: str
    amount: int


class Withdrawn(Event):
    account: str
    amount: int


class Swollen(Event):
    account: str
    text: str
    size: int


Request = Deposit | Withdraw | Look | Swell | Dwell | Strike
Fact = Deposited | Withdrawn | Swollen


@dataclass(frozen=True)
class Account:
    """What an account is: its balance in units, and how many facts it has seen."""

    balance: int = 0
    facts: int = 0
    fat: str = ""


@dataclass(frozen=True)
class Bank:
    """An App with one decider, and its commands."""

    app: App
    commands: dict[str, type[Command]]

    @property
    def name(self) -> str:
        """Of the category, which is the App's too."""
        return self.app.name

    @property
    def decider(self) -> Decider[Any, Account, Any]:
        """Its rules."""
        return self.app.deciders[0]

    @property
    def state(self) -> str:
        """The topic of its states."""
        return names.state(self.name, self.decider.version)

    @property
    def group(self) -> str:
        """The group of its workers."""
        return names.group(self.name, self.name)

    def deposit(self, account: str, amount: int = 1, parts: int = 1) -> Command:
        return self._command("Deposit", account=account, amount=amount, parts=parts)

    def withdraw(self, account: str, amount: int = 1) -> Command:
        return self._command("Withdraw", account=account, amount=amount)

    def look(self, account: str) -> Command:
        return self._command("Look", account=account)

    def swell(self, account: str, what: str, size: int) -> Command:
        return self._command("Swell", account=account, what=what, size=size)

    def dwell(self, account: str, seconds: float) -> Command:
        return self._command("Dwell", account=account, seconds=seconds)

    def strike(self, account: str, how: str) -> Command:
        return self._command("Strike", account=account, how=how)

    def _command(self, name: str, **fields: Any) -> Command:
        return self.commands[name](**fields)


def bank(
    name: str, *, version: int = 1, partitions: int = PARTITIONS, sleep: Callable[[float], None] = time.sleep
) -> Bank:
    """A bank whose category and App have this name; from version 2 on, its accounts are kept in cents."""
    deposited, withdrawn, swollen = _own(Deposited, name), _own(Withdrawn, name), _own(Swollen, name)
    unit = 1 if version == 1 else 100

    def decide(command: Request, state: Account) -> Sequence[Fact]:
        match command:
            case Deposit(account=account, amount=amount, parts=parts):
                return [deposited(account=account, amount=amount) for _ in range(parts)]
            case Withdraw(account=account, amount=amount):
                if state.balance < amount * unit:
                    raise Overdrawn(account=account, balance=state.balance // unit)
                return [withdrawn(account=account, amount=amount)]
            case Look():
                return []
            case Swell(account=account, what=what, size=size):
                text = "x" * size if what == "event" else ""
                return [swollen(account=account, text=text, size=size if what == "state" else 0)]
            case Dwell(account=account, seconds=seconds):
                sleep(seconds)
                return [deposited(account=account, amount=1)]
            case Strike(how=how):
                return _strike(how)

    def evolve(state: Account, event: Fact) -> Account:
        state = replace(state, facts=state.facts + 1)
        match event:
            case Deposited(amount=amount):
                return replace(state, balance=state.balance + amount * unit)
            case Withdrawn(amount=amount):
                return replace(state, balance=state.balance - amount * unit)
            case Swollen(size=size):
                return replace(state, fat="x" * size)

    commands: dict[str, type[Command]] = {
        "Deposit": _own(Deposit, name),
        "Withdraw": _own(Withdraw, name, rejects=(Overdrawn,)),
        "Look": _own(Look, name),
        "Swell": _own(Swell, name),
        "Dwell": _own(Dwell, name),
        "Strike": _own(Strike, name),
    }
    requests: Any = Union[tuple(commands.values())]  # noqa: UP007  # made at run time
    facts: Any = deposited | withdrawn | swollen
    decider: Decider[Any, Account, Any] = Decider(
        name,
        commands=requests,
        events=facts,
        state=Account,
        initial_state=Account(),
        decide=decide,
        evolve=evolve,
        version=version,
    )
    return Bank(App(name, partitions=partitions, deciders=[decider]), commands)


def _own(cls: type[M], category: str, **keywords: Any) -> type[M]:
    """The message in a category of its own."""
    own: Any = new_class(
        cls.__name__,
        (cls,),
        {"category": category, "key": "account", **keywords},
        lambda body: body.update(__module__=__name__),
    )
    return own  # type: ignore[no-any-return]  # a class made at run time


def _strike(how: str) -> Sequence[Fact]:
    match how:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(9)
        case "leave":
            raise SystemExit(3)
    raise ValueError("struck")
