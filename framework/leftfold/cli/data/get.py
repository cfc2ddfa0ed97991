"""`leftfold get` and `leftfold watch`: print one row of a view, or its rows as they change."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any

import typer

from leftfold.cli.options import AppOption, JsonOption, RedisOption, examples, read_key, seconds
from leftfold.client import Change, Entry
from leftfold.errors import InfrastructureError
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.runtime.as_of import read_position
from leftfold.runtime.connect import connect
from leftfold.runtime.console import Styled, emit, note, pairs, say, styled
from leftfold.runtime.project import load_app, view_of

__all__ = ["GET_EXAMPLES", "WATCH_EXAMPLES", "get", "watch"]

GET_EXAMPLES = examples(
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
            changes = reader.watch(after=begin, keys=[wanted])
            _show_changes(view, _news(changes, entry.row), None, keys=[key], as_json=as_json)
    if entry.row is None:
        raise typer.Exit(1)


def _show_entry(view: View[Any, Any], key: str, entry: Entry[Any], *, as_json: bool) -> None:
    if as_json:
        fields = {"view": view.name, "key": key, "row": view.rows.shown(entry.row), "position": entry.position.offsets}
        extra = {"version": entry.version, "parked": entry.parked}
        emit(fields | {name: value for name, value in extra.items() if value is not None})
        return
    if entry.row is None:
        note(f"{view.name} has no row for {key!r}")
    else:
        row = view.rows.shown(entry.row)
        pairs({name: "" if value is None else value for name, value in row.items()})
        at = f"stream version {entry.version}, " if entry.version is not None else ""
        note(styled(f"{at}position {entry.position}", dim=True))
    if (p := entry.parked) is not None:
        note(
            f"parked at {p.topic}[{p.partition}]@{p.offset} with {p.waiting} waiting: {p.error}; correct the fold, "
            f"start the projectors again, then: leftfold retry {view.name}"
        )


WATCH_EXAMPLES = examples(
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
        _show_changes(view, changes, limit, keys=keys or (), as_json=as_json)


def _show_changes(
    view: View[Any, Any], changes: Iterable[Change[Any, Any]], limit: int | None, *, keys: Iterable[str], as_json: bool
) -> None:
    """Prints changes, at most `limit`; when interrupted, or when Redis fails, prints the command that continues."""
    position: Position | None = None
    try:
        for number, change in enumerate(changes, 1):
            key = view.keys.typed(view.keys.encode(change.key))  # as users type it: parts with / between them
            if as_json:
                row, offsets = view.rows.shown(change.row), change.position.offsets
                fields = {"view": view.name, "key": key, "row": row, "position": offsets}
                emit(fields if change.version is None else {**fields, "version": change.version})
            else:
                say(*_line(key, change, view.rows.shown(change.row)))
            sys.stdout.flush()
            position = change.position
            if number == limit:
                return
    except (KeyboardInterrupt, InfrastructureError):
        if position is not None and not as_json:
            note(f"to continue here: {shlex.join(['leftfold', 'watch', view.name, *keys, '--after', str(position)])}")
        raise


def _news(changes: Iterable[Change[Any, Any]], row: Any) -> Iterator[Change[Any, Any]]:
    """The changes of one row that make it differ from `row`, its last value."""
    for change in changes:
        if change.row != row:
            yield change
        row = change.row


def _line(key: str, change: Change[Any, Any], row: Mapping[str, Any] | None) -> list[str | Styled]:
    head = styled(f"{key:<16}", fg="cyan")
    if row is None:
        return [head, "  deleted"]
    version: list[str | Styled] = [] if change.version is None else ["  ", styled(f"v{change.version:<4}", dim=True)]
    shown = [part for name, value in row.items() for part in ("  ", styled(f"{name}=", dim=True), _value(value))]
    return [head, *version, *shown]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
