"""What callers hand to reads, looked at before it is used: slips that would find nothing, or fail far from here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from typing_extensions import TypeVar

from leftfold.errors import ConfigurationError
from leftfold.position import Position
from leftfold.view import View

__all__ = ["TIMEOUT", "awaited", "check_number", "checked_keys", "checked_position", "checked_view"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)
TIMEOUT = 2.0
"""Seconds to wait for a position, when the caller does not say."""


def check_number(number: int | None, name: str) -> None:
    """Looks at how many rows are wanted; None = all.

    Raises:
        ConfigurationError: it is no whole number, or none at all.
    """
    if number is not None and (not isinstance(number, int) or number < 1):
        raise ConfigurationError(f"{name}={number!r} must be a whole number from 1 on")


def checked_keys(view: View[Any, K], keys: Iterable[K]) -> list[K]:
    """Several keys. A text is an iterable of texts, too, so no type checker refuses one key in place of many.

    Raises:
        ConfigurationError: it is one text.
    """
    if isinstance(keys, (str, bytes)):
        raise ConfigurationError(f"view {view.name}: {keys!r} is one key; say a list of keys: [{keys!r}]")
    return list(keys)


def checked_position(view: View[Any, Any], after: Position) -> Position:
    """A position to wait for, or to go on from.

    Raises:
        ConfigurationError: it is something else, such as a receipt.
    """
    if isinstance(after, Position):
        return after
    hint = "say receipt.position" if hasattr(after, "position") else "take it from a receipt, a change or describe()"
    raise ConfigurationError(f"view {view.name}: {after!r} is {type(after).__name__} and no Position; {hint}")


def awaited(view: View[Any, Any], asked: Mapping[str, Any]) -> tuple[dict[str, Any], Position | None, float]:
    """What `find` and `count` were asked: fields, and from `after=` and `timeout=` what to wait for, and how long.

    Both are fields where the view has an index of that name, unless `after` is a Position, which no field is.

    Raises:
        ConfigurationError: `after` is something else, such as a receipt.
    """
    fields, indexes = dict(asked), view.rows.indexes
    waits = isinstance(fields.get("after"), Position)
    after = fields.pop("after", None) if waits or "after" not in indexes else None
    timeout = fields.pop("timeout", TIMEOUT) if waits or "timeout" not in indexes else TIMEOUT
    return fields, None if after is None else checked_position(view, after), timeout


def checked_view(view: View[Row, K]) -> View[Row, K]:
    """A view as a value.

    Raises:
        ConfigurationError: it is something else, such as its name.
    """
    if isinstance(view, View):
        return view
    raise ConfigurationError(
        f"views[{view!r}]: a reader is found by the view itself, not by {type(view).__name__}; "
        f"import it: from shop.projections.NAME import NAME, then views[NAME]"
    )
