"""`leftfold explain`: how a row came about."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leftfold.cli.options import AppOption, ArchiveOption, JsonOption, KafkaOption, RedisOption, examples

if TYPE_CHECKING:
    from leftfold.engine.refolded import Step
    from leftfold.view import View

__all__ = ["EXAMPLES", "explain"]

EXAMPLES = examples(
    "leftfold explain basket_summary b-1",
    "leftfold explain household_spend 1234 --last 3     the last three steps only",
    "leftfold explain household_spend 1234 --json     one step a line: event, row before, row after",
    "leftfold explain household_spend@march 1234      as of the place of that one",
    "leftfold explain household_spend 1234 --archive /backup/log     with the events that Kafka has no more",
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

    They are folded here, with the code that is here, up to exactly where the view stands. Exit code 3 when that is not
    the row that is stored, 1 when no event touches the row.
    """
    from leftfold.cli.explaining import Explaining
    from leftfold.cli.keys import encoded_key
    from leftfold.cli.project import load_app
    from leftfold.cli.workbench import folded_view_of

    plain, _, named = name.partition("@")
    view = folded_view_of(load_app(app, having=[plain]), plain)
    work = Explaining(view, (kafka, redis, archive), named or "live")
    step, steps = None, work.steps(encoded_key(view, key))
    for step in steps if last is None else deque(steps, last):
        _tell(view, step, as_json=as_json)
    _tell_end(work, step, key, as_json=as_json)
    if step is None:
        raise typer.Exit(1)
    raise typer.Exit(0 if work.equal else 3)


def _tell(view: View[Any, Any], step: Step, *, as_json: bool) -> None:
    from pydantic_core import to_jsonable_python

    from leftfold.cli.console import emit, say, styled

    record, told = step.touch.record, step.touch.decoded
    place = f"{record.topic}[{record.partition}]@{record.offset}"
    before, after = (to_jsonable_python(row) for row in (step.before, step.after))
    item = None if view.items is None else to_jsonable_python(step.touch.item, fallback=str)
    if as_json:
        event = {"event": told.name, "time": told.time, "stream": told.key, "version": told.version, "at": place}
        emit({**event, "fields": told.event, "item": item, "before": before, "after": after, "error": step.error})
        return
    where = styled(f"{told.time}  {place}", dim=True)
    say(styled(told.name, bold=True), f"  {told.key} v{told.version}  ", where)
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


def _tell_end(work: Any, last: Step | None, key: str, *, as_json: bool) -> None:
    from leftfold.cli.console import note
    from leftfold.keys import NO_ROW

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
