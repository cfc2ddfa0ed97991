"""Contracts: the types and versions of messages, their schemas, who uses what, and what differs from the lock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from nicegui import ui

from leftfold.compatibility import Lock, compare, lock_of
from leftfold.compatibility.schema import message_schema
from leftfold.errors import ConfigurationError
from leftfold.http.console.console_state import Visitor
from leftfold.http.console.elements import fetched, form, heading, html, panel, submit
from leftfold.http.console.html import Html, details, sentence, table, tag
from leftfold.model.app import App
from leftfold.model.messages import Command, Event
from leftfold.runtime.console import amount
from leftfold.runtime.project import text_about_lock

__all__ = ["contracts", "users_of"]

_Message = type[Event | Command]


def users_of(apps: Mapping[str, App]) -> dict[_Message, dict[str, list[str]]]:
    """Who uses each message: the parts by how they use it, such as `decided by`."""
    found: dict[_Message, dict[str, list[str]]] = {}
    for message, how, who in _uses(apps):
        listed = found.setdefault(message, {}).setdefault(how, [])
        if who not in listed:
            listed.append(who)
    return found


def _uses(apps: Mapping[str, App]) -> Iterator[tuple[_Message, str, str]]:
    for app in apps.values():
        for decider in app.deciders:
            yield from ((cls, "decided by", decider.name) for cls in decider.commands)
            yield from ((cls, "written by", decider.name) for cls in decider.events)
        for process in app.processes:
            yield from ((cls, "sent by", process.name) for cls in process.sends)
            yield from ((cls, "read by", f"process {process.name}") for cls in process.events)
        for reaction in app.reactions:
            yield from ((cls, "read by", f"reaction {reaction.name}") for cls in reaction.events)
        for stream in app.streams:
            yield from ((cls, "read by", f"stream {stream.name}") for cls in stream.events)
        for view in app.views:
            yield from ((cls, "read by", f"view {view.name}") for cls in view.events)


async def contracts(visitor: Visitor, find: str = "") -> None:
    """The page of contracts.

    Args:
        find: only types and users with this text in their name.
    """
    heading("Contracts", "Every type of message with its versions and schema, who uses it, and what the lock says.")
    for spec, app in visitor.console.apps.items():
        await _show_lock(visitor, spec, app)

    def search() -> None:
        ui.navigate.to(visitor.route("/contracts", find=(typed.value or "").strip()))

    with panel("Messages"):
        with form(search):
            typed = ui.input("Type, category or user", value=find).props("outlined dense").classes("lf-field")
            submit("Find")
        uses = users_of(visitor.console.apps)
        rows = [
            _row(visitor, message, by)
            for message, by in sorted(uses.items(), key=lambda pair: pair[0].__leftfold__.type)
            if not find or find.lower() in _searched(message, by)
        ]
        columns = ("type", "kind", "versions read", "users", "rejected with", "schema")
        html(table(columns, rows, label="Messages", empty="No message has this in its name."))


def _searched(message: _Message, by: Mapping[str, list[str]]) -> str:
    return " ".join([message.__leftfold__.type, *(who for names in by.values() for who in names)]).lower()


def _row(visitor: Visitor, message: _Message, by: Mapping[str, list[str]]) -> tuple[object, ...]:
    spec = message.__leftfold__
    is_event = issubclass(message, Event)
    known = spec.category in visitor.console.deciders()
    name: object = tag("strong", spec.type)
    if is_event and known:
        name = tag("a", spec.type, href=visitor.href("/streams", category=spec.category))
    versions = "1" if spec.version == 1 else f"1 to {spec.version}, older ones upcast"
    users = tag("span", *_joined(by))
    rejects = ", ".join(error.__name__ for error in spec.rejects)
    about = (message.__doc__ or "").strip().splitlines()
    note = tag("div", about[0], cls="lf-quiet") if about and message.__doc__ else Html()
    schema = details(amount(len(message.model_fields), "field"), message_schema(message))
    return (tag("div", name, note), "event" if is_event else "command", versions, users, rejects, schema)


def _joined(by: Mapping[str, list[str]]) -> list[object]:
    return [tag("div", tag("span", f"{how} ", cls="lf-quiet"), ", ".join(names)) for how, names in sorted(by.items())]


async def _show_lock(visitor: Visitor, spec: str, app: App) -> None:
    """How the code of an App differs from its lock."""
    file = visitor.console.locks.get(spec)
    line = visitor.console.shell("check", "--write", app=app.name)

    def read() -> list[tuple[str, str, bool]] | None:
        if file is None or not file.exists():
            return None
        try:
            found = compare(Lock.from_json(file.read_text("utf-8")), lock_of(app))
        except ConfigurationError as error:
            raise ConfigurationError(text_about_lock(str(error), file, line)) from error
        return [(one.about, text_about_lock(one.message, file, line), one.wrong) for one in found]

    def shown(found: list[tuple[str, str, bool]] | None) -> None:
        if found is None:
            html(tag("p", sentence(f"There is no lock of {app.name} yet; write and commit it: {line}"), cls="lf-quiet"))
            return
        if not found:
            html(tag("p", f"The code is as in {_near(file)}.", cls="lf-fine"))
        rows = [
            (tag("span", "wrong", cls="lf-badge lf-bad") if wrong else "note", about, sentence(message))
            for about, message, wrong in found
        ]
        if rows:
            html(table(("is", "about", "difference"), rows, label=f"Differences of {app.name} from its lock"))

    with panel(f"Lock of {app.name}"):
        await fetched(read, shown, what="hashing the folds")


def _near(file: Path | None) -> str:
    if file is None:
        return ""
    return str(file.relative_to(Path.cwd())) if file.is_relative_to(Path.cwd()) else str(file)
