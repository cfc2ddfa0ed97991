"""`leftfold get`: prints one row of a view."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from pydantic_core import to_jsonable_python

from leftfold.cli.data.watch import news, show_changes
from leftfold.cli.options import AppOption, JsonOption, RedisOption, examples, read_key, seconds
from leftfold.client import Entry, Reader
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.runtime.as_of import read_position
from leftfold.runtime.connect import connect
from leftfold.runtime.console import emit, note, pairs, styled
from leftfold.runtime.project import load_app, view_of

__all__ = ["EXAMPLES", "get"]

EXAMPLES = examples(
    "leftfold get household_spend 1234",
    "leftfold get store_daily 367/2017-03-01                          a key of two parts",
    "leftfold get household_spend@march 1234                          as of `rebuild --as-of ... --name march`",
    "leftfold get basket_summary b-1 --after 'baskets.events[3:17]'   not before the view covers this position",
    "leftfold get basket_summary b-1 --watch                          and again whenever it changes, until Ctrl-C",
)


def get(
    name: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name, or VIEW@NAME.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The row's key; parts are joined by /.")],
    after: Annotated[str, typer.Option("--after", metavar="POSITION", help="Wait until the view covers this.")] = "",
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="TIME", parser=seconds, help="How long to wait for it: 500ms, 10s.")
    ] = 2.0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Print its changes until Ctrl-C.")] = False,
    app: AppOption = "",
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the row of a key.

    Exit code 1 when there is none (unless --watch waits for it), 4 when the view does not reach POSITION in time.
    """
    plain, _, as_of = name.partition("@")
    whole = load_app(app, having=[plain])
    view = view_of(whole, plain)
    wanted = read_key(view, key)
    position = read_position(after) if after else None
    with connect(whole, redis=redis) as leftfold:
        reader = leftfold.views.as_of(view, as_of) if as_of else leftfold.views[view]
        begin = reader.describe().position if watch else None
        entry = reader.entry(wanted, after=position, timeout=timeout)
        _show_entry(view, key, entry, as_json=as_json)
        if begin is not None:
            _watch(reader, wanted, begin, entry.row, as_json=as_json)
    if entry.row is None:
        raise typer.Exit(1)


def _watch(reader: Reader[Any, Any], key: Any, begin: Position, row: Any, *, as_json: bool) -> None:
    show_changes(reader.view, news(reader.watch(after=begin, keys=[key]), row), None, as_json=as_json)


def _show_entry(view: View[Any, Any], key: str, entry: Entry[Any], *, as_json: bool) -> None:
    if as_json:
        emit(_fields(view, key, entry))
    elif entry.row is None:
        note(f"{view.name} has no row for {key!r}")
        _show_parked(view, entry)
    else:
        _show(view, entry)


def _fields(view: View[Any, Any], key: str, entry: Entry[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"view": view.name, "key": key, "row": entry.row, "position": entry.position.offsets}
    if entry.version is not None:
        fields["version"] = entry.version
    if entry.parked is not None:
        fields["parked"] = entry.parked
    return fields


def _show(view: View[Any, Any], entry: Entry[Any]) -> None:
    row = to_jsonable_python(entry.row)
    pairs({name: "" if value is None else value for name, value in row.items()})
    at = f"stream version {entry.version}, " if entry.version is not None else ""
    note(styled(f"{at}position {entry.position}", dim=True))
    _show_parked(view, entry)


def _show_parked(view: View[Any, Any], entry: Entry[Any]) -> None:
    if entry.parked is not None:
        p = entry.parked
        note(
            f"parked at {p.topic}[{p.partition}]@{p.offset} with {p.waiting} waiting: {p.error}; correct the fold, "
            f"start the projectors again, then: leftfold retry {view.name}"
        )
