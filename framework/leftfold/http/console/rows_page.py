"""Rows of a view: browsed and found by key or index, explained event by event, and compared between generations."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nicegui import ui

from leftfold.client.reader import Reader
from leftfold.engine.progress import RebuildProgress
from leftfold.engine.verify.history import RowStep
from leftfold.engine.verify.row_differences import Diff, diff
from leftfold.engine.views.generations import resolve
from leftfold.errors import ViewNotBuilt
from leftfold.http.console.console_state import Visitor
from leftfold.http.console.elements import button, fetched, form, html, panel, progress_by, submit
from leftfold.http.console.html import Html, details, difference, joined, json_text, pairs, sentence, table, tag
from leftfold.model.app import App
from leftfold.model.keys import NO_ROW
from leftfold.model.row_codec import value_of_text
from leftfold.model.view import View
from leftfold.runtime.console import amount
from leftfold.runtime.operations.generations import Explaining
from leftfold.runtime.project import Usage
from leftfold.runtime.servers import store_of

__all__ = ["browse", "compare_generation", "explain_row", "index_value"]

_PAGE = 25
_FOUND = 200
"""Most rows of a search that are shown."""
_STEPS = 60
_SAMPLES = 8
_COLUMNS = 8


def index_value(view: View[Any, Any], field: str, text: str) -> Any:
    """The value of an indexed field from what was typed; `null` is none.

    Raises:
        Usage: the field has no index, or it is no value of it.
    """
    if field not in view.rows.index_types:
        raise Usage(f"view {view.name} has no index on {field!r}; it has {', '.join(view.rows.indexes) or 'none'}")
    if text == "null":
        return None
    try:
        return value_of_text(view.rows.index_types[field], text)
    except ValueError as error:
        raise Usage(f"{text!r} is no value of {view.name}.{field}; type one, or null") from error


def _key_of(view: View[Any, Any], text: str) -> Any:
    try:
        return view.keys.read(text)
    except ValueError as error:
        raise Usage(f"{text!r} is no key of view {view.name}: {error}; parts of a key have / between them") from error


async def browse(visitor: Visitor, app: App, view: View[Any, Any], key: str) -> None:
    """The rows, page by page, or those that a search finds."""
    connection = visitor.console.connections[app.name]
    cursors: list[str] = [""]

    async def show(read: Any, *, pages: bool) -> None:
        listed.clear()
        with listed:
            await fetched(
                read, lambda found: _show_rows(visitor, view, found, following if pages else None), what="reading rows"
            )

    def page() -> tuple[list[tuple[Any, Any]], str | None]:
        found = connection.views[view].scan(cursor=cursors[-1], limit=_PAGE)
        return list(found.rows), found.cursor

    async def following(cursor: str | None) -> None:
        cursors[:] = [*cursors, cursor] if cursor is not None else [""]
        await show(page, pages=True)

    async def search() -> None:
        field, text = select.value, (typed.value or "").strip()
        if field == _KEY and text:
            ui.navigate.to(visitor.route(f"/views/{view.name}", key=text))
        elif field != _KEY:
            await show(lambda: (found_by(connection.views[view], field, text), None), pages=False)
        else:
            await following(None)

    def found_by(reader: Reader[Any, Any], field: str, text: str) -> list[tuple[Any, Any]]:
        wanted: dict[str, Any] = {} if "limit" in view.rows.index_types else {"limit": _FOUND + 1}
        return list(reader.find(**wanted, **{field: index_value(view, field, text)}).items())

    def one() -> tuple[list[tuple[Any, Any]], None]:
        typed_key = _key_of(view, key)
        row = connection.views[view].entry(typed_key).row
        if row is None:
            raise Usage(f"view {view.name} has no row for {key!r}; what became of it is explained below")
        return [(typed_key, row)], None

    with panel("Rows"):
        with form(search):
            fields = [_KEY, *view.rows.indexes]
            select = ui.select(fields, value=_KEY, label="Find by").props("outlined dense").classes("lf-field")
            typed = ui.input("Value", value=key).props("outlined dense").classes("lf-field")
            submit("Find")
            if key:
                button("All rows", lambda: ui.navigate.to(visitor.route(f"/views/{view.name}")))
        listed = ui.element("div")
    await show(one if key and key != NO_ROW else page, pages=not key)


_KEY = "key"


def _show_rows(
    visitor: Visitor, view: View[Any, Any], found: tuple[Iterable[tuple[Any, Any]], str | None], following: Any
) -> None:
    listed, cursor = list(found[0]), found[1]
    if following is None and len(listed) > _FOUND:
        html(tag("p", f"Only the first {_FOUND:,} rows are shown.", cls="lf-quiet"))
        del listed[_FOUND:]
    rows = [(view.keys.typed(view.keys.encode(key)), view.rows.shown(row)) for key, row in listed]
    fields = list(view.rows.schema.get("properties", {})) or list(rows[0][1] if rows else ())
    shown = fields[:_COLUMNS]
    html(
        table(
            (_KEY, *shown, *(["more"] if len(fields) > len(shown) else [])),
            [_cells(visitor, view, key, row, shown, fields) for key, row in rows],
            label=f"Rows of {view.name}",
            empty="no rows here",
        )
    )
    if following is not None:
        with ui.element("div").classes("lf-buttons"):
            if cursor:
                button("Next rows", lambda: following(cursor))
            button("First rows", lambda: following(None))


def _cells(
    visitor: Visitor, view: View[Any, Any], key: str, row: Mapping[str, Any], shown: list[str], fields: list[str]
) -> list[object]:
    cells: list[object] = [tag("a", key, href=visitor.href(f"/views/{view.name}", key=key))]
    cells += [_cell(row.get(name)) for name in shown]
    if len(fields) > len(shown):
        rest = {name: row.get(name) for name in fields[len(shown) :]}
        cells.append(details(amount(len(rest), "field"), rest))
    return cells


def _cell(value: Any) -> object:
    if isinstance(value, list | dict):
        return details(f"{len(value):,}", value) if value else ""
    return value if isinstance(value, str) else "" if value is None else json_text(value)


async def explain_row(visitor: Visitor, view: View[Any, Any], key: str) -> None:
    """The events that made a row, with what each of them changed."""
    reports: list[RebuildProgress] = []

    def read() -> tuple[Sequence[RowStep], int, Explaining]:
        work = Explaining(view, visitor.console.servers, progress=progress_by(reports.append))
        encoded = key if key == NO_ROW else view.keys.encode(_key_of(view, key))
        last, count = deque[RowStep](maxlen=_STEPS), 0
        for step in work.steps(encoded):
            last.append(step)
            count += 1
        return last, count, work

    def shown(found: tuple[Sequence[RowStep], int, Explaining]) -> None:
        steps, count, work = found
        html(_verdict(view, count, work, key))
        for step in reversed(steps):
            html(_step(visitor, view, step), cls="lf-step")
        if count > len(steps):
            line = visitor.console.shell("explain", "--", view.name, key, app=visitor.console.view(view.name)[0].name)
            more = f"{amount(count - len(steps), 'earlier step')} are left out here; all: {line}"
            html(tag("p", sentence(more), cls="lf-quiet"))

    with panel(f"How {key} came to be"):
        if not view.folded:
            html(tag("p", "Spark or a stream computes this view as a whole, not event by event.", cls="lf-quiet"))
        elif not visitor.console.has_servers:
            html(tag("p", "An explanation needs servers.", cls="lf-quiet"))
        else:
            await fetched(read, shown, what="folding the row event by event", reports=reports)


def _verdict(view: View[Any, Any], count: int, work: Explaining, key: str) -> Html:
    if not count:
        near = f" Rows there are: {', '.join(work.near)}." if work.near else ""
        why = f"No event touches row {key} up to {work.position}.{near}"
    elif work.parked:
        why = (
            f"The row is parked and stays at its last good state: {work.parked}. When it is corrected: leftfold retry "
        )
        why += view.name
    elif not work.equal:
        why = f"This is not the row that is stored; see: leftfold verify {view.name} --deep"
    else:
        return tag("p", f"{amount(count, 'event')} fold to the row that is stored.", cls="lf-fine")
    return tag("p", sentence(why), cls="lf-error")


def _step(visitor: Visitor, view: View[Any, Any], step: RowStep) -> Html:
    record, event = step.touch.record, step.touch.decoded
    category = record.topic.removesuffix(".events")
    name = event.name.partition(".")[2] or event.name
    place = tag("code", f"{record.topic}[{record.partition}]@{record.offset}")
    href = visitor.href("/streams", category=category, key=event.key, version=event.version)
    title = tag("strong", tag("a", f"{name} of {event.key} v{event.version}", href=href))
    before, after = (view.rows.shown(row) or {} for row in (step.before, step.after))
    changed = difference(before, after, label=f"What {name} v{event.version} changed")
    wrong = tag("p", step.error, cls="lf-error") if step.error else Html()
    return tag("div", title, " ", place, wrong, changed)


async def compare_generation(visitor: Visitor, view: View[Any, Any], one: str, other: str) -> None:
    """Two generations, row by row."""
    _, redis, _ = visitor.console.servers

    def compared() -> Diff:
        with store_of(redis) as store:
            registry = store.registry(view.name)
            first, second = resolve(registry, view, names[0].value or ""), resolve(registry, view, names[1].value or "")
            if first.id == second.id:
                raise ViewNotBuilt(f"{names[0].value} and {names[1].value} are one generation, {first.id}; choose two")
            return diff(first, second, store, samples=_SAMPLES, moving=view.folded)

    def shown(found: Diff) -> None:
        html(_difference(found))

    async def compare() -> None:
        result.clear()
        with result:
            await fetched(compared, shown, what="comparing all rows")

    with panel("Compare two generations"):
        with form(compare):
            hint = "live, held, kept, an id or a name"
            names = [
                ui.input(f"{side} generation", value=value, placeholder=hint)
                .props("outlined dense")
                .classes("lf-field")
                for side, value in (("One", one or "live"), ("Other", other or "held"))
            ]
            submit("Compare")
        result = ui.element("div")
    if one and other:
        await compare()


def _difference(found: Diff) -> Html:
    one, other = found.one.id, found.other.id
    counts = {
        "equal": f"{found.equal:,}", "differ": f"{found.different:,}", f"only in {one}": f"{found.only_one:,}",
        f"only in {other}": f"{found.only_other:,}", "not settled": f"{found.unsettled:,}",
    }  # fmt: skip
    verdict = tag("p", f"{one} and {other} have the same rows.", cls="lf-fine") if found.same else Html()
    samples = [
        tag("h3", row.key)
        + difference(row.one or {}, row.other or {}, label=f"Fields of {row.key}", names=(one, other))
        for row in found.samples
    ]
    return joined([verdict, pairs(counts), *samples])
