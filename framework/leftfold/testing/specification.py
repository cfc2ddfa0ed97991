"""Given/when/then for deciders, processes and views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, overload

from typing_extensions import TypeVar

from leftfold.engine.processing.command_processor import Accepted, Refused, decide
from leftfold.engine.processing.command_wire import Received
from leftfold.engine.processing.process_instance import InstanceCodec
from leftfold.engine.processing.process_reactor import checked_effects
from leftfold.engine.processing.process_wire import invalid_key
from leftfold.engine.processing.stream_state import StreamCodec
from leftfold.errors import ContractError, DomainError
from leftfold.model.decider import Decider
from leftfold.model.messages import Command, Event
from leftfold.model.process import Cancel, Finished, Process, Rejected, Timer
from leftfold.model.view import View
from leftfold.ports.message_codec import MessageCodec, with_exact_json
from leftfold.safety import shown

__all__ = ["Given", "GivenProcess", "Then", "ThenSent", "check_input", "events_text", "fold", "fold_rows", "given"]


Row = TypeVar("Row")
K = TypeVar("K", default=str)


def fold(view: View[Row, K], /, *events: Event) -> Mapping[K, Row]:
    """The rows of a view after these events; events that it does not read are skipped."""
    return fold_rows(view, events, is_stored=True)


def fold_rows(view: View[Row, K], events: Iterable[Event], *, is_stored: bool) -> Mapping[K, Row]:
    """The rows of a view after these events; each row is read from its stored form before the next event, or not."""
    rows: dict[str, Any] = {}
    for event in events:
        if not isinstance(event, Event):
            raise TypeError(f"fold takes events, not {shown(event)}; a list is written fold(view, *events)")
        if type(event) not in view.events:
            continue
        stream = getattr(event, type(event).__leftfold__.key)
        for key, item in view.touches(with_exact_json(event)[0], stream):
            if isinstance(item, ContractError):
                raise item
            row = view.evolve(rows.get(key), item)
            if row is None:
                rows.pop(key, None)
            elif is_stored:
                rows[key] = view.rows.decode(dict(zip(view.rows.columns, view.rows.encode(row), strict=True)))
            else:
                rows[key] = row
    return {view.keys.decode(key): row for key, row in rows.items()}


C = TypeVar("C", bound=Command)
I = TypeVar("I")  # noqa: E741  # an input


class ThenSent(Generic[C]):
    """The output of a process for an input; `then` compares it with the expected one."""

    def __init__(self, given: object, out: Sequence[C | Timer[C] | Cancel | Finished]) -> None:
        self._given, self._out = given, list(out)

    def then(self, *out: C | Timer[C] | Cancel | Finished) -> None:
        """The process sent, set, cancelled or finished exactly this, in this order."""
        if self._out != list(out):
            raise AssertionError(f"{self._given!r} led to\n{_listed_effects(self._out)}\nnot\n{_listed_effects(out)}")

    def then_nothing(self) -> None:
        """The process had no output; its state may have changed."""
        self.then()


class GivenProcess(Generic[I, C]):
    """A process instance with a history of inputs."""

    def __init__(self, process: Process[I, Any, C], history: Sequence[I]) -> None:
        self._process, self._history = process, history

    def when(self, message: I, /) -> ThenSent[C]:
        """Reacts to an input in the state after the history.

        An instance that has finished takes no event any more, as in production, but the answers to its commands.
        """
        process, is_finished, keys = self._process, False, set[str]()
        state = InstanceCodec(process.state, process.initial_state).new().state
        out: Sequence[C | Timer[C] | Cancel | Finished] = []
        for one in (*self._history, message):
            check_input(process, one, keys)
            if is_finished and not isinstance(one, Rejected):
                out = []
                continue
            out = checked_effects(process.name, process.react(one, state), process.sends)
            state = process.evolve(state, one)
            process.state.check(state)
            is_finished = is_finished or any(isinstance(effect, Finished) for effect in out)
        return ThenSent(message, out)


def check_input(process: Process[Any, Any, Any], one: object, keys: set[str]) -> None:
    """Checks an input of one instance, and adds its business key to `keys`.

    Raises:
        AssertionError: it never reaches the process, or reaches another instance.
    """
    kind = type(one.command) if isinstance(one, Rejected) else type(one)
    if kind not in (process.rejected if isinstance(one, Rejected) else process.events):
        heard = [*(cls.__name__ for cls in process.events), *(f"Rejected[{cls.__name__}]" for cls in process.rejected)]
        raise AssertionError(f"{one!r} is no input of process {process.name}; these are: {', '.join(heard)}")
    if isinstance(one, Rejected) and type(one.error) not in type(one.command).__leftfold__.rejects:
        name, error = type(one.command).__name__, type(one.error).__name__
        raise AssertionError(f"{name} does not declare {error}, so no such refusal comes back; add it to its rejects=")
    if isinstance(one, Event):
        key = process.correlate(one)
        wrong = invalid_key(key) if isinstance(key, str) else repr(key)
        assert not wrong, f"{process.name}.correlate gave {wrong} for {one!r}"
        keys.add(str(key))
        assert len(keys) == 1, f"{one!r} belongs to another instance; {process.name}.correlate gave {sorted(keys)}"


def _listed_effects(out: Sequence[object]) -> str:
    return "\n".join(f"  {effect!r}" for effect in out) or "  nothing"


S = TypeVar("S")
E = TypeVar("E", bound=Event)


class Then(Generic[E]):
    """The outcome of a command; one of the three `then` methods compares it with the expected one."""

    def __init__(self, command: Command, events: Sequence[E], error: DomainError | None) -> None:
        self._command, self._events, self._error = command, list(events), error

    def then(self, *events: E) -> None:
        """The command wrote exactly these events."""
        if self._error is not None:
            raise AssertionError(f"{self._command!r} was rejected: {self._error!r}") from self._error
        if self._events != list(events):
            raise AssertionError(f"{self._command!r} wrote\n{events_text(self._events)}\nnot\n{events_text(events)}")

    def then_rejected(self, error: DomainError, /) -> None:
        """The command was rejected with exactly this error, and declares it."""
        if self._error is None:
            raise AssertionError(f"{self._command!r} was not rejected; it wrote\n{events_text(self._events)}")
        if self._error != error:
            raise AssertionError(f"{self._command!r} was rejected with {self._error!r}, not with {error!r}")
        if type(error) not in self._command.__leftfold__.rejects:
            name = type(self._command).__name__
            raise AssertionError(f"{name} does not declare {type(error).__name__}; add it to its rejects=")

    def then_nothing(self) -> None:
        """The command was accepted and wrote no event."""
        self.then()


class Given(Generic[C, E]):
    """A stream of a decider with a history of events."""

    def __init__(self, decider: Decider[C, Any, E], history: Sequence[E]) -> None:
        self._decider, self._history = decider, history

    def when(self, command: C, /) -> Then[E]:
        """Decides a command in the state after the history, as a worker does.

        Raises:
            DecisionFailed: an event is none of the decider's, or has another key than the command.
            ContractError: an event or the state could not be read again.
            AssertionError: a stream cannot have this history.
        """
        decider = self._decider
        codec: MessageCodec[Any] = MessageCodec(decider.events)
        stream = StreamCodec(decider.state, decider.initial_state).new()
        key = getattr(command, command.__leftfold__.key)
        for event in self._history:
            if type(event) not in decider.events:
                raise AssertionError(f"{shown(event)} is none of the events of decider {decider.name}")
            if getattr(event, type(event).__leftfold__.key) != key:
                raise AssertionError(f"{event!r} is in another stream than {command!r}")
            stream.state = decider.evolve(stream.state, with_exact_json(event)[0])
            try:
                decider.state.check(stream.state)
            except ContractError as error:
                raise ContractError(f"{error}; {decider.name}.evolve gave it for {event!r}") from error
        outcome = decide(decider, codec, stream, Received(command, key, "id", "", b"", b"", b""), 0.0)
        if isinstance(outcome, Accepted):
            decider.state.check(stream.state)
            return Then(command, [codec.decode(*event) for event in outcome.events], None)
        assert isinstance(outcome, Refused)  # the stream remembers no answers, of which it could be a duplicate
        why = outcome.error if isinstance(outcome.error, DomainError) else outcome.error.__cause__
        if isinstance(why, DomainError):
            return Then(command, [], why)
        raise why or outcome.error


@overload
def given(decider: Decider[C, S, E], /, *history: E) -> Given[C, E]: ...
@overload
def given(process: Process[I, S, C], /, *history: I) -> GivenProcess[I, C]: ...
def given(definition: Any, /, *history: Any) -> Any:
    """A decider's stream with these past events, or a process instance with these past inputs."""
    return GivenProcess(definition, history) if isinstance(definition, Process) else Given(definition, history)


def events_text(events: Sequence[Event]) -> str:
    """Events for a message, one in a line."""
    return "\n".join(f"  {event!r}" for event in events) or "  nothing"
