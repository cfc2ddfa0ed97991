"""Views: their generations, how far each is behind, and rebuild, promote, roll back, verify with progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from nicegui import ui

from leftfold.errors import ConfigurationError, LeftfoldError, ViewNotBuilt
from leftfold.http.console.console_state import SurveyResult, Visitor
from leftfold.http.console.elements import (
    Act,
    act_button,
    button,
    fetched,
    heading,
    html,
    panel,
    progress_by,
    show_error,
    show_surveys,
    survey_html,
)
from leftfold.http.console.html import (
    Html,
    age_text,
    details,
    joined,
    number_text,
    pairs,
    sentence,
    table,
    tag,
    time_text,
)
from leftfold.http.console.overview_page import empty_text, is_about, server_problems, state_of
from leftfold.http.console.rows_page import browse, compare_generation, explain_row
from leftfold.model.app import App
from leftfold.model.keys import NO_ROW
from leftfold.model.view import FoldView, SpreadView, View
from leftfold.ports.flush import Phase
from leftfold.runtime.console import amount, lasting
from leftfold.runtime.lifecycle import folds_of
from leftfold.runtime.operations.generations import (
    ParkedRow,
    ParkedRows,
    Verifying,
    generation_meant,
    parked_rows,
    plan_locally,
    promote_generation,
    rebuild_locally,
    retried,
    verified_as,
)
from leftfold.runtime.operations.sizes import sampled_bytes
from leftfold.runtime.servers import Servers

__all__ = ["view", "views"]

Row = Mapping[str, Any]
_KEEP = 600.0
_HELD = "Readers do not see it until it is promoted."
_SHOWN_AT_ONCE = (
    "It is compared with the live one. Readers see it if the rows are equal, or if the code is another one; the "
    f"replaced one is kept for {lasting(_KEEP)}, for a rollback."
)


def kind_of(view: View[Any, Any]) -> str:
    """What keeps a view's rows up to date, in a word or two."""
    if view.streamed:
        return "kept by a stream"
    if not view.folded:
        return "computed by Spark"
    return "one row per stream" if view.stream_keyed else "spread" if isinstance(view, SpreadView) else "folded by key"


def views(visitor: Visitor) -> None:
    """The page with all views and how far each is behind."""
    heading("Views", "Every view with its live generation. A view is opened by its name.")

    def listed(result: SurveyResult) -> Html:
        rows = []
        for name, (app, view) in visitor.console.views().items():
            row = next((r for r in _rows(result, name) if r.get("live")), {})
            rows.append(
                (
                    tag("a", name, href=visitor.href(f"/views/{name}")),
                    state_of(result, "view", name),
                    app.name,
                    kind_of(view),
                    ", ".join(view.categories),
                    f"{row['rows']:,}" if "rows" in row else empty_text(result, "not built"),
                    number_text(row.get("lag")),
                    age_text(row.get("behind")),
                    len(row.get("parked", ())),
                )
            )
        columns = ("view", "state", "app", "kind", "reads", "rows#", "lag#", "behind#", "parked#")
        shown = table(columns, rows, label="Views", empty="these Apps have no views")
        return server_problems(visitor, result) + shown

    with panel():
        survey_html(visitor, listed)


def _rows(result: SurveyResult, name: str) -> list[Row]:
    return [row for row in result.rows if row["kind"] == "view" and row["name"] == name]


async def view(visitor: Visitor, name: str, key: str = "", one: str = "", other: str = "") -> None:
    """The page of one view."""
    try:
        app, found = visitor.console.view(name)
    except LeftfoldError as error:
        heading(name)
        show_error(error)
        return
    heading(name, f"{kind_of(found).capitalize()}, from events of {', '.join(found.categories)}.")
    if visitor.console.has_servers:
        _show_generations(visitor, app, found)
        await _show_bytes(visitor, found)
        await _show_parked(visitor, found)
    await browse(visitor, app, found, key)
    if key:
        await explain_row(visitor, found, key)
    if visitor.console.has_servers:
        await compare_generation(visitor, found, one, other)
    with panel("Definition"):
        html(_definition(found))


def _definition(view: View[Any, Any]) -> Html:
    found: dict[str, object] = {
        "version": view.version, "schema hash": tag("code", view.hash), "key": view.keys.name,
        "indexes": ", ".join(view.rows.indexes) or "none",
        "events": ", ".join(cls.__leftfold__.type for cls in view.events),
    }  # fmt: skip
    if isinstance(view, FoldView | SpreadView):
        found["fold"] = tag("code", f"{view.evolve.__module__}.{view.evolve.__qualname__}")
    return pairs(found) + details("Schema of a row", view.rows.schema)


def _show_generations(visitor: Visitor, app: App, view: View[Any, Any]) -> None:
    """The generations, up to date while the page is open, and what can be done with them."""
    with panel("Generations"):
        listed = html(tag("span", "looking", cls="lf-waiting"))
        problems = html()
        with ui.element("div").classes("lf-buttons"):
            buttons = _buttons(visitor, app, view)

    def show(result: SurveyResult) -> None:
        rows = _rows(result, view.name)
        nothing = empty_text(result, "There is no generation yet; run the App, or rebuild the view.")
        listed.set_content(server_problems(visitor, result) + _generations(rows, nothing))
        wrong, remarks = (
            [sentence(one) for one in said if is_about(one, "view", view.name)]
            for said in (result.problems, result.remarks)
        )
        found = [tag("ul", *(tag("li", one) for one in wrong), cls="lf-problems")] if wrong else []
        problems.set_content(joined([*found, *(tag("p", one, cls="lf-quiet") for one in remarks)]))
        phases = {str(row.get("phase", "")).partition(" ")[0] for row in rows}
        for phase, made in buttons.items():
            if made is not None:
                made.set_enabled(phase in phases)

    show_surveys(visitor, show)


def _generations(rows: Sequence[Row], nothing: str) -> Html:
    found = [
        (
            tag("code", row["generation"]),
            tag("span", row.get("phase", ""), cls=f"lf-badge {'lf-good' if row.get('live') else ''}")
            + (f" @{row['called']}" if row.get("called") else ""),
            number_text(row.get("rows")),
            tag("code", row["checksum"][:8], title=row["checksum"]) if "checksum" in row else "",
            number_text(row.get("lag")),
            age_text(row.get("behind")) if row.get("live") else "",
            row.get("projectors", ""),
            len(row.get("parked", ())),
            time_text(row.get("time")),
            time_text(row.get("until")),
            details("offsets", row["position"]) if "position" in row else "",
        )
        for row in rows
    ]
    columns = (
        "generation",
        "phase",
        "rows#",
        "checksum",
        "lag#",
        "behind#",
        "projectors#",
        "parked#",
        "last event",
        "ends",
        "position",
    )
    return table(columns, found, label="Generations", empty=nothing)


async def _show_bytes(visitor: Visitor, view: View[Any, Any]) -> None:
    """About how many bytes each generation takes, as the page is opened."""

    def shown(found: Mapping[str, int]) -> None:
        sizes = {id_: f"about {size / 2**20:,.1f} MiB" for id_, size in found.items()}
        html(pairs(sizes) if sizes else tag("p", "There is no generation yet.", cls="lf-empty"))

    with panel("Memory in Redis"):
        html(tag("p", "Estimated from a sample of keys when this page was opened.", cls="lf-quiet"))
        await fetched(partial(sampled_bytes, view, visitor.console.servers[1]), shown, what="sampling keys")


def _buttons(visitor: Visitor, app: App, view: View[Any, Any]) -> dict[str, ui.button | None]:
    """The acts; those that need a generation of some phase, by that phase."""

    def nothing() -> None:
        """The bar of long work shows what becomes of it."""

    shell = partial(visitor.console.shell, app=app.name)

    def rebuild(*, hold: bool) -> Act:
        plan = plan_locally(view, visitor.console.servers)
        replaced = _held(app, view, visitor.console.servers) if hold else ""

        def do(who: str, reason: str, report: Any) -> str:
            if hold and (now := _held(app, view, visitor.console.servers)) not in ("", replaced):
                raise ConfigurationError(
                    f"the held generation of view {view.name} is {now} by now, which was not named; ask again to "
                    "replace it"
                )
            return str(rebuild_locally(app, view, visitor.console.servers, hold=hold, keep=_KEEP, report=report))

        line = shell("rebuild", view.name, "--engine", "local", *(["--hold"] if hold else []))
        happens = f"A new generation is folded from the whole log in this process. {_HELD if hold else _SHOWN_AT_ONCE}"
        happens += f" It replaces the held generation {replaced}, which is removed." if replaced else ""
        details = (tag("pre", str(plan), tabindex="0"),)
        return Act(f"Rebuild {view.name}", happens, lambda reason: line, do, is_long=True, details=details)

    def swap(word: str, phase: str, happens: str) -> Act:
        servers = visitor.console.servers
        meant = generation_meant(app, view.name, phase, servers)

        def do(who: str, reason: str, report: Any) -> str:
            result = promote_generation(app, view.name, phase, servers, keep=_KEEP, only=meant, report=report)
            kept = f" {result.kept} is kept for {lasting(_KEEP)}." if result.kept else ""
            return f"Readers see {result.generation} now, {amount(result.rows, 'row')}.{kept}"

        line = shell(word.lower(), view.name)
        which = f"It is {meant}; if it is another one by then, nothing is changed."
        return Act(f"{word} {view.name}", f"{happens} {which}", lambda reason: line, do, is_long=True)

    def verify() -> Act:
        def do(who: str, reason: str, report: Any) -> str:
            servers, folds, remarks = visitor.console.servers, folds_of(app), list[str]()
            shown, warn = progress_by(report), remarks.append
            work = Verifying(servers, "live", deep=True, folds=folds, progress=shown, warn=warn)
            work.check()
            result = work.run(view)
            advice = f"; build it again: leftfold rebuild {view.name} --hold" if result.exit_code == 3 else ""
            folded = f"{view.name} {result.generation}: up to {amount(result.events, 'event')} folded"
            return ". ".join([f"{folded}: {verified_as(result)}{advice}", *remarks])

        line = shell("verify", view.name, "--deep")
        happens = (
            "The whole log is folded again by this console, and compared with every stored row. Nothing is written."
        )
        return Act(f"Verify {view.name}", happens, lambda reason: line, do, is_long=True)

    if not view.folded:
        if visitor.may_act:
            line = shell("rebuild", view.name)
            why = f"Spark or a stream computes this view; to compute it again, type: {line}"
            html(tag("p", sentence(why), cls="lf-quiet"))
        return {}
    act_button(visitor, "Rebuild", lambda: rebuild(hold=False), nothing)
    act_button(visitor, "Rebuild and hold", lambda: rebuild(hold=True), nothing)
    promote = "The held generation goes live when it is as far as what readers see now. The replaced one is kept."
    back = "Readers see the generation that was live before, kept up to date since. A second rollback takes it back."
    held = act_button(visitor, "Promote", lambda: swap("Promote", "held", promote), nothing, kind="main")
    kept = act_button(visitor, "Roll back", lambda: swap("Rollback", "kept", back), nothing)
    act_button(visitor, "Verify", verify, nothing)
    return {Phase.HELD.value: held, Phase.KEPT.value: kept}


def _held(app: App, view: View[Any, Any], servers: Servers) -> str:
    """The id of the generation that is held now; '' = none."""
    try:
        return generation_meant(app, view.name, Phase.HELD.value, servers)
    except ViewNotBuilt:
        return ""


async def _show_parked(visitor: Visitor, view: View[Any, Any]) -> None:
    """The parked rows of the live generation, page by page, each with the event that could not be folded."""

    def shown(found: ParkedRows, begin: int) -> None:
        if not found.total:
            return
        with section, panel(f"Parked: {amount(found.total, 'row')}"):
            why = "A row that could not be folded stays at its last good state. Correct the fold, and retry."
            html(tag("p", why, cls="lf-quiet"))
            for row in found.rows:
                with ui.element("div").classes("lf-letter"):
                    html(_parked(visitor, view, row))
                    if row.key != NO_ROW:
                        act_button(
                            visitor,
                            "Retry",
                            partial(retry, [row.key]),
                            again,
                            label=f"Retry {view.keys.typed(row.key)}",
                        )
            with ui.element("div").classes("lf-buttons"):
                if (end := begin + len(found.rows)) < found.total:
                    button(f"Next of {found.total - end:,} more", partial(again, end), label="Next parked rows")
                if begin:
                    button("First parked rows", again)
                if found.total > 1:
                    act_button(visitor, "Retry all", partial(retry, []), again)

    def retry(keys: Sequence[str]) -> Act:
        def do(who: str, reason: str, report: Any) -> str:
            _, result = retried(view, keys, visitor.console.servers)
            still = "".join(f"; {key}: {why}" for key, why in result.parked.items())
            return f"{amount(len(result.freed), 'row')} freed, {len(result.parked)} still parked{still}"

        typed = [view.keys.typed(key) for key in keys]
        line = visitor.console.shell("retry", "--", view.name, *typed, app=visitor.console.view(view.name)[0].name)
        happens = "The rows are folded again from the beginning, by this console. Those that fail again stay parked."
        title = f"Retry {', '.join(typed) or 'all parked rows'}"
        return Act(title, happens, lambda reason: line, do, needs_reason=True)

    async def again(begin: int = 0) -> None:
        section.clear()
        with section:
            read = partial(parked_rows, view, visitor.console.servers, begin)
            await fetched(read, lambda found: shown(found, begin), what="reading parked rows")

    section = ui.element("div")
    await again()


def _parked(visitor: Visitor, view: View[Any, Any], row: ParkedRow) -> Html:
    parked, event = row.parked, row.event
    where = tag("code", f"{parked.topic}[{parked.partition}]@{parked.offset}")
    named: Html = where
    if event is not None:
        category = parked.topic.removesuffix(".events")
        href = visitor.href("/streams", category=category, key=event["key"], version=event["version"])
        named = tag("a", f"{event['type']} of {event['key']}", href=href) + Html(" ") + where
    found: dict[str, object] = {
        "row": tag("a", key := view.keys.typed(row.key), href=visitor.href(f"/views/{view.name}", key=key)),
        "error": parked.error,
        "event": named,
        "waiting": amount(parked.waiting, "event"),
    }
    return pairs(found) + (details("The event", event["event"]) if event is not None else Html())
