"""`given(decider, *history).when(command).then(*events)`: a rule as a sentence; of processes, see reactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, overload

from typing_extensions import TypeVar

from leftfold.decider import Decider
from leftfold.errors import DomainError
from leftfold.messages import Command, Event
from leftfold.process import Process
from leftfold.testing.reactions import GivenProcess

__all__ = ["Given", "Then", "given"]

C = TypeVar("C", bound=Command)
S = TypeVar("S")
E = TypeVar("E", bound=Event)
I = TypeVar("I")  # noqa: E741  # an input of a process


class Then(Generic[E]):
    """What a command came to; one of the three `then` methods says what it should have been."""

    def __init__(self, command: Command, events: Sequence[E], error: DomainError | None) -> None:
        self._command, self._events, self._error = command, list(events), error

    def then(self, *events: E) -> None:
        """It wrote exactly these events."""
        if self._error is not None:
            raise AssertionError(f"{self._command!r} was rejected: {self._error!r}") from self._error
        if self._events != list(events):
            raise AssertionError(f"{self._command!r} wrote\n{_list(self._events)}\nnot\n{_list(events)}")

    def then_rejected(self, error: DomainError, /) -> None:
        """It was rejected with exactly this error, and declares it."""
        if self._error is None:
            raise AssertionError(f"{self._command!r} was not rejected; it wrote\n{_list(self._events)}")
        if self._error != error:
            raise AssertionError(f"{self._command!r} was rejected with {self._error!r}, not with {error!r}")
        if not isinstance(error, self._command.__leftfold__.rejects):
            name = type(self._command).__name__
            raise AssertionError(f"{name} does not declare {type(error).__name__}; add it to its rejects=")

    def then_nothing(self) -> None:
        """It was accepted and wrote nothing."""
        self.then()


class Given(Generic[C, E]):
    """A decider with a history behind it."""

    def __init__(self, decider: Decider[C, Any, E], history: Sequence[E]) -> None:
        self._decider, self._history = decider, history

    def when(self, command: C, /) -> Then[E]:
        """Decides the command on the state that the history makes."""
        state = self._decider.fold(self._decider.initial_state, self._history)
        try:
            return Then(command, self._decider.decide(command, state), None)
        except DomainError as error:
            return Then(command, [], error)


@overload
def given(decider: Decider[C, S, E], /, *history: E) -> Given[C, E]: ...
@overload
def given(process: Process[I, S, C], /, *history: I) -> GivenProcess[I, C]: ...
def given(definition: Any, /, *history: Any) -> Any:
    """A stream of a decider to which these events have happened, or an instance of a process with these inputs."""
    return GivenProcess(definition, history) if isinstance(definition, Process) else Given(definition, history)


def _list(events: Sequence[Event]) -> str:
    return "\n".join(f"  {event!r}" for event in events) or "  nothing"
