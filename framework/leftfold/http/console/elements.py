"""Elements that pages share: sections, errors, data that loads, acts that are confirmed, and long work."""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from nicegui import Client, ui

from leftfold.engine.progress import ProgressReport, RebuildProgress
from leftfold.http.console.console_state import SurveyResult, Visitor, Work, explain_error
from leftfold.http.console.html import Html, command, sentence, tag
from leftfold.runtime.console import lasting
from leftfold.runtime.project import Usage
from leftfold.safety import veiled

__all__ = [
    "Act",
    "act_button",
    "ask",
    "button",
    "end_with_token",
    "fetched",
    "form",
    "heading",
    "html",
    "panel",
    "progress_by",
    "say",
    "show_error",
    "show_surveys",
    "submit",
    "survey_html",
    "with_name",
    "work_bar",
]

T = TypeVar("T")
E = TypeVar("E", bound=ui.element)
_LOOK_SECONDS = 0.5
_LONGEST_LINE = 1000
_log = logging.getLogger("leftfold.console")


def html(content: str = "", *, cls: str = "", element: str = "div") -> ui.html:
    """HTML whose text is escaped already; the browser sanitizes it once more."""
    return ui.html(content, tag=element).classes(f"lf-html {cls}")


def heading(title: str, what: str = "") -> None:
    """The heading of a page, with a sentence that says what it shows."""
    html(tag("h1", title) + (tag("p", what, cls="lf-lead") if what else ""), cls="lf-heading")


def panel(title: str = "", *, cls: str = "") -> ui.element:
    """A part of a page with a heading; used in a `with`."""
    found = ui.element("section").classes(f"lf-panel {cls}")
    if title:
        with found:
            html(tag("h2", title))
    return found


def button(text: str, do: Callable[[], Any], *, kind: str = "", label: str = "") -> ui.button:
    """A button; `kind` is '', `main` or `danger`, `label` says more to screen readers than the text."""
    found = ui.button(text, on_click=do, color=None).props("no-caps unelevated dense").classes(f"lf-button lf-{kind}")
    return with_name(found, label) if label else found


def with_name(element: E, label: str) -> E:
    """An element with a name for screen readers; the name may hold anything, such as a key."""
    element.props["aria-label"] = label
    return element


def form(go: Callable[[], Any]) -> ui.element:
    """A form in one line, sent by its button or by Enter; used in a `with`, which ends with `submit`."""
    return ui.element("form").classes("lf-form").on("submit.prevent", go)


def submit(text: str) -> None:
    """The button that sends a form."""
    button(text, lambda: None, kind="main").props("type=submit")


def say(text: str) -> None:
    """Shows a message for a moment."""
    ui.notify(text, position="bottom", classes="lf-toast", timeout=6000)


def show_error(error: BaseException) -> None:
    """Shows an error where the element stands: what is wrong with its value, and the next step."""
    html(sentence(explain_error(error)), cls="lf-error").props('role="alert"')


_THREADS = ThreadPoolExecutor(8, thread_name_prefix="page")
"""Of their own: reads that take long must not keep surveys, acts and the gateway from theirs."""


async def fetched(
    read: Callable[[], T],
    show: Callable[[T], Awaitable[None] | None],
    *,
    what: str = "loading",
    reports: Sequence[RebuildProgress] = (),
    threads: Executor | None = None,
) -> bool:
    """Reads on a thread and shows what was read in the current element; an error is shown in its place.

    Nothing is read before the page is open: a link on another site that is only loaded costs nothing. What still waits
    for its thread when the page is left is not read.

    Args:
        what: shown while it reads. reports: what `read` has reported so far of its progress; the last one is shown.
        threads: on which it reads; None = those of all pages.

    Returns:
        Whether it could be read.
    """
    waiting = html(tag("span", what, cls="lf-waiting"), cls="lf-loading").props('role="status"')
    await ui.context.client.connected()
    reading = asyncio.get_running_loop().run_in_executor(threads or _THREADS, read)
    try:
        while not reading.done():
            await asyncio.wait({reading}, timeout=_LOOK_SECONDS)
            if reports and not waiting.is_deleted:
                waiting.set_content(tag("span", f"{what}: {_counted(reports[-1])}", cls="lf-waiting"))
    except asyncio.CancelledError:
        reading.cancel()
        raise
    if waiting.is_deleted:
        return False
    waiting.delete()
    try:
        shown = show(reading.result())
        if shown is not None:
            await shown
    except Exception as error:  # noqa: BLE001  # the page shows every error
        show_error(error)
        return False
    return True


def _counted(progress: RebuildProgress) -> str:
    """How far something is, in words."""
    counted = f" {progress.done:,} of {progress.total:,}" if progress.total else ""
    left = f", {lasting(progress.eta)} left" if progress.total and progress.eta is not None else ""
    return f"{progress.phase}{counted}{left}"


def progress_by(report: ProgressReport) -> Callable[[str], AbstractContextManager[ProgressReport]]:
    """Shows progress by a report that exists already, where a block would show it on a terminal."""
    return lambda what: nullcontext(report)


@dataclass(frozen=True)
class Act:
    """Something that changes what others see, before it is confirmed.

    Args:
        title: a verb and what it is done to. happens: what will happen, in a sentence or two.
        line: the command line that does the same, given the reason that was typed.
        do: does it on a thread and returns what happened; it is given who does it, and why.
        needs_reason: whether a reason is asked for. is_long: it reports its progress to the bar of long work.
        details: what else is shown before it is confirmed.
    """

    title: str
    happens: str
    line: Callable[[str], str]
    do: Callable[[str, str, ProgressReport], str]
    needs_reason: bool = False
    is_long: bool = False
    details: Sequence[Html] = field(default_factory=tuple)


def act_button(
    visitor: Visitor, text: str, act: Callable[[], Act], done: Callable[[], Any], *, kind: str = "", label: str = ""
) -> ui.button | None:
    """A button that asks for an act and does it; not shown to visitors who only read.

    Args:
        act: makes the act on a thread when the button is pressed; an error is shown. done: called after it was done.
    """
    if not visitor.may_act:
        return None

    async def pressed() -> None:
        made.disable()
        try:
            found = await asyncio.to_thread(act)
        except Exception as error:  # noqa: BLE001  # the page shows every error
            await _refuse(text, error)
            return
        finally:
            made.enable()
        await ask(visitor, found, lambda: done() if made.client.id in Client.instances else None)

    made = button(text, pressed, kind=kind, label=label)
    return made


async def ask(visitor: Visitor, act: Act, done: Callable[[], Any]) -> None:
    """Asks to confirm an act, does it, and says what happened."""
    with ui.dialog() as dialog, ui.element("div").classes("lf-dialog"):
        with_name(dialog, act.title)
        html(tag("h2", act.title) + tag("p", act.happens))
        for detail in act.details:
            html(detail)
        who = reason = None
        if act.needs_reason:
            who = ui.input("Who does this", value=visitor.name).props("outlined dense").classes("lf-field")
            who.set_enabled(not visitor.principal.name)
            reason = ui.input("Why; it is kept in the log").props("outlined dense autofocus").classes("lf-field")
        html(tag("p", "The same in a shell:", cls="lf-quiet"))
        line = html(command(act.line("")))
        if reason is not None:
            reason.on_value_change(lambda event: line.set_content(command(act.line(event.value or ""))))
        wrong = html(cls="lf-error lf-hidden").props('role="alert"')

        def confirm() -> None:
            try:
                if act.needs_reason:
                    _check_signed(who.value if who else "", reason.value if reason else "")
                dialog.submit((who.value.strip() if who else visitor.name, reason.value.strip() if reason else ""))
            except Usage as error:
                wrong.set_content(sentence(str(error)))
                wrong.classes(remove="lf-hidden")

        with ui.element("div").classes("lf-buttons"):
            button("Cancel", lambda: dialog.submit(None))
            button(act.title.partition(" ")[0], confirm, kind="main", label=act.title)
    signed: tuple[str, str] | None = await dialog
    dialog.delete()
    if signed is not None:
        await _perform(visitor, act, signed, done)


def _check_signed(who: str, reason: str) -> None:
    if not who.strip():
        raise Usage("who does this? Type a name; it is kept in the log")
    if not reason.strip():
        raise Usage("why? Type a reason; it is kept in the log")


async def _perform(visitor: Visitor, act: Act, signed: tuple[str, str], done: Callable[[], Any]) -> None:
    who, reason = signed
    try:
        with _refusals_logged(act, who, reason):
            visitor.check_may_act()
            work = visitor.console.start(act.title, partial(_do_logged, act, who, reason)) if act.is_long else None
        if work is not None:
            while not work.outcome:  # noqa: ASYNC110  # it is on a thread, and pages look at it in the same way
                await asyncio.sleep(_LOOK_SECONDS)
        else:
            say(await asyncio.to_thread(_do_logged, act, who, reason, lambda progress: None))
    except Exception as error:  # noqa: BLE001  # the page shows every error
        await _refuse(act.title, error)
        if not act.is_long:
            return  # what was typed stays; of long work some may have been done
    visitor.console.survey.hasten()
    finished = done()
    if asyncio.iscoroutine(finished):
        await finished


def _do_logged(act: Act, who: str, reason: str, report: ProgressReport) -> str:
    """Does an act, with a line in the log of this process before it and one behind it."""
    _log_act(act, who, reason, "begun")
    try:
        outcome = act.do(who, reason, report)
    except Exception as error:
        _log_act(act, who, reason, f"failed: {type(error).__name__}: {error}")
        raise
    _log_act(act, who, reason, outcome)
    return outcome


@contextmanager
def _refusals_logged(act: Act, who: str, reason: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _log_act(act, who, reason, f"refused: {error}")
        raise


def _log_act(act: Act, who: str, reason: str, outcome: str) -> None:
    found = {"act": act.title, "by": who or "a visitor", "reason": reason, "command": _loggable(act.line(reason))}
    details = {name: veiled(text) for name, text in {**found, "outcome": outcome}.items() if text}
    # A warning: without settings, `logging` drops what is less.
    _log.warning("act of the console: %s", details, extra={"details": details})


def _loggable(line: str) -> str:
    """A command for the log: without a corrected payload, which may hold what no log should, and not too long."""
    words = shlex.split(line)
    if "--body" in words:
        words[words.index("--body") + 1] = "..."
    text = shlex.join(words)
    return text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]} ..."


async def _refuse(title: str, error: BaseException) -> None:
    """Shows why an act was not done, until it is closed."""
    with ui.dialog() as dialog, ui.element("div").classes("lf-dialog"):
        with_name(dialog, "It was not done")
        html(tag("h2", f"Not done: {title}"))
        show_error(error)
        with ui.element("div").classes("lf-buttons"):
            button("Close", lambda: dialog.submit(None), kind="main")
    await dialog
    dialog.delete()


def end_with_token(until: float | None, leeway: float = 10.0) -> None:
    """Has a page asked for again when its visitor's token expires, and ends one that is not.

    Args:
        until: in seconds since 1970; None = never. leeway: seconds for which the page may stay open after that.
    """
    if until is None:
        return
    left = max(0.0, until - time.time())
    ui.timer(left, lambda: ui.run_javascript("location.reload()"), once=True)
    ui.timer(left + leeway, ui.context.client.delete, once=True)


def work_bar(visitor: Visitor) -> None:
    """Long work of all visitors with its progress, and its outcome until that is dismissed."""
    works = visitor.console.works
    bar = ui.element("div").classes("lf-works")
    shown: dict[str, tuple[Work, ui.html, ui.element]] = {}

    def refresh() -> None:
        for name, (work, _, box) in list(shown.items()):
            if works.get(name) is not work:
                del shown[name]
                box.delete()
        for name, work in list(works.items()):
            if name in shown and (shown[name][1].content == _progress(work)):
                continue
            if name in shown and not work.outcome:
                shown[name][1].set_content(_progress(work))
                continue
            if name in shown:
                shown.pop(name)[2].delete()
            with bar, ui.element("div").classes(f"lf-work {'lf-bad' if work.failed else ''}") as box:
                text = html(_progress(work))
                if work.outcome and visitor.may_act:
                    button("Dismiss", partial(visitor.console.dismiss, name), label=f"Dismiss {name}")
            shown[name] = work, text, box

    with bar:
        ui.timer(0.4, refresh)


def show_surveys(visitor: Visitor, show: Callable[[SurveyResult], None]) -> None:
    """Calls a function with each new survey while the page is open."""
    last: SurveyResult | None = None

    async def refresh() -> None:
        nonlocal last
        result = await visitor.console.survey.result()
        if result is not last:
            last = result
            show(result)

    ui.timer(1.0, refresh)


def survey_html(visitor: Visitor, make: Callable[[SurveyResult], Html]) -> None:
    """HTML that is made of each new survey while the page is open."""
    made = html(tag("span", "looking", cls="lf-waiting"))

    def show(result: SurveyResult) -> None:
        made.set_content(make(result))

    show_surveys(visitor, show)


def _progress(work: Work) -> Html:
    if work.outcome:
        return tag("div", tag("strong", work.name), tag("p", sentence(work.outcome)), role="status")
    parts = [tag("strong", work.name), Html(" ")]
    if work.progress is not None:
        parts.append(tag("span", _counted(work.progress)))
    share = work.share
    bar = tag("span", style=f"width: {100 * share:.0f}%") if share is not None else tag("span", cls="lf-moving")
    return tag("div", *parts, tag("div", bar, cls="lf-progress"))
