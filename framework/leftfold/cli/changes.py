"""Changes of a view's rows as lines, as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from pydantic_core import to_jsonable_python

from leftfold.cli.console import Styled, emit, note, say, styled
from leftfold.errors import InfrastructureError
from leftfold.position import Position
from leftfold.reading import Change
from leftfold.view import View

__all__ = ["news", "show_changes"]


def show_changes(
    view: View[Any, Any], changes: Iterable[Change[Any, Any]], limit: int | None, *, as_json: bool
) -> None:
    """Prints changes until they end, or so many; when it is interrupted, or loses Redis, it says how to watch on."""
    position: Position | None = None
    left = limit
    try:
        for change in changes:
            if as_json:
                emit(_told(view, change))
            else:
                say(*_line(view, change))
            sys.stdout.flush()
            position = change.position
            if left is not None and (left := left - 1) <= 0:
                return
    except (KeyboardInterrupt, InfrastructureError):
        if position is not None and not as_json:
            note(f"to go on from here: leftfold watch {view.name} --after '{position}'")
        raise


def news(changes: Iterable[Change[Any, Any]], row: Any) -> Iterator[Change[Any, Any]]:
    """The changes of one row that make it another than it was."""
    for change in changes:
        if change.row != row:
            yield change
        row = change.row


def _told(view: View[Any, Any], change: Change[Any, Any]) -> dict[str, Any]:
    told = {"view": view.name, "key": _key(view, change), "row": change.row, "position": change.position.offsets}
    return told if change.version is None else {**told, "version": change.version}


def _line(view: View[Any, Any], change: Change[Any, Any]) -> list[str | Styled]:
    key = styled(f"{_key(view, change):<16}", fg="cyan")
    if change.row is None:
        return [key, "  gone"]
    fields = to_jsonable_python(change.row)
    version: list[str | Styled] = [] if change.version is None else ["  ", styled(f"v{change.version:<4}", dim=True)]
    told = [part for name, value in fields.items() for part in ("  ", styled(f"{name}=", dim=True), _value(value))]
    return [key, *version, *told]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _key(view: View[Any, Any], change: Change[Any, Any]) -> str:
    """The key as it is typed: parts with / between them."""
    return unquote(view.keys.encode(change.key))
