"""`leftfold explain`: prints the events that made a row, with the row before and after each."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from leftfold.cli.options import AppOption, ArchiveOption, JsonOption, KafkaOption, RedisOption, encoded_key, examples
from leftfold.engine.verify.history import RowStep
from leftfold.model.keys import NO_ROW
from leftfold.model.view import View
from leftfold.runtime.console import emit, note, say, shown, styled
from leftfold.runtime.operations.generations import Explaining
from leftfold.runtime.project import folded_view_of, load_app

__all__ = ["EXAMPLES", "explain"]


EXAMPLES = examples(
    "leftfold explain basket_summary b-1",
    "leftfold explain household_spend 1234 --last 3     the last three steps only",
    "leftfold explain household_spend 1234 --json     one step a line: event, row before, row after",
    "leftfold explain household_spend@march 1234      up to the position of that generation",
    "leftfold explain household_spend 1234 --archive /backup/log     also events that Kafka has deleted",
)


def explain(
    name: Annotated[str, typer.Argument(metavar="VIEW", help="The view's name, or VIEW@NAME.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The row's key; parts are joined by /.")],
    last: Annotated[
        int | None, typer.Option("--last", metavar="N", min=1, help="Only the last N steps; all are folded.")
    ] = None,
    app: AppOption = "",
    archive: ArchiveOption = None,
    kafka: KafkaOption = None,
    redis: RedisOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the events that made a row, with what each of them changed.

    Folds them in this process, with this code, up to the position of the view. Exit code 3 when the result is not the
    row that is stored, 1 when no event touches the row.
    """
    plain, _, named = name.partition("@")
    view = folded_view_of(load_app(app, having=[plain]), plain)
    work = Explaining(view, (kafka, redis, archive), named or "live", progress=shown)
    step, steps = None, work.steps(encoded_key(view, key))
    for step in steps if last is None else deque(steps, last):
        _tell(view, step, as_json=as_json)
    _tell_end(work, step, key, as_json=as_json)
    if step is None:
        raise typer.Exit(1)
    raise typer.Exit(0 if work.equal else 3)


def _tell(view: View[Any, Any], step: RowStep, *, as_json: bool) -> None:
    record, event = step.touch.record, step.touch.decoded
    place = f"{record.topic}[{record.partition}]@{record.offset}"
    before, after = map(view.rows.shown, (step.before, step.after))
    item = None if view.items is None else view.items.shown(step.touch.item)
    if as_json:
        head = {"event": event.name, "time": event.time, "stream": event.key, "version": event.version, "at": place}
        emit({**head, "fields": event.event, "item": item, "before": before, "after": after, "error": step.error})
        return
    where = styled(f"{event.time}  {place}", dim=True)
    say(styled(event.name, bold=True), f"  {event.key} v{event.version}  ", where)
    if item is not None:
        say(f"  item {item}")
    for line in _changes(before, after):
        say(f"  {line}")
    if step.error:
        say("  ", styled(step.error, fg="red"))


def _changes(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[str]:
    if before is None and after is None:
        return ["no row"]
    if after is None:
        return ["the row is deleted"]
    was = before or {}
    return [
        f"{name}: {value}" if before is None else f"{name}: {was.get(name)} -> {value}"
        for name, value in after.items()
        if before is None or was.get(name) != value
    ] or ["nothing changes"]


def _tell_end(work: Any, last: RowStep | None, key: str, *, as_json: bool) -> None:
    if last is None:
        near = f"rows there are: {', '.join(work.near)}" if work.near else "it has no rows at all"
        note(f"no event touches row {key!r} of view {work.view.name} up to {work.position}; {near}")
    elif key == NO_ROW:
        way = f"correct key= and type leftfold rebuild {work.view.name}"
        note(f"these name no row: {work.parked}; if they belong to rows, {way}")
    elif work.parked:
        note(f"the row is parked and stays at its last good state: {work.parked}; leftfold retry {work.view.name}")
    elif not work.equal:
        stored = ", ".join(f"{name}={value}" for name, value in work.stored.items()) or "there is none"
        note(f"this is not the row that is stored: {stored}; leftfold verify {work.view.name} --deep")
    elif not as_json:
        note(f"this is the row that is stored, at {work.position}")
