"""The lock itself: its value, how it is made of an App, and its text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from leftfold.app import App
from leftfold.decider import Decider
from leftfold.errors import ConfigurationError
from leftfold.lockfile.fold import fold_hash
from leftfold.lockfile.schema import message_schema
from leftfold.messages import Event
from leftfold.process import Process
from leftfold.query import TableView
from leftfold.streamed import StreamedView
from leftfold.view import FoldView, SpreadView, View

__all__ = ["FoldLock", "Lock", "lock_of"]

_FORMAT = 1


@dataclass(frozen=True)
class FoldLock:
    """A decider, process or view: its version, the hash of its fold, and what a change of schema alone would rename."""

    version: int
    fold: str
    schema: str = ""


@dataclass(frozen=True)
class Lock:
    """Deciders, views and processes by name, and schemas of released messages by wire type (`baskets.ItemAdded.v1`)."""

    deciders: Mapping[str, FoldLock] = field(default_factory=dict)
    views: Mapping[str, FoldLock] = field(default_factory=dict)
    events: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    commands: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    processes: Mapping[str, FoldLock] = field(default_factory=dict)

    def to_json(self) -> str:
        """Text for a file: sorted and indented, so that a diff shows what changed."""
        return json.dumps({"leftfold.lock": _FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Lock:
        """Reads what `to_json` wrote.

        Raises:
            ConfigurationError: it is no lock, or one of a newer Leftfold.
        """
        try:
            told = json.loads(text)
            if told["leftfold.lock"] != _FORMAT:
                raise ConfigurationError(f"leftfold.lock has format {told['leftfold.lock']}; upgrade leftfold")
            deciders, views, processes = (
                {name: _fold_in(fold) for name, fold in found.items()}
                for found in (told["deciders"], told["views"], told.get("processes", {}))
            )
            events, commands = (_schemas_in(told.get(name, {})) for name in ("events", "commands"))
            return cls(deciders, views, events, commands, processes)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigurationError(
                f"leftfold.lock cannot be read ({error!r}); take it from version control, "
                f"or remove it and write it anew: leftfold check --write"
            ) from error

    def with_history(self, released: Lock) -> Lock:
        """This lock with the event versions that were released before and have not been written over."""
        return replace(self, events={**released.events, **self.events})


def _fold_in(told: Mapping[str, Any]) -> FoldLock:
    fold = FoldLock(**told)
    if type(fold.version) is not int or not isinstance(fold.fold, str) or not isinstance(fold.schema, str):
        raise TypeError(f"no fold: {told!r}"[:200])
    return fold


def _schemas_in(told: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for type_, schema in told.items():
        if not isinstance(schema, dict):
            raise TypeError(f"no schema of {type_}: {schema!r}"[:200])
        found[type_] = schema
    return found


def lock_of(app: App) -> Lock:
    """The lock of an App as its code is now.

    Raises:
        ConfigurationError: the source of a fold cannot be read.
    """
    events: dict[str, type[Event]] = {}
    for decider in app.deciders:
        events.update((cls.__leftfold__.type, cls) for cls in decider.events)
    for view in app.views:
        events.update((cls.__leftfold__.type, cls) for cls in view.events)
    for process in app.processes:
        events.update((cls.__leftfold__.type, cls) for cls in process.events)
    for reaction in app.reactions:
        events.update((cls.__leftfold__.type, cls) for cls in reaction.events)
    for stream in app.streams:
        events.update((cls.__leftfold__.type, cls) for cls in stream.events)
    return Lock(
        {decider.name: _decider(decider) for decider in app.deciders},
        {view.name: _view(view) for view in app.views},
        {type_: message_schema(cls) for type_, cls in events.items()},
        {cls.__leftfold__.type: message_schema(cls) for decider in app.deciders for cls in decider.commands},
        {process.name: _process(process) for process in app.processes},
    )


def _decider(decider: Decider[Any, Any, Any]) -> FoldLock:
    state = decider.initial_state
    return FoldLock(decider.version, fold_hash(decider.evolve, state, type(state)))


def _process(process: Process[Any, Any, Any]) -> FoldLock:
    state = process.initial_state
    return FoldLock(process.version, fold_hash(process.react, process.evolve, state, type(state)))


def _view(view: View[Any, Any]) -> FoldLock:
    roots: list[object] = [view.rows.row]
    if isinstance(view, FoldView):
        roots += [view.evolve, view.key]
    if isinstance(view, SpreadView):
        roots += [view.evolve, view.each]
    if isinstance(view, TableView):
        roots += view.code
    if isinstance(view, StreamedView):
        roots.append(view.key)
    return FoldLock(view.version, fold_hash(*roots), view.hash)
