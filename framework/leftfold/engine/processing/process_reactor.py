"""Calls `react` with one input of a process, checks the effects, and returns the commands to send."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from leftfold.engine.processing.command_wire import to_error
from leftfold.engine.processing.process_instance import Due, Instance, SentCommand
from leftfold.engine.processing.process_wire import ACK, CANCEL, DUE, NACK, Input
from leftfold.errors import ConfigurationError, ContractError, DecisionFailed, DomainError, LeftfoldError
from leftfold.model.messages import Command
from leftfold.model.process import Cancel, Finished, Process, Rejected, Timer
from leftfold.model.state_codec import version_in
from leftfold.ports.message_codec import MessageCodec, event_id, exact_json, utc_text
from leftfold.safety import shown

__all__ = ["Failed", "InputAccepted", "InputSkipped", "Reactor", "Request", "checked_effects", "timer_of"]


def checked_effects(process: str, out: object, sends: Container[type[Command]]) -> list[Any]:
    """The effects that `react` returned, checked and in order.

    Raises:
        DecisionFailed: an effect is not one that this process may send, or can never be carried out.
    """
    if isinstance(out, (Command, Timer, Cancel, Finished, str)) or not isinstance(out, Iterable):
        raise DecisionFailed(f"process {process}: react gave {out!r}; give a list of what to send, [] for nothing")
    effects = list(out)
    for effect in effects:
        if why := _trouble(effect, sends):
            raise DecisionFailed(f"process {process}: react gave {effect!r}; {why}")
    return effects


def _trouble(effect: object, sends: Container[type[Command]]) -> str:
    """What is wrong with an effect, and how to fix it; '' when it is valid."""
    match effect:
        case Finished():
            return ""
        case Cancel(name=name):
            return _named(name)
        case Timer(name=name, at=at, command=command):
            return _named(name) or _dated(at) or _sent(command, sends)
        case type() if issubclass(effect, (Timer, Cancel, Finished, Command)):
            return f"that is the class itself; write {effect.__name__}(...)"
        case _:
            return _sent(effect, sends)


def _named(name: object) -> str:
    is_text = isinstance(name, str) and name and name == name.encode(errors="replace").decode()
    return "" if is_text else f"a timer's name is a text that is not empty, not {name!r}"


def _dated(at: object) -> str:
    if not isinstance(at, datetime):
        return f"a timer's time is a datetime, not {at!r}"
    if at.tzinfo is None:
        return "its time has no time zone; take it from an event, whose times have one"
    try:
        utc_text(at)
    except (OverflowError, ValueError) as error:
        return f"its time does not exist in UTC: {error}"
    return ""


def _sent(command: object, sends: Container[type[Command]]) -> str:
    if not isinstance(command, Command):
        return "a process gives commands, Timer, Cancel and Finished only"
    if type(command) not in sends:
        return f"it may not send {type(command).__name__}; add the class to sends="
    field = type(command).__leftfold__.key
    key = getattr(command, field)
    if not isinstance(key, str) or key in ("", "@"):
        return f"its key {field}={key!r} is none: a text that is neither empty nor '@'"
    return ""


class Request(NamedTuple):
    """A command to be sent: its id, key and category, and its wire form."""

    id: str
    key: str
    category: str
    sent: SentCommand


class InputAccepted(NamedTuple):
    """The instance took the input, and these commands are to be sent."""

    commands: tuple[Request, ...]


class InputSkipped(NamedTuple):
    """The input has no effect, and why: `duplicates`, `finished`, `cancelled`, `unasked` or `foreign`."""

    why: str


class Failed(NamedTuple):
    """The process cannot react to the input; the instance continues without it, and the input is dead-lettered."""

    error: LeftfoldError


Outcome: TypeAlias = InputAccepted | InputSkipped | Failed


class Reactor:
    """The pure part of a process manager: takes inputs one at a time.

    Args:
        max_bytes: the limit of the value of one command.
    """

    def __init__(self, process: Process[Any, Any, Any], max_bytes: int = 1_000_000) -> None:
        self.process, self._room = process, max_bytes
        self.events: MessageCodec[Any] = MessageCodec(process.events)
        self.commands: MessageCodec[Any] = MessageCodec(process.sends)
        specs = [cls.__leftfold__ for cls in process.events]
        self._versions = {f"{spec.category}.{spec.name}": spec.version for spec in specs}

    def take(self, instance: Instance[Any], given: Input) -> Outcome:
        """Applies an input to `instance`; one that is `InputSkipped` changes nothing.

        Order of checks: origins, finished, then the type of the input. One that fails counts as seen.

        Raises:
            ConfigurationError: the event is of a version that this code does not know; no input behind it may be taken.
        """
        if given.origin is not None and given.type not in (ACK, NACK):
            # An answer counts once by the id of its command; its topic may have been made again, with lower offsets.
            source, offset, index = given.origin
            if instance.origins.get(source, (-1, -1)) >= (offset, index):
                return InputSkipped("duplicates")
        if instance.finished and given.cause not in instance.waiting:
            return InputSkipped("finished")
        self._check_version(given)
        try:
            outcome = self._outcome_of(instance, given)
        except LeftfoldError as error:
            self.refuse(instance, given)
            return Failed(error)
        if not isinstance(outcome, InputSkipped):
            self.see(instance, given)
        return outcome

    def refuse(self, instance: Instance[Any], given: Input) -> None:
        """Records a dead-lettered input: it counts as seen, and what it answers or fires is no longer open."""
        self.see(instance, given)
        if given.type in (ACK, NACK):
            instance.waiting.pop(given.cause, None)
        elif given.type == DUE and (timer := _due_timer(instance, given)):
            del instance.timers[timer]

    def see(self, instance: Instance[Any], given: Input) -> None:
        """Records the input's origin as seen."""
        if given.origin is not None:
            source, offset, index = given.origin
            instance.origins[source] = (offset, index)

    def _outcome_of(self, instance: Instance[Any], given: Input) -> Outcome:
        if given.type in (DUE, CANCEL):
            return self._due(instance, given)
        if given.type in (ACK, NACK):
            return self._take_answer(instance, given)
        event = self.events.wanted(given.type, given.value)
        return InputSkipped("foreign") if event is None else self._react(instance, given, event)

    def _check_version(self, given: Input) -> None:
        name, version = version_in(given.type)
        known = self._versions.get(name)
        if known is not None and version is not None and version > known:
            raise ConfigurationError(
                f"process {self.process.name} meets {name} version {version} and knows {known}; deploy the code that "
                f"knows it"
            )

    def _due(self, instance: Instance[Any], given: Input) -> Outcome:
        """Ends the timer that this input names, if it is still set; a second input for it has no effect."""
        name, by = timer_of(given)
        timer = instance.timers.get(name)
        if timer is None or timer.by != by:
            return InputSkipped("cancelled")
        del instance.timers[name]
        if given.type == CANCEL:
            instance.version += 1
            return InputAccepted(())
        command = self.commands.decode(timer.type.encode(), timer.value.encode())
        request = self._request(given, 0, command, SentCommand(timer.type, timer.value))
        instance.waiting[request.id] = request.sent
        instance.version += 1
        return InputAccepted((request,))

    def _take_answer(self, instance: Instance[Any], given: Input) -> Outcome:
        sent = instance.waiting.get(given.cause)
        if sent is None:
            return InputSkipped("unasked")
        if given.type == ACK:
            del instance.waiting[given.cause]
            instance.version += 1
            return InputAccepted(())
        body = _body(given)
        refused, value = str(body.get("type") or sent.type), str(body.get("command") or sent.value)
        command = self.commands.decode(refused.encode(errors="replace"), value.encode(errors="replace"))
        error = to_error(body, type(command))
        del instance.waiting[given.cause]
        name = type(command).__name__
        if not isinstance(error, DomainError):
            raise ContractError(f"{name} was not decided: {type(error).__name__}: {error}")
        if not self.process.hears(type(command)):
            raise ContractError(
                f"{name} was rejected: {error}; process {self.process.name} has no input Rejected[{name}]"
            )
        return self._react(instance, given, Rejected(command, error))

    def _react(self, instance: Instance[Any], given: Input, what: Any) -> InputAccepted:
        process = self.process
        try:
            out = checked_effects(process.name, process.react(what, instance.state), self.commands.types)
            state = process.evolve(instance.state, what)
            process.state.check(state)
            effects = [self._encoded(effect) for effect in out]
        except (ContractError, DecisionFailed):
            raise
        except Exception as error:
            raise DecisionFailed(f"process {process.name} failed on {shown(what)}: {shown(error)}") from error
        instance.state, instance.version = state, instance.version + 1
        return InputAccepted(tuple(self._applied(instance, given, effects)))

    def _applied(
        self, instance: Instance[Any], given: Input, effects: Iterable[tuple[Any, SentCommand | None]]
    ) -> list[Request]:
        commands: list[Request] = []
        for effect, sent in effects:
            match effect, sent:
                case Timer(name=name, at=at), SentCommand():
                    due = Due(utc_text(at), sent.type, sent.value, given.correlation.decode(), given.id)
                    instance.timers[name] = due
                case Cancel(name=name), _:
                    instance.timers.pop(name, None)
                case Finished(), _:
                    instance.finished = True
                case Command(), SentCommand():
                    commands.append(self._request(given, len(commands), effect, sent))
        instance.waiting |= {request.id: request.sent for request in commands}
        if instance.finished:
            instance.timers = {}
        return commands

    def _encoded(self, effect: Any) -> tuple[Any, SentCommand | None]:
        command = effect.command if isinstance(effect, Timer) else effect
        if not isinstance(command, Command):
            return effect, None
        value = exact_json(command)
        if len(value) > self._room:
            raise ContractError(f"{type(command).__name__} of {len(value)} bytes; at most {self._room} fit")
        return effect, SentCommand(self.commands.types[type(command)].decode(), value.decode())

    def _request(self, given: Input, number: int, command: Command, sent: SentCommand) -> Request:
        spec = command.__leftfold__
        id_ = event_id(self.process.name, given.key, given.id, number + 1)
        return Request(id_, getattr(command, spec.key), spec.category, sent)


def _due_timer(instance: Instance[Any], given: Input) -> str:
    """The timer that the input says is due, if it is set; '' otherwise."""
    try:
        name, by = timer_of(given)
    except ContractError:
        return ""
    return name if name in instance.timers and instance.timers[name].by == by else ""


def timer_of(given: Input) -> tuple[str, str]:
    """The name of the timer that is due or ended, and the id of the input that set it.

    Raises:
        ContractError: the input does not say so.
    """
    fields = _body(given)
    return str(fields.get("name")), str(fields.get("by"))


def _body(given: Input) -> dict[str, Any]:
    try:
        fields = json.loads(given.value)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{given.type.decode(errors='replace')} whose value is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ContractError(f"{given.type.decode(errors='replace')} whose value is {fields!r}")
    return fields
