"""A reaction: a side effect outside the log for each event, such as a mail, a webhook or a payment.

It is the only part of an App that calls other systems. It may be repeated, with the same idempotency key.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, TypeAlias
from uuid import NAMESPACE_URL, uuid5

from typing_extensions import TypeForm, TypeVar

from leftfold.errors import ConfigurationError, DomainError
from leftfold.model.messages import Event
from leftfold.model.position import Position
from leftfold.model.typing import check_function, check_name, members, missing_arms

__all__ = ["Acts", "Delivery", "Reaction", "Since", "check_acts", "idempotency_key"]

E = TypeVar("E", bound=Event)
Since: TypeAlias = Literal["end", "start"] | datetime
"""Where a reaction that has never run starts: the end of the log, the first event, or an append time."""

_NAMESPACE = uuid5(NAMESPACE_URL, "leftfold")


def idempotency_key(reaction: str, event_id: str) -> str:
    """The key by which a receiver recognises a repetition: a uuid5 of the reaction's name and the event's id."""
    return str(uuid5(_NAMESPACE, f"reaction/{reaction}/{event_id}"))


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One attempt to handle an event by a reaction.

    `idempotency_key` is the same at every attempt, in every process: pass it on, so that a receiver which remembers it
    has no effect twice. `attempt` counts from 1 and starts again in each process. `key`, `id`, `time` (UTC, of the
    sender) and `version` are the event's; `position` lies just behind it; `principal` is on
    whose behalf it happened, if that is known.
    """

    reaction: str
    idempotency_key: str
    attempt: int = 1
    key: str = ""
    id: str = ""
    time: datetime
    version: int = 0
    position: Position = field(default_factory=Position)
    correlation_id: str = ""
    traceparent: str = ""
    principal: str = ""


class Reaction(Generic[E]):
    """A handler of events outside the log: at least once per event, in the order of each stream.

    Args:
        name: lower case; part of its consumer group and of `{name}.dead`, where events are parked.
        events: a closed union of events, of any category.
        act: called on threads, several at once but never two for one stream; an exception means: try again.
        attempts: how many, before the event is parked and the next event of its stream is handled.
        backoff: seconds before the second attempt, doubled before each further one up to `longest`, randomly reduced by
            up to a half.
        gives_up: errors after which there is no second attempt; DomainError is always one of them.
        timeout: seconds after which an attempt counts as failed. It may still take effect: give the calls inside `act`
            a shorter deadline of their own.
        at_once: how many streams one process handles at the same time.
        since: where it starts when it has never run before.

    Raises:
        ConfigurationError: two parts do not fit together; the message names the class and the correction.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        events: TypeForm[E],
        act: Callable[[E, Delivery], None],
        attempts: int = 10,
        backoff: float = 1.0,
        longest: float = 300.0,
        gives_up: tuple[type[Exception], ...] = (),
        timeout: float = 30.0,
        at_once: int = 8,
        since: Since = "end",
    ) -> None:
        self.name, self.act = name, act
        self.attempts, self.backoff, self.longest = attempts, backoff, longest
        if not isinstance(gives_up, (tuple, list)):
            one = getattr(gives_up, "__name__", gives_up)
            raise ConfigurationError(f"reaction {name}: gives_up={one} is no tuple; write gives_up=({one},)")
        for error in gives_up:
            if not (isinstance(error, type) and issubclass(error, BaseException)):
                raise ConfigurationError(f"reaction {name}: gives_up= holds {error!r}; give classes of errors")
        self.gives_up: tuple[type[Exception], ...] = (DomainError, *gives_up)
        self.timeout, self.at_once, self.since = timeout, at_once, since
        where = f"reaction {name}"
        check_name(name, where, "receipts")
        self._check_numbers(where)
        check_function(act, f"{where}: act", "event", "delivery")
        self.events: tuple[type[Event], ...] = members(events, Event, f"{where}: events")
        for missing in missing_arms(act, 0, self.events):
            raise ConfigurationError(
                f"{where}: {act.__name__} has no arm for {missing}; add: case {missing}(): ... or case _: ..."
            )

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories whose events it handles, in alphabetical order."""
        return tuple(sorted({cls.__leftfold__.category for cls in self.events}))

    def call(self, event: E, delivery: Delivery, act: Callable[[E, Delivery], object] | None = None) -> None:
        """Handles an event once, with `act` or with another function in its place.

        Raises:
            TypeError: it returned an awaitable, so that nothing has happened.
        """
        came: object = (act or self.act)(event, delivery)
        if inspect.isawaitable(came):
            if inspect.iscoroutine(came):
                came.close()
            raise TypeError(
                f"act of reaction {self.name} returned {came!r}, which is not awaited; act before it returns"
            )

    def pause(self, attempt: int, chance: float) -> float:
        """The backoff in seconds between a failed attempt and the next one.

        Args:
            attempt: the number of the failed one. chance: 0..1, which spreads attempts that failed together.
        """
        return float(min(self.longest, self.backoff * 2.0 ** min(attempt - 1, 60)) * (1.0 - 0.5 * chance))

    def _check_numbers(self, where: str) -> None:
        whole = {"attempts": self.attempts, "at_once": self.at_once}
        for name, count in whole.items():
            if count < 1:
                raise ConfigurationError(f"{where}: {name}={count} must be 1 or more")
        for name, seconds in {"backoff": self.backoff, "longest": self.longest, "timeout": self.timeout}.items():
            if not seconds > 0:
                raise ConfigurationError(f"{where}: {name}={seconds} must be more than 0 seconds")
        if isinstance(self.since, datetime):
            if self.since.tzinfo is None:
                raise ConfigurationError(f"{where}: since={self.since!r} has no time zone; say tzinfo=timezone.utc")
        elif self.since not in ("end", "start"):
            raise ConfigurationError(f"{where}: since={self.since!r} is neither 'end' nor 'start' nor a datetime")

    def __repr__(self) -> str:
        return f"Reaction({self.name!r})"


Acts: TypeAlias = Mapping[Reaction[Any], Callable[[Any, Delivery], None]]
"""Functions to call in place of the `act` of reactions."""


def check_acts(acts: Acts, reactions: Iterable[Reaction[Any]], app: str) -> None:
    """Raises ConfigurationError for a function in place of the `act` of a reaction that the App does not have."""
    for reaction in acts:
        if reaction not in reactions:
            raise ConfigurationError(f"app {app} has no reaction {reaction.name!r}; add it: reactions=[...]")
