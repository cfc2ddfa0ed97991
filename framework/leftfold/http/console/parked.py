"""What reactions and views have parked, beside the dead letters: shown, and tried again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nicegui import ui

from leftfold.engine.progress import RebuildProgress
from leftfold.http.console.console_state import SurveyResult, Visitor
from leftfold.http.console.elements import Act, act_button, fetched, html, panel
from leftfold.http.console.html import Html, details, json_text, sentence, table, tag
from leftfold.http.console.overview_page import empty_text
from leftfold.model.app import App
from leftfold.runtime.console import amount
from leftfold.runtime.operations.reactions import discard_parked, parked_events, retry_parked

__all__ = ["parked_rows_html", "show_parked_events"]

_LISTED, _MOST = 30, 2_000
"""How many events or rows are listed, and read: a flood of them must not end the console."""
_SHOWN = 20_000
"""Characters of the payload of an event: a page shows many of them."""


async def show_parked_events(visitor: Visitor) -> None:
    """What each reaction has parked, with a retry of all of it."""
    for app in visitor.console.apps.values():
        for reaction in app.reactions:
            await _show_reaction(visitor, app, reaction.name)


async def _show_reaction(visitor: Visitor, app: App, name: str) -> None:
    handled = {cls.__leftfold__.type.rpartition(".v")[0] for cls in app.reaction(name).events}

    def read() -> Sequence[Mapping[str, Any]]:
        return parked_events(name, visitor.console.servers[0], _LISTED, _MOST)

    def retry() -> Act:
        def do(who: str, reason: str, report: Any) -> str:
            def tell(count: int) -> None:
                report(RebuildProgress("trying", count))

            kafka, _, archive = visitor.console.servers
            tried = retry_parked(app, name, kafka, tell, archive)
            still = "".join(f"; {where}: {why}" for where, why in tried.parked.items())
            return f"{amount(tried.done, 'event')} done, {len(tried.parked):,} parked again{still}"

        line = visitor.console.shell("retry", name, app=app.name)
        happens = "Each parked event is tried once, by this console, with the same idempotency keys as before."
        return Act(f"Retry {name}", happens, lambda reason: line, do, needs_reason=True, is_long=True)

    def discard() -> Act:
        def do(who: str, reason: str, report: Any) -> str:
            kafka, _, archive = visitor.console.servers
            count = discard_parked(app, name, kafka, (), why=reason, who=who, archive=archive)
            return f"{amount(count, 'event')} discarded"

        def line(reason: str) -> str:
            by = ["--by", visitor.name] if visitor.name else []
            return visitor.console.shell("reactions", "discard", name, "--reason", reason or "WHY", *by, app=app.name)

        happens = "Parked events of types that the reaction here does not handle are never tried again."
        title = f"Discard what {name} does not handle"
        return Act(
            title,
            f"{happens} Nor are records that no reaction has parked. Their bytes stay in the topic.",
            line,
            do,
            needs_reason=True,
        )

    def shown(found: Sequence[Mapping[str, Any]]) -> None:
        columns = ("event", "type", "key", "tries#", "why", "payload")
        rows = [
            (_source(visitor, one), one["type"], one["key"], one["tries"], one["why"], _payload(one["value"]))
            for one in found[:_LISTED]
        ]
        html(table(columns, rows, label=f"Parked by {name}", empty="Nothing is parked."))
        if found:
            counted = f"{len(found):,}" if len(found) < _MOST else f"{_MOST:,} and more"
            with ui.element("div").classes("lf-buttons"):
                act_button(visitor, f"Retry {counted}", retry, again, label=f"Retry {name}")
                if any(one["type"] and one["type"].rpartition(".v")[0] not in handled for one in found):
                    act_button(visitor, "Discard unhandled", discard, again, kind="danger", label=f"Discard of {name}")

    async def again() -> None:
        section.clear()
        with section:
            await fetched(read, shown, what=f"reading what {name} has parked")

    with panel(f"Parked by reaction {name}"):
        section = ui.element("div")
        await again()


def _payload(value: Any) -> Html:
    """The value of a parked event, as far as a page can show it."""
    if value is None:
        return tag("span", "too large to be copied; the log has it", cls="lf-quiet")
    text = json_text(value)
    return details("payload", value if len(text) <= _SHOWN else f"{text[:_SHOWN]}… of {len(text):,} characters")


def _source(visitor: Visitor, event: Mapping[str, Any]) -> Html:
    category = str(event["type"]).partition(".")[0]
    if category not in visitor.console.deciders():
        return tag("code", event["event"])
    return tag("a", event["event"], href=visitor.href("/streams", category=category, key=event["key"]))


def parked_rows_html(visitor: Visitor, result: SurveyResult) -> Html:
    """The parked rows of all views, each with a link to its view."""
    live = [row for row in result.rows if row["kind"] == "view" and row.get("live")]
    errors = [problem for problem in result.problems if " parks " in problem]
    rows = [
        (
            tag("a", row["name"], href=visitor.href(f"/views/{row['name']}")),
            tag("a", typed, href=visitor.href(f"/views/{row['name']}", key=typed)),
            next((sentence(one.removeprefix(start)) for one in errors if one.startswith(start)), ""),
        )
        for row in live
        for key in row.get("parked", ())[:_LISTED]
        for start in [f"view {row['name']} parks {key}: "]
        for typed in [visitor.console.view(row["name"])[1].keys.typed(key)]
    ]
    nothing = empty_text(result, "Nothing is parked.")
    shown = table(("view", "row", "error"), rows, label="Parked rows", empty=nothing)
    others = sum(len(row.get("parked", ())) for row in live) - len(rows)
    return shown + tag("p", f"{others:,} more on the pages of their views", cls="lf-quiet") if others else shown
