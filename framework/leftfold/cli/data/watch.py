"""`leftfold watch`: prints the rows of a view as they change."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Annotated, Any
from urllib.parse import unquote

import typer
from pydantic_core import to_jsonable_python

from leftfold.cli.options import AppOption, JsonOption, RedisOption, examples, read_key, seconds
from leftfold.client import Change
from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.runtime.as_of import read_position
from leftfold.runtime.connect import connect
from leftfold.runtime.console import Styled, emit, note, say, styled
from leftfold.runtime.project import load_app, view_of

__all__ = ["news", "show_changes"]


def show_changes(
    view: View[Any, Any], changes: Iterable[Change[Any, Any]], limit: int | None, *, as_json: bool
) -> None:
    """Prints changes, at most `limit`; when interrupted, or when Redis fails, prints the command that continues."""
    position: Position | None = None
    left = limit
    try:
        for change in changes:
            if as_json:
                emit(_fields(view, change))
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
    """The changes of one row that make it differ from `row`, its last value."""
    for change in changes:
        if change.row != row:
            yield change
        row = change.row


def _fields(view: View[Any, Any], change: Change[Any, Any]) -> dict[str, Any]:
    fields = {"view": view.name, "key": _key(view, change), "row": change.row, "position": change.position.offsets}
    return fields if change.version is None else {**fields, "version": change.version}


def _line(view: View[Any, Any], change: Change[Any, Any]) -> list[str | Styled]:
    key = styled(f"{_key(view, change):<16}", fg="cyan")
    if change.row is None:
        return [key, "  deleted"]
    fields = to_jsonable_python(change.row)
    version: list[str | Styled] = [] if change.version is None else ["  ", styled(f"v{change.version:<4}", dim=True)]
    shown = [part for name, value in fields.items() for part in ("  ", styled(f"{name}=", dim=True), _value(value))]
    return [key, *version, *shown]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _key(view: View[Any, Any], change: Change[Any, Any]) -> str:
    """The key as users type it: parts with / between them."""
    return unquote(view.keys.encode(change.key))


EXAMPLES = examples(
    "leftfold watch household_spend                                  every row that changes, until Ctrl-C",
    "leftfold watch household_spend 1234 1235                        two rows only",
    "leftfold watch basket_summary --after 'baskets.events[3:17]'    continue there, without missing a change",
    "leftfold watch product_sales --json | jq -r .row.product_id",
)


def watch(
    name: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name.")],
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Only these rows.")] = None,
    after: Annotated[str, typer.Option("--after", metavar="POSITION", help="Start here; else now.")] = "",
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Stop after so many.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="TIME", parser=seconds, help="Stop when nothing changed for so long: 30s."),
    ] = None,
    app: AppOption = "",
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print rows as they change, each as it is now; several changes of a row may be one line.

    The --json form names the position of each change: give the last one as --after to miss no change.
    """
    whole = load_app(app, having=[name])
    view = view_of(whole, name)
    wanted = [read_key(view, key) for key in keys] if keys else None
    position = read_position(after) if after else None
    with connect(whole, redis=redis) as leftfold:
        changes = leftfold.views[view].watch(after=position, keys=wanted, timeout=timeout)
        show_changes(view, changes, limit, as_json=as_json)
