"""A process manager: it reacts to events of other services by sending commands and setting timers.

It mirrors the decider: `react` returns what to send, `evolve` the state after the input. There is one instance per
business key, which `correlate` reads from each event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, get_args, get_origin

from typing_extensions import TypeForm, TypeVar

from leftfold.errors import ConfigurationError, DomainError
from leftfold.model.messages import Command, Event
from leftfold.model.state_codec import Storage
from leftfold.model.typing import check_function, check_name, checked, flat, members, missing_arms

__all__ = ["Cancel", "Finished", "Process", "Rejected", "Timer"]

C = TypeVar("C", bound=Command)
C_co = TypeVar("C_co", bound=Command, covariant=True)
I = TypeVar("I")  # noqa: E741  # an input, as S is a state and C a command
S = TypeVar("S")


@dataclass(frozen=True)
class Rejected(Generic[C_co]):
    """The input that a process gets when a command it sent was rejected, with the error that the command declares."""

    command: C_co
    error: DomainError


@dataclass(frozen=True, kw_only=True)
class Timer(Generic[C_co]):
    """A timer that sends a command when event time reaches `at`, unless it is cancelled before.

    A second timer of the same name replaces the first. `at` is aware. Time is that of the events: loading last year's
    data fires last year's timers at their places in the log.
    """

    name: str
    at: datetime
    command: C_co


@dataclass(frozen=True)
class Cancel:
    """Cancels the timer of a name; without such a timer it has no effect."""

    name: str


@dataclass(frozen=True)
class Finished:
    """Ends this process instance: its timers are cancelled, and later inputs are ignored."""


class Process(Generic[I, S, C]):
    """A process manager or saga across services: pure functions over the inputs of one business key.

    Args:
        name: lower case; its inputs travel through the topic `{name}.commands`.
        inputs: a closed union of events, of any category, and `Rejected[...]` of commands that it sends.
        sends: a closed union of commands.
        state: a storable type. initial_state: the state of an instance before its first input.
        correlate: the business key of an event; None = the event does not concern this process. A rejection goes to the
            key that sent the command, without a call of `correlate`.
        react: what to send, given an input and the state *before* it.
        evolve: the state after one more input; it never rejects.
        version: raised whenever `react`, `evolve` or the state changes meaning; it names the state topic.

    Raises:
        ConfigurationError: two parts do not fit together; the message names the class and the correction.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        inputs: TypeForm[I],
        sends: TypeForm[C],
        state: TypeForm[S],
        initial_state: S,
        correlate: Callable[[I], str | None],
        react: Callable[[I, S], Sequence[C | Timer[C] | Cancel | Finished]],
        evolve: Callable[[S, I], S],
        version: int = 1,
    ) -> None:
        where = f"process {name}"
        check_name(name, where, "checkout")
        if version < 1:
            raise ConfigurationError(f"{where}: version={version} must be 1 or more")
        self.name, self.version = name, version
        self.sends: tuple[type[Command], ...] = members(sends, Command, f"{where}: sends")
        kinds = tuple(flat(inputs))
        self.rejected = _rejected(where, kinds, self.sends)
        self.events: tuple[type[Event], ...] = checked(
            [kind for kind in kinds if not _is_rejected(kind)], Event, f"{where}: inputs"
        )
        if not self.events:
            raise ConfigurationError(f"{where}: no event is among its inputs, so that nothing ever begins it")
        self.state: Storage[S] = Storage(state, f"{where}: state", canonical=False)
        self.initial_state = self.state.initial(initial_state)
        check_function(correlate, f"{where}: correlate", "event")
        check_function(react, f"{where}: react", "input", "state")
        check_function(evolve, f"{where}: evolve", "state", "input")
        self.correlate, self.react, self.evolve = correlate, react, evolve
        self._check_arms()

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories whose events are inputs, in alphabetical order."""
        return tuple(sorted({cls.__leftfold__.category for cls in self.events}))

    def fold(self, state: S, inputs: Iterable[I]) -> S:
        """The state of an instance after these inputs."""
        for given in inputs:
            state = self.evolve(state, given)
        return state

    def hears(self, command: type[Command]) -> bool:
        """Whether a rejection of this command is one of its inputs."""
        return command in self.rejected

    def _check_arms(self) -> None:
        heard = (*self.events, Rejected) if self.rejected else self.events
        wanted: tuple[tuple[Callable[..., Any], int, Sequence[type]], ...] = (
            (self.correlate, 0, self.events),
            (self.react, 0, heard),
            (self.evolve, 1, heard),
        )
        for function, argument, classes in wanted:
            for missing in missing_arms(function, argument, classes):
                raise ConfigurationError(
                    f"process {self.name}: {function.__name__} has no arm for {missing}; add: case {missing}(): ... "
                    f"or case _: ..."
                )

    def __repr__(self) -> str:
        return f"Process({self.name!r}, version={self.version})"


def _is_rejected(kind: object) -> bool:
    return kind is Rejected or get_origin(kind) is Rejected


def _rejected(where: str, kinds: Iterable[object], sends: Sequence[type[Command]]) -> tuple[type[Command], ...]:
    """The commands whose rejections are inputs of the process."""
    found: list[type[Command]] = []
    for kind in kinds:
        if kind is Rejected:
            raise ConfigurationError(
                f"{where}: inputs hold Rejected without its command; write Rejected[{_first(sends)}]"
            )
        if _is_rejected(kind):
            found += checked(list(flat(get_args(kind)[0])), Command, f"{where}: Rejected")
    for command in found:
        name = command.__name__
        if command not in sends:
            raise ConfigurationError(
                f"{where}: inputs hold Rejected[{name}], but it never sends {name}; add it to sends="
            )
        if not command.__leftfold__.rejects:
            raise ConfigurationError(
                f"{where}: inputs hold Rejected[{name}], but {name} declares no errors; add them to its rejects="
            )
    return tuple(dict.fromkeys(found))


def _first(sends: Sequence[type[Command]]) -> str:
    return sends[0].__name__
