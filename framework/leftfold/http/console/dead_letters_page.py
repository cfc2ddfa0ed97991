"""Dead letters and parked events: grouped by reason, looked at beside their error, corrected, resent, discarded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from nicegui import ui

from leftfold.compatibility.schema import message_schema
from leftfold.engine.progress import ProgressReport, RebuildProgress
from leftfold.errors import ContractError, LeftfoldError
from leftfold.http.console.console_state import Visitor, explain_error
from leftfold.http.console.elements import Act, act_button, fetched, heading, html, panel, survey_html
from leftfold.http.console.html import Html, details, joined, json_text, pairs, sentence, tag, time_text
from leftfold.http.console.parked import parked_rows_html, show_parked_events
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.ports.outgoing import Letter
from leftfold.runtime.console import amount
from leftfold.runtime.operations.dead_letters import (
    AllDeadLetters,
    Retention,
    checked_value,
    group_hash,
    group_of,
    types_of,
    why_refused,
)
from leftfold.runtime.project import Usage, read_address

__all__ = ["dead_letters", "group_of"]

_LISTED, _GROUPS = 30, 100
"""Letters of a group, and groups, that a page shows."""
_MOST = 2_000
"""How many offsets of each partition are read, the last ones: a flood of letters must not end the console."""
_EDITABLE = 300_000
"""Characters of a payload that is edited on a page: a browser sends no message of a million."""
T = TypeVar("T")
_DEAD = names.dead("")


async def dead_letters(visitor: Visitor, name: str = "", letter: str = "", handled: str = "") -> None:
    """The page of dead letters of categories and processes, and of parked events of reactions and rows of views.

    Args:
        name: only of this category or process. letter: the address of one. handled: `yes` shows handled ones too.
    """
    heading(
        "Dead letters and parked", "Records that no worker could take, and what reactions and views have set aside."
    )
    page = _Letters(visitor, name, letter, with_handled=handled == "yes")
    await page.show()
    await show_parked_events(visitor)
    with panel("Parked rows of views"):
        survey_html(visitor, partial(parked_rows_html, visitor))


@dataclass(frozen=True)
class _LetterList:
    """All letters with the group of each, and for how long those of each category and process are kept."""

    letters: Sequence[tuple[Letter, str]]
    kept: Mapping[str, Retention]


class _Letters:
    """The groups of dead letters, and one letter that is opened."""

    def __init__(self, visitor: Visitor, name: str, letter: str, *, with_handled: bool) -> None:
        self._visitor, self._name, self._letter, self._with_handled = visitor, name, letter, with_handled
        self._console = visitor.console

    async def show(self) -> None:
        """Makes the elements."""
        self._section = ui.element("div")
        await self._again()

    async def _again(self) -> None:
        self._section.clear()
        with self._section:
            await fetched(self._read, self._shown, what="reading dead letters")

    def _apps(self) -> Sequence[App]:
        return tuple(self._console.apps.values())

    def _owners(self) -> dict[str, str]:
        """The App of each decider, process and reaction, by its name."""
        found: dict[str, str] = {}
        for app in self._apps():
            found |= {decider.name: app.name for decider in app.deciders}
            found |= {process.name: app.name for process in app.processes}
            found |= {reaction.name: app.name for reaction in app.reactions}
        return found

    def _burials(self) -> AllDeadLetters:
        """The dead letters of the Apps of this console."""
        return AllDeadLetters(self._console.servers[0], self._owners())

    def _read(self) -> tuple[_LetterList, tuple[Letter, bytes, str] | None]:
        """The letters, and the one that is opened with its payload, or why that is lost."""
        burials = self._burials()
        # Without their payloads: a page that is open holds them all.
        letters = burials.letters(self._name, _MOST, values=False)
        found = _LetterList([(one, group_of(one.reason)) for one in letters], burials.kept(self._name))
        if not self._letter:
            return found, None
        read_address(self._letter, "a dead letter; choose one of the links")
        (opened,) = burials.chosen([self._letter])
        try:
            return found, (opened, burials.original(opened).value or b"", "")
        except ContractError as error:
            return found, (opened, b"", f"It was too large to copy, and its original is lost: {error}")

    def _shown(self, read: tuple[_LetterList, tuple[Letter, bytes, str] | None]) -> None:
        found, opened = read
        if opened is not None:
            self._show_letter(*opened, found.kept)
        groups: dict[tuple[str, str, str], list[Letter]] = {}
        for one, group in found.letters:
            if self._with_handled or not one.handled:
                groups.setdefault((one.record.topic, one.handled, group), []).append(one)
        waiting = sum(not one.handled for one, _ in found.letters)
        with panel(f"Dead letters: {waiting:,} wait"):
            html(self._choices(found))
            if not groups:
                html(tag("p", "No dead letter waits.", cls="lf-fine"))
            listed = sorted(groups.items(), key=lambda pair: (pair[0][1] != "", -len(pair[1])))
            for (topic, done, _), letters in listed[:_GROUPS]:
                self._show_group(topic.removesuffix(_DEAD), done, letters)
            remarks = list[str]()
            if others := [len(letters) for _, letters in listed[_GROUPS:]]:
                counted = f"{amount(len(others), 'more group')} with {amount(sum(others), 'letter')}"
                remarks.append(f"{counted}; all of them: leftfold dead list")
            remarks += [
                f"Of each partition these are among the last {_MOST:,} offsets; all of them: leftfold dead list"
            ]
            for name, retention in found.kept.items():
                if retention.deleted:
                    remarks.append(f"Of {name} up to {retention.deleted:,} older letters are deleted already.")
                if retention.warning:
                    remarks.append(f"It is not known how long those of {name} are kept: {retention.warning}")
            html(joined(tag("p", sentence(remark), cls="lf-quiet") for remark in remarks))

    def _choices(self, found: _LetterList) -> Html:
        """Links to the letters of one category or process, and to the handled ones."""
        shown, other = ("yes", "") if self._with_handled else ("", "yes")
        links = []
        reactions = {reaction.name for app in self._console.apps.values() for reaction in app.reactions}
        for name in ("", *(name for name in found.kept if name not in reactions)):
            href = self._visitor.href("/dead", name=name, handled=shown)
            links.append(tag("a", name or "all", href=href, aria_current="true" if name == self._name else None))
        href = self._visitor.href("/dead", name=self._name, handled=other)
        links.append(tag("a", "hide handled" if shown else "show handled", href=href))
        return tag("p", *links, cls="lf-choices")

    def _show_group(self, name: str, done: str, letters: list[Letter]) -> None:
        links = [
            tag("a", str(one.place), href=self._visitor.href("/dead", name=self._name, letter=one.place))
            for one in letters[:_LISTED]
        ]
        more = [f"and {len(letters) - _LISTED:,} more"] if len(letters) > _LISTED else []
        badge = tag("span", amount(len(letters), "letter"), cls=f"lf-badge {'' if done else 'lf-bad'}")
        title = [
            tag("strong", name),
            Html(" "),
            badge,
            Html(" "),
            tag("code", group_hash(letters[0].reason), title="names this group of letters"),
            *([Html(" "), tag("span", done, cls="lf-badge")] if done else []),
        ]
        with ui.element("div").classes("lf-letter"):
            html(tag("div", *title, tag("p", letters[-1].reason), tag("p", *links, *more, cls="lf-places")))
            if done:
                return
            sendable = [one for one in letters if not why_refused(one)]
            with ui.element("div").classes("lf-buttons"):
                if sendable:
                    text = f"Resend {len(sendable):,}"
                    act_button(self._visitor, text, lambda: self._resend(sendable), self._listed_again)
                text = f"Discard {len(letters):,}"
                act_button(self._visitor, text, lambda: self._discard(letters), self._listed_again, kind="danger")

    async def _listed_again(self) -> None:
        """Reads the list again, unless a letter is opened: what was typed there would be lost."""
        if not self._letter:
            await self._again()

    def _show_letter(self, letter: Letter, value: bytes, lost: str, kept: Mapping[str, Retention]) -> None:
        """One letter: its error, its payload beside, and what can be done about it."""
        name, type_ = letter.record.topic.removesuffix(_DEAD), letter.text("ce_type")
        leaves = kept[name].leaves(letter) if name in kept else None
        text = _indented(value)
        with ui.element("div").classes("lf-columns"):
            with panel(str(letter.place)):
                html(tag("p", letter.reason, cls="lf-error"))
                html(self._facts(letter, leaves))
                classes = types_of(self._console.apps.values(), name)
                cls = next((one for one in classes if type_.startswith(f"{name_of(one)}.v")), None)
                if cls is not None:
                    html(details(f"Schema of {name_of(cls)}", message_schema(cls)))
            with panel("Payload"):
                if lost:
                    html(tag("p", sentence(lost), cls="lf-quiet"))
                    with ui.element("div").classes("lf-buttons"):
                        self._show_discard(letter)
                elif letter.handled or why_refused(letter) or not self._visitor.may_act:
                    html(tag("pre", text, tabindex="0"))
                elif len(text) > _EDITABLE:
                    line = self._shell("resend", [str(letter.place)], "", "--body", "JSON")
                    why = f"A payload of more than {_EDITABLE:,} characters is corrected in a shell: {line}"
                    html(tag("p", sentence(why), cls="lf-quiet") + tag("pre", text, tabindex="0"))
                    with ui.element("div").classes("lf-buttons"):
                        self._show_buttons(letter, lambda: None)
                else:
                    self._show_editor(letter, text)

    def _facts(self, letter: Letter, leaves: float | None) -> Html:
        id_ = letter.text("ce_id")
        state = tag("span", letter.handled or "waits", cls=f"lf-badge {'' if letter.handled else 'lf-bad'}")
        known = {
            "state": state,
            "by, and why": letter.why,
            "type": letter.text("ce_type"),
            "key": (letter.record.key or b"").decode(errors="replace"),
            "taken from": tag("code", letter.source),
            "id": tag("a", id_, href=self._visitor.href("/trace", id=id_)) if id_ else "",
            "sent": time_text(letter.text("ce_time")),
            "dead since": time_text(letter.record.time),
            "is deleted": time_text(leaves * 1000 if leaves else None),
        }
        return pairs({label: value for label, value in known.items() if value})

    def _show_editor(self, letter: Letter, text: str) -> None:
        """The payload as text that can be corrected, with what its class says of it."""
        editor = ui.textarea("Payload", value=text).props("outlined autogrow spellcheck=false debounce=300")
        editor.classes("lf-editor")
        verdict = html().props('role="status"')

        def check() -> None:
            verdict.set_content(_checked(self._visitor, letter, editor.value or ""))

        editor.on_value_change(check)
        check()
        with ui.element("div").classes("lf-buttons"):
            self._show_buttons(letter, lambda: editor.value if editor.value != text else None)

    def _show_buttons(self, letter: Letter, corrected: Callable[[], str | None]) -> None:
        act_button(self._visitor, "Resend", lambda: self._resend([letter], corrected()), self._again, kind="main")
        self._show_discard(letter)

    def _show_discard(self, letter: Letter) -> None:
        if not letter.handled:
            act_button(self._visitor, "Discard", lambda: self._discard([letter]), self._again, kind="danger")

    def _resend(self, letters: Sequence[Letter], body: str | None = None) -> Act:
        """Sends letters again, each under a new id; one letter also with another body."""
        other = checked_value(self._console.apps.values(), letters[0], body) if body is not None else None
        compact = _compact(other) if other is not None else ""
        which = [str(one.place) for one in letters]

        def line(reason: str) -> str:
            options = ["--new-id", *(["--body", compact] if compact else [])]
            return self._shell("resend", which, reason, *options)

        def do(who: str, reason: str, report: ProgressReport) -> str:
            burials = self._burials()
            found, lost = burials.sendable(which, leave_out=len(which) > 1)
            if not found:
                raise Usage(lost[0])
            sending = burials.resend(found, f"{who}: {reason}", new_id=True, body=other)
            *_, last = _handled(sending, len(found), "sent again", report)
            left = f"; {amount(len(lost), 'letter')} left out: {lost[0]}" if lost else ""
            return f"{amount(len(found), 'letter')} sent again, the last one under the id {last[2]}{left}"

        changed = "with the corrected payload" if other is not None else "with its payload unchanged"
        where = letters[0].record.topic.removesuffix(_DEAD)
        happens = (
            f"{amount(len(letters), 'letter')} of {where} will be sent {changed} under a new id, and decided as new. "
            "It counts even if the old one was decided meanwhile. A command of a process keeps its id, by which the "
            "process knows the answer. The letter stays, marked as sent again."
        )
        return Act(f"Resend {_named(letters)}", happens, line, do, needs_reason=True, is_long=len(which) > 1)

    def _shell(self, word: str, which: Sequence[str], reason: str, *options: str) -> str:
        by = ["--by", self._visitor.name] if self._visitor.name else []
        app = self._owners().get(which[0].partition(_DEAD)[0], "")
        return self._console.shell("dead", word, *which, *options, "--reason", reason or "WHY", *by, app=app)

    def _discard(self, letters: Sequence[Letter]) -> Act:
        which = [str(one.place) for one in letters]

        def do(who: str, reason: str, report: ProgressReport) -> str:
            burials = self._burials()
            discarding = burials.discard(burials.waiting(which), f"{who}: {reason}")
            done = _handled(discarding, len(which), "discarded", report)
            return f"{amount(len(done), 'letter')} discarded"

        def line(reason: str) -> str:
            return self._shell("discard", which, reason)

        counted = amount(len(letters), "letter")
        happens = f"{counted} will be marked as discarded; the bytes stay until retention deletes them."
        return Act(f"Discard {_named(letters)}", happens, line, do, needs_reason=True, is_long=len(which) > 1)


def _handled(handling: Iterable[T], count: int, how: str, report: ProgressReport) -> list[T]:
    """What came of each of so many letters; each is a transaction, so an error says how many came before it."""
    done = list[T]()
    try:
        for one in handling:
            done.append(one)
            report(RebuildProgress("letters", len(done), count))
    except Exception as error:
        if not done:
            raise
        why = explain_error(error)
        raise LeftfoldError(f"{len(done):,} of {amount(count, 'letter')} {how}, then: {why}") from error
    return done


def name_of(cls: Any) -> str:
    """The wire name of a message class without its version."""
    spec = cls.__leftfold__
    return f"{spec.category}.{spec.name}"


def _named(letters: Sequence[Letter]) -> str:
    """Which letters an act is about: an address, or how many of which group."""
    name = letters[0].record.topic.removesuffix(_DEAD)
    one, of = str(letters[0].place), f"letters of {name}, group {group_hash(letters[0].reason)}"
    return one if len(letters) == 1 else f"{len(letters):,} {of}"


def _compact(value: bytes) -> str:
    """JSON in one line, or as it is where that would change a number."""
    text = value.decode()
    compact = json.dumps(json.loads(text), ensure_ascii=False)
    return compact if _without_spaces(compact) == _without_spaces(text) else text


def _indented(value: bytes) -> str:
    """A payload as indented JSON; as it is, where it is none, or where that would change a number in it."""
    text = value.decode(errors="replace")
    try:
        found = json_text(json.loads(text))
    except (ValueError, RecursionError):
        return text
    return found if _without_spaces(found) == _without_spaces(text) else text


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _checked(visitor: Visitor, letter: Letter, text: str) -> Html:
    try:
        checked_value(visitor.console.apps.values(), letter, text)
    except Usage as error:
        return tag("p", str(error).removesuffix(". Nothing was sent"), cls="lf-error")
    return tag("p", f"This is a {letter.text('ce_type')}.", cls="lf-fine")
