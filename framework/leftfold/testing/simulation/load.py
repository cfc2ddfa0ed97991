"""The load of a simulation: draws commands from their classes, for Apps whose commands are not given."""

from __future__ import annotations

import enum
import random
import types
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, ValidationError

from leftfold.errors import ConfigurationError
from leftfold.model.app import App
from leftfold.model.messages import Command

__all__ = ["drawn_load"]

_KEYS, _WORDS = 4, ("north", "south", "east", "west")
_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_TRIES = 50


def drawn_load(app: App, clients: int, commands: int) -> Callable[[random.Random], Sequence[Sequence[Command]]]:
    """A function that draws a load for each client: commands of all deciders, on few streams, so that they conflict.

    Raises:
        ConfigurationError: on its call: no value is known for a field of a command.
    """
    classes = [cls for decider in app.deciders for cls in decider.commands]

    def load(chance: random.Random) -> Sequence[Sequence[Command]]:
        return [[_command(chance.choice(classes), chance) for _ in range(commands)] for _ in range(clients)]

    return load


def _command(cls: type[Command], chance: random.Random) -> Command:
    key = cls.__leftfold__.key
    for _ in range(_TRIES):
        fields = {name: _value(field.annotation, chance, cls) for name, field in cls.model_fields.items()}
        fields[key] = f"{key.removesuffix('_id')}-{chance.randrange(_KEYS)}"
        try:
            return cls(**fields)
        except ValidationError as error:
            refusal = error
    raise ConfigurationError(
        f"no {cls.__name__} could be drawn that is valid ({refusal.errors()[0]['msg']}); say what is sent: "
        f"simulate(app, commands=...), or --commands MODULE:FUNCTION"
    )


def _value(annotation: Any, chance: random.Random, cls: type[Command]) -> Any:
    """A value of a type, drawn from few, so that equal ones are likely."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return chance.choice(inside)
    if origin in (Union, types.UnionType):
        return _value(chance.choice(inside), chance, cls)
    if origin in (tuple, list, Sequence, set, frozenset):
        kinds = [kind for kind in inside if kind is not Ellipsis]
        if origin is tuple and Ellipsis not in inside:
            return tuple(_value(kind, chance, cls) for kind in kinds)
        return [_value(kinds[0], chance, cls) for _ in range(chance.randrange(1, 3))]
    if origin is dict:
        return {_value(inside[0], chance, cls): _value(inside[1], chance, cls)}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return chance.choice(list(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {name: _value(field.annotation, chance, cls) for name, field in annotation.model_fields.items()}
    if annotation in _PLAIN:
        return _PLAIN[annotation](chance)
    raise ConfigurationError(
        f"no value is known for a field of {cls.__name__} with type {annotation}; say what is sent: "
        f"simulate(app, commands=...), or --commands MODULE:FUNCTION"
    )


_PLAIN: dict[Any, Callable[[random.Random], Any]] = {
    type(None): lambda chance: None,
    str: lambda chance: chance.choice(_WORDS),
    int: lambda chance: chance.randrange(1, 6),
    float: lambda chance: chance.randrange(1, 6) / 2,
    bool: lambda chance: chance.random() < 0.5,
    bytes: lambda chance: chance.choice(_WORDS).encode(),
    Decimal: lambda chance: Decimal(chance.randrange(100, 1000)).scaleb(-2),
    datetime: lambda chance: _NOON + timedelta(minutes=chance.randrange(600)),
    date: lambda chance: (_NOON + timedelta(days=chance.randrange(30))).date(),
    timedelta: lambda chance: timedelta(minutes=chance.randrange(1, 90)),
    UUID: lambda chance: UUID(int=chance.randrange(1, _KEYS + 1)),
}
