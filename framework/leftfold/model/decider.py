"""The decider of a category: `decide` turns commands into events, `evolve` folds events into the stream's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from typing_extensions import TypeForm, TypeVar

from leftfold.errors import ConfigurationError
from leftfold.model.messages import Command, Event, is_plain, parts_in
from leftfold.model.state_codec import Storage, check_time_format
from leftfold.model.typing import check_function, has_exact_value, members, missing_arms
from leftfold.safety import shown

__all__ = ["Decider"]

C = TypeVar("C", bound=Command)
S = TypeVar("S")
E = TypeVar("E", bound=Event)


class Decider(Generic[C, S, E]):
    """The rules of one category: pure functions over a stream's state.

    Args:
        name: the category; all commands and events belong to it.
        commands, events: closed unions.
        state: a storable type. initial_state: the state of a stream before its first event.
        decide: raises a DomainError that the command declares, or returns the events (none = nothing happens).
        evolve: the state after one more event; it never rejects.
        version: raised whenever `evolve` or the state changes meaning; it names the state topic.

    Raises:
        ConfigurationError: two parts do not fit together; the message names the class and the correction.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        commands: TypeForm[C],
        events: TypeForm[E],
        state: TypeForm[S],
        initial_state: S,
        decide: Callable[[C, S], Sequence[E]],
        evolve: Callable[[S, E], S],
        version: int = 1,
    ) -> None:
        self.name = name
        self.commands = members(commands, Command, f"decider {name}")
        self.events = members(events, Event, f"decider {name}")
        self.state: Storage[S] = Storage(state, f"decider {name}: state", canonical=False)
        check_function(decide, f"decider {name}: decide", "command", "state")
        check_function(evolve, f"decider {name}: evolve", "state", "event")
        self.initial_state = self.state.initial(initial_state)
        self.decide, self.evolve, self.version = decide, evolve, version
        if version < 1:
            raise ConfigurationError(f"decider {name}: version={version} must be 1 or more")
        classes: tuple[type[Command | Event], ...] = (*self.commands, *self.events)
        for cls in classes:
            if cls.__leftfold__.category != name:
                raise ConfigurationError(
                    f"decider {name}: {cls.__name__} belongs to category {cls.__leftfold__.category!r}; "
                    f"a decider is named after its category, and both must agree"
                )
            _check_fields(cls, f"decider {name}: {cls.__name__}")
        for function, argument, union in ((decide, 0, self.commands), (evolve, 1, self.events)):
            for missing in missing_arms(function, argument, union):
                raise ConfigurationError(
                    f"{name}.{function.__name__} has no arm for {missing}; add: case {missing}(): ... or case _: ..."
                )

    def fold(self, state: S, events: Sequence[E]) -> S:
        """The state of a stream after these events."""
        for event in events:
            state = self.evolve(state, event)
        return state

    def __repr__(self) -> str:
        return f"Decider({self.name!r}, version={self.version})"


def _check_fields(cls: type[Command | Event], where: str) -> None:
    """Checks the times and defaults of a message: each one that is written has to be read as an equal one."""
    for version, upcast in cls.__leftfold__.upcasts.items():
        check_function(upcast, f"{where}: upcasts[{version}]", "fields")
    is_checked_later = not is_plain(cls)  # this also completes the schema of a class with forward references
    for record in parts_in(cls.__pydantic_core_schema__):
        check_time_format(record, where)
    if is_checked_later:
        return  # each message is read again when it is written
    schema: Any = cls.__pydantic_core_schema__
    for name, field in schema["schema"]["fields"].items():
        default = field["schema"]
        if "default" in default and not has_exact_value(default, schema.get("config", {})):
            raise ConfigurationError(
                f"{where}.{name}: its default {shown(default['default'])} would not be read as it is "
                f"written; give it one of its type, or a type that has it, such as int | None for None"
            )
