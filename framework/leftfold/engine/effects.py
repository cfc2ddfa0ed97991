"""What `react` returned, looked at before anything of it is done."""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import datetime
from typing import Any

from leftfold.errors import DecisionFailed
from leftfold.messages import Command
from leftfold.process import Cancel, Finished, Timer

__all__ = ["checked_effects"]


def checked_effects(process: str, out: object, sends: Container[type[Command]]) -> list[Any]:
    """The effects, in order.

    Raises:
        DecisionFailed: something of it is nothing that this process may send, or can never be carried out.
    """
    if isinstance(out, (Command, Timer, Cancel, Finished, str)) or not isinstance(out, Iterable):
        raise DecisionFailed(f"process {process}: react gave {out!r}; give a list of what to send, [] for nothing")
    effects = list(out)
    for effect in effects:
        if why := _trouble(effect, sends):
            raise DecisionFailed(f"process {process}: react gave {effect!r}; {why}")
    return effects


def _trouble(effect: object, sends: Container[type[Command]]) -> str:
    """What is wrong with an effect, and the mend; '' when nothing is."""
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
    return "" if isinstance(name, str) and name else f"a timer's name is a text that is not empty, not {name!r}"


def _dated(at: object) -> str:
    if not isinstance(at, datetime):
        return f"a timer's time is a datetime, not {at!r}"
    return "" if at.tzinfo is not None else "its time has no time zone; take it from an event, whose times have one"


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
