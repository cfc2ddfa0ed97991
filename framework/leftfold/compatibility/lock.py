"""The lock of an App: hashes of released folds and schemas of released messages, and the comparison with the code."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from leftfold.compatibility.fold_hash import fold_hash
from leftfold.compatibility.schema import breaks, lost_errors, message_schema, state_form
from leftfold.errors import ConfigurationError
from leftfold.model.app import App
from leftfold.model.computed_views import StreamedView, TableView
from leftfold.model.decider import Decider
from leftfold.model.messages import Event
from leftfold.model.process import Process
from leftfold.model.view import FoldView, SpreadView, View

__all__ = ["CheckFinding", "FoldLock", "Lock", "compare", "lock_of"]


_FORMAT = 1


@dataclass(frozen=True)
class FoldLock:
    """The lock of a decider, process or view: version, fold hash, and a hash of the form in which it is stored."""

    version: int
    fold: str
    schema: str = ""


@dataclass(frozen=True)
class Lock:
    """The lock of an App: its name, folds by name, and schemas of released messages by type (`baskets.Opened.v1`)."""

    app: str = ""
    categories: tuple[str, ...] = ()
    """The categories that the App decides, or has decided: their events stay its own."""
    deciders: Mapping[str, FoldLock] = field(default_factory=dict)
    views: Mapping[str, FoldLock] = field(default_factory=dict)
    events: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    commands: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    processes: Mapping[str, FoldLock] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text of the lock file: sorted and indented, for readable diffs."""
        return json.dumps({"leftfold.lock": _FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Lock:
        """The lock from the text of the file.

        Raises:
            ConfigurationError: it is no lock, or one of a newer Leftfold.
        """
        try:
            content = json.loads(text)
            if content["leftfold.lock"] != _FORMAT:
                raise ConfigurationError(f"leftfold.lock has format {content['leftfold.lock']}; upgrade leftfold")
            deciders, views, processes = (
                {name: _fold_in(fold) for name, fold in found.items()}
                for found in (content["deciders"], content["views"], content.get("processes", {}))
            )
            events, commands = (_schemas_in(content.get(name, {})) for name in ("events", "commands"))
            categories = tuple(map(str, content.get("categories", deciders)))
            return cls(str(content.get("app", "")), categories, deciders, views, events, commands, processes)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigurationError(
                f"leftfold.lock cannot be read ({error!r}); take it from version control, "
                f"or remove it and write a new one: leftfold check --write"
            ) from error

    def with_history(self, released: Lock) -> Lock:
        """This lock with the categories that were there before, and the released versions of their events."""
        categories = tuple(sorted({*released.categories, *self.categories}))
        known = {type_: schema for type_, schema in released.events.items() if not self.is_left(type_, categories)}
        return replace(self, categories=categories, events={**known, **self.events})

    def is_left(self, type_: str, categories: Collection[str]) -> bool:
        """Whether an event is of none of these categories, and the App does not read it any more, in any version."""
        name, category = type_.rpartition(".v")[0], type_.partition(".")[0]
        return category not in categories and name not in {known.rpartition(".v")[0] for known in self.events}


def _fold_in(fields: Mapping[str, Any]) -> FoldLock:
    fold = FoldLock(**fields)
    if type(fold.version) is not int or not isinstance(fold.fold, str) or not isinstance(fold.schema, str):
        raise TypeError(f"no fold: {fields!r}"[:200])
    return fold


def _schemas_in(content: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for type_, schema in content.items():
        if not isinstance(schema, dict):
            raise TypeError(f"no schema of {type_}: {schema!r}"[:200])
        found[type_] = schema
    return found


def lock_of(app: App) -> Lock:
    """The lock of an App's present code.

    Raises:
        ConfigurationError: the source of a fold cannot be read.
    """
    members: list[Any] = [*app.deciders, *app.views, *app.processes, *app.reactions, *app.streams]
    events: dict[str, type[Event]] = {cls.__leftfold__.type: cls for member in members for cls in member.events}
    return Lock(
        app.name,
        tuple(sorted(decider.name for decider in app.deciders)),
        {decider.name: _states(decider, decider.evolve) for decider in app.deciders},
        {view.name: _view(view) for view in app.views},
        {type_: message_schema(cls) for type_, cls in events.items()},
        {cls.__leftfold__.type: message_schema(cls) for decider in app.deciders for cls in decider.commands},
        {process.name: _states(process, process.react, process.evolve, process.correlate) for process in app.processes},
    )


def _states(member: Decider[Any, Any, Any] | Process[Any, Any, Any], *functions: object) -> FoldLock:
    state = member.initial_state
    code = fold_hash(*functions, state, type(state), *member.events)
    return FoldLock(member.version, code, state_form(member.state))


def _view(view: View[Any, Any]) -> FoldLock:
    roots: list[object] = [view.rows.row]
    if isinstance(view, FoldView):
        roots += [view.evolve, view.key]
    if isinstance(view, SpreadView):
        roots += [view.evolve, view.each]
    if isinstance(view, TableView):
        roots += [*view.code, *(upcast for cls in view.events for upcast in cls.__leftfold__.upcasts.values())]
    else:
        roots += view.events
    if isinstance(view, StreamedView):
        roots.append(view.key)
    roots.append(tuple(sorted(f"{event.category}.{event.name}" for event in (cls.__leftfold__ for cls in view.events))))
    return FoldLock(view.version, fold_hash(*roots), view.hash)


_TYPE = re.compile(r"(?P<name>.+)\.v(?P<version>[0-9]{1,9})")
_ACCEPT = "accept it: leftfold check --write"
_SAME = f"or, if it means the same, {_ACCEPT}"
_RECORD = "record it: leftfold check --write"
Schemas: TypeAlias = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class CheckFinding:
    """One difference; `wrong` when stored data would be read or folded differently, else it is only unrecorded."""

    about: str
    message: str
    wrong: bool = True

    @property
    def difference(self) -> str:
        """The difference, without the correction."""
        return f"{self.about}: {self.message.partition('; ')[0]}"

    def __str__(self) -> str:
        return f"{self.about}: {self.message}"


def compare(released: Lock, now: Lock) -> list[CheckFinding]:
    """The differences between the released lock and the code's, the wrong ones first."""
    left = {type_ for type_ in released.events if now.is_left(type_, {*released.categories, *now.categories})}
    read = {type_: schema for type_, schema in released.events.items() if type_ not in left}
    found = [
        *_app(released, now),
        *_folds("decider", "evolve", released.deciders, now.deciders),
        *_folds("process", "react, evolve or correlate", released.processes, now.processes),
        *_folds("view", "its fold", released.views, now.views),
        *_messages("event", read, now.events),
        *(CheckFinding(f"event {type_}", f"is read no more; {_RECORD}", wrong=False) for type_ in left),
        *_messages("command", released.commands, now.commands),
    ]
    return sorted(found, key=lambda finding: (not finding.wrong, finding.about))


def _app(released: Lock, now: Lock) -> Iterator[CheckFinding]:
    if not released.app:
        if now.app:
            yield CheckFinding(f"app {now.app}", f"is not in leftfold.lock yet; {_RECORD}", wrong=False)
    elif released.app != now.app:
        why = (
            f"was {released.app}, after which its consumer groups are named: workers of both would decide every command"
        )
        yield CheckFinding(f"app {now.app}", f"{why}; stop all that run the old one first, then {_ACCEPT}")


def _folds(kind: str, fold: str, old: Mapping[str, FoldLock], new: Mapping[str, FoldLock]) -> Iterator[CheckFinding]:
    for name in new.keys() - old.keys():
        begins = "; it begins at the first event and sends its commands for all of them" if kind == "process" else ""
        yield CheckFinding(f"{kind} {name}", f"is new{begins}; {_RECORD}", wrong=False)
    for name in old.keys() - new.keys():
        yield CheckFinding(f"{kind} {name}", f"is removed; {_RECORD}", wrong=False)
    for name in old.keys() & new.keys():
        yield from _fold(f"{kind} {name}", fold, old[name], new[name])


def _fold(about: str, fold: str, old: FoldLock, new: FoldLock) -> Iterator[CheckFinding]:
    if new.version < old.version:
        why = f"version={new.version} is below {old.version}, which was released; versions only rise"
        yield CheckFinding(about, why)
    elif new.version > old.version:
        yield CheckFinding(about, f"version={new.version} is not in leftfold.lock yet; {_RECORD}", wrong=False)
    elif about.startswith("view ") and new.schema != old.schema:
        why = f"has another row, key or index, and so gets a new generation; {_RECORD}"
        yield CheckFinding(about, why, wrong=False)
    elif old.schema and new.schema != old.schema:
        why = f"its state is stored in another form; raise version= to {old.version + 1}"
        yield CheckFinding(about, f"{why}, or, if only fields with defaults are new, {_ACCEPT}")
    elif new.fold != old.fold:
        yield CheckFinding(about, f"{fold} changed since leftfold.lock; raise version= to {old.version + 1}, {_SAME}")


def _messages(kind: str, released: Schemas, now: Schemas) -> Iterator[CheckFinding]:
    latest = {match["name"]: int(match["version"]) for match in map(_TYPE.fullmatch, now) if match}
    for type_ in released.keys() - now.keys():
        match = _TYPE.fullmatch(type_)
        if match is None or latest.get(match["name"], 0) <= int(match["version"]):
            newest = latest.get(match["name"]) if match else None
            yield _lost(kind, type_, newest, _renamed(type_, released, now) if kind == "event" else "")
    for type_ in now.keys() - released.keys():
        yield CheckFinding(f"{kind} {type_}", f"is not in leftfold.lock yet; {_RECORD}", wrong=False)
    for type_ in released.keys() & now.keys():
        yield from _message(kind, type_, released[type_], now[type_])


def _renamed(type_: str, released: Schemas, now: Schemas) -> str:
    """The name of a new event of the category that has the same fields; '' when there is none."""
    old, category = {**released[type_], "title": ""}, type_.partition(".")[0]
    new = sorted(one for one in now.keys() - released.keys() if one.partition(".")[0] == category)
    return next((one.split(".")[1] for one in new if {**now[one], "title": ""} == old), "")


def _lost(kind: str, type_: str, newest: int | None, renamed: str) -> CheckFinding:
    about = f"{kind} {type_}"
    if newest is not None:
        return CheckFinding(about, f"was released and the class is at version={newest}; versions only rise")
    if kind == "command":
        return CheckFinding(about, f"is removed; those in the topic become dead letters. {_RECORD}", wrong=False)
    why = "was released and no class reads it any more, but the log may hold it for ever"
    if renamed:
        name = type_.split(".")[1]
        return CheckFinding(about, f"{why}; if {renamed} is its new name, add name={name!r} to the class {renamed}")
    return CheckFinding(
        about, f"{why}; bring the class back, or, if it never reached a log, delete it from leftfold.lock"
    )


def _message(kind: str, type_: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[CheckFinding]:
    if old == new:
        return
    about, broken = f"{kind} {type_}", breaks(old, new, is_stored=kind == "event")
    match = _TYPE.fullmatch(type_)
    version = int(match["version"]) if match else 1
    name, earlier = type_.split(".")[1], "..., " if version > 1 else ""
    for what in broken:
        yield CheckFinding(about, f"{what}; give {name} version={version + 1} and upcasts={{{earlier}{version}: ...}}")
    lost = lost_errors(old, new)
    for what in lost:
        why = f"{what}, and refusals with it are stored in answers and among the inputs of processes"
        yield CheckFinding(about, f"{why}; keep it, or, if the command was never refused with it, {_ACCEPT}")
    if "key" in old and old["key"] != new["key"]:
        what = f"its key was {old['key']} and is {new['key']}, so that its streams are others"
        yield CheckFinding(about, f"{what}; give the class another name, and write that {kind}")
    elif not broken and not lost:
        why = "its schema changed in a way that every reader can bear"
        if kind == "command" and new.get("properties", {}).keys() - old.get("properties", {}).keys():
            why = "it has a new field, with which older workers refuse it; replace them before those who send it"
        yield CheckFinding(about, f"{why}; {_RECORD}", wrong=False)
