"""`given(process, *history).when(input).then(*out)`: a policy as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic

from typing_extensions import TypeVar

from leftfold.engine.effects import checked_effects
from leftfold.messages import Command
from leftfold.process import Cancel, Finished, Process, Rejected, Timer

__all__ = ["GivenProcess", "ThenSent"]

C = TypeVar("C", bound=Command)
I = TypeVar("I")  # noqa: E741  # an input


class ThenSent(Generic[C]):
    """What an input came to; `then` says what it should have been."""

    def __init__(self, given: object, out: Sequence[C | Timer[C] | Cancel | Finished]) -> None:
        self._given, self._out = given, list(out)

    def then(self, *out: C | Timer[C] | Cancel | Finished) -> None:
        """It sent, set, cancelled or ended exactly this, in this order."""
        if self._out != list(out):
            raise AssertionError(f"{self._given!r} led to\n{_list(self._out)}\nnot\n{_list(out)}")

    def then_nothing(self) -> None:
        """It changed the state at most."""
        self.then()


class GivenProcess(Generic[I, C]):
    """An instance of a process with a history behind it."""

    def __init__(self, process: Process[I, Any, C], history: Sequence[I]) -> None:
        self._process, self._history = process, history

    def when(self, message: I, /) -> ThenSent[C]:
        """Reacts to the input in the state that the history makes."""
        process = self._process
        for one in (*self._history, message):
            _check_input(process, one)
        state = process.fold(process.initial_state, self._history)
        out = checked_effects(process.name, process.react(message, state), process.sends)
        process.state.check(process.evolve(state, message))
        return ThenSent(message, out)


def _check_input(process: Process[Any, Any, Any], one: object) -> None:
    kind = type(one.command) if isinstance(one, Rejected) else type(one)
    if kind not in (process.rejected if isinstance(one, Rejected) else process.events):
        heard = [*(cls.__name__ for cls in process.events), *(f"Rejected[{cls.__name__}]" for cls in process.rejected)]
        raise AssertionError(f"{one!r} is no input of process {process.name}; these are: {', '.join(heard)}")


def _list(out: Sequence[object]) -> str:
    return "\n".join(f"  {effect!r}" for effect in out) or "  nothing"
