"""`leftfold explain`: prints the events that made a row, with the row before and after each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from leftfold.cli.options import AppOption, ArchiveOption, JsonOption, KafkaOption, RedisOption, examples
from leftfold.engine.progress import Stopwatch
from leftfold.engine.verify.history import History, RowStep
from leftfold.engine.verify.history import explain as steps_of
from leftfold.engine.verify.row_comparison import Fields, fields_of, row_and_place
from leftfold.engine.views.folded_rows import place_of
from leftfold.engine.views.generations import resolve
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.flush import Generation
from leftfold.ports.protocols import ViewStore
from leftfold.runtime.console import shown
from leftfold.runtime.servers import Servers, check_broker, workbench

__all__ = ["EXAMPLES", "Explaining", "explain"]


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
    from leftfold.cli.options import encoded_key
    from leftfold.runtime.project import folded_view_of, load_app

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


def _tell(view: View[Any, Any], step: RowStep, *, as_json: bool) -> None:
    from pydantic_core import to_jsonable_python

    from leftfold.runtime.console import emit, say, styled

    record, event = step.touch.record, step.touch.decoded
    place = f"{record.topic}[{record.partition}]@{record.offset}"
    before, after = (to_jsonable_python(row) for row in (step.before, step.after))
    item = None if view.items is None else to_jsonable_python(step.touch.item, fallback=str)
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
    from leftfold.model.keys import NO_ROW
    from leftfold.runtime.console import note

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


_NEAR = 3


class Explaining:
    """Folds one row event by event and compares it with the stored row.

    Args:
        servers: Kafka, Redis and the archive, as options name them. generation: live, held, kept, a name or an id.
    """

    def __init__(self, view: View[Any, Any], servers: Servers, generation: str) -> None:
        self.view, self._servers, self._generation = view, servers, generation
        self.position, self.stored, self.equal, self.parked = Position(), dict[str, str](), True, ""
        self.near = list[str]()

    def steps(self, key: str) -> Iterator[RowStep]:
        """The steps of an encoded key; afterwards the attributes say whether the row equals the stored one."""
        check_broker(self._servers[0])
        with workbench(*self._servers) as bench, shown(self.view.name) as report:
            generation = resolve(bench.store.registry(self.view.name), self.view, self._generation)
            stored, self.position = row_and_place(generation, key, bench.store)
            checkpoint = bench.store.read(generation, [place_of(generation, key)]).checkpoints[
                place_of(generation, key)[0]
            ]
            watch = Stopwatch(report)
            watch.begin("read", History(self.view, generation, {key: self.position}).events)
            step = None
            for step in steps_of(self.view, generation, key, self.position, bench.open_log, tell=watch.tell):
                yield step
            watch.end()
            if step is None:
                self.near = _some_keys(bench.store, generation)
        folded = self._fields(step)
        self.stored, self.parked = dict(stored or {}), checkpoint.parked[key].error if key in checkpoint.parked else ""
        self.equal = (stored or None) == folded

    def _fields(self, step: RowStep | None) -> Fields | None:
        if step is None:
            return None
        version = step.touch.decoded.version if self.view.stream_keyed else None
        return fields_of(self.view, step.after, version)


def _some_keys(store: ViewStore, generation: Generation) -> list[str]:
    """A few keys of rows as users type them, from the first buckets that have any."""
    found: list[str] = []
    for bucket in range(generation.buckets):
        found += [unquote(key) for key in store.keys(generation, bucket, "", _NEAR - len(found))]
        if len(found) >= _NEAR:
            break
    return found
