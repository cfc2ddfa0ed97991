"""What callers say of indexed fields, checked against the row's types and turned into ranges."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from leftfold.errors import ConfigurationError, ContractError
from leftfold.ordered import ordered
from leftfold.questions import Range
from leftfold.view import View

__all__ = ["Bounds", "equal", "indexed", "ranged"]


@dataclass(frozen=True)
class Bounds:
    """The ends of a range as callers give them; None = open."""

    at_least: Any = None
    above: Any = None
    at_most: Any = None
    below: Any = None


def indexed(view: View[Any, Any], field: str) -> str:
    """The field, which has an index.

    Raises:
        ConfigurationError: it has none.
    """
    if field not in view.rows.indexes:
        raise ConfigurationError(
            f"view {view.name} has no index on {field!r}; it has {list(view.rows.indexes)}; "
            f"add it to indexes= and rebuild"
        )
    return field


def equal(view: View[Any, Any], field: str, value: Any) -> Range:
    """The range of one value, None included.

    Raises:
        ConfigurationError: no index on the field, or the value is not of its type.
    """
    text = _text(view, field, value)
    return Range(field, text, text)


def ranged(view: View[Any, Any], field: str, bounds: Bounds) -> Range:
    """The range between two ends, without rows whose field is None.

    Raises:
        ConfigurationError: no index on the field, an end is not of its type, or one side has two.
    """
    for one, other in (("at_least", "above"), ("at_most", "below")):
        if getattr(bounds, one) is not None and getattr(bounds, other) is not None:
            raise ConfigurationError(f"{field}: {one}= and {other}= are two ends on one side; give one of them")
    low = bounds.at_least if bounds.above is None else bounds.above
    high = bounds.at_most if bounds.below is None else bounds.below
    return Range(
        indexed(view, field),
        None if low is None else _text(view, field, low),
        None if high is None else _text(view, field, high),
        above_low=bounds.above is not None,
        below_high=bounds.below is not None,
    )


def _text(view: View[Any, Any], field: str, value: Any) -> str:
    kinds = _kinds(view.rows.index_types[indexed(view, field)])
    row = view.rows.row.__name__
    if not any(_fits(value, kind) for kind in kinds):
        raise ConfigurationError(
            f"view {view.name}: {row}.{field} is {' | '.join(map(_named, kinds))}, and {value!r} is "
            f"{type(value).__name__}"
        )
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ConfigurationError(f"view {view.name}: {row}.{field} holds aware times, and {value!r} has no time zone")
    try:
        return ordered(value)
    except ContractError as error:
        raise ConfigurationError(f"view {view.name}: {row}.{field}: {error}") from error


def _kinds(type_: Any) -> tuple[Any, ...]:
    if get_origin(type_) in (Union, UnionType):
        return tuple(kind for arg in get_args(type_) for kind in _kinds(arg))
    return (type_,)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value can be in a field of a type: a bool is no int here, a datetime no date, an int is a Decimal."""
    if kind is int:
        return isinstance(value, int) and not isinstance(value, (bool, Enum))
    if kind is Decimal:
        return isinstance(value, (int, Decimal)) and not isinstance(value, (bool, Enum))
    if kind is date:
        return isinstance(value, date) and not isinstance(value, datetime)
    return isinstance(value, kind)


def _named(kind: Any) -> str:
    return "None" if kind is NoneType else str(kind.__name__)
