"""App: one deployable service as a value: its deciders, processes, reactions, views and stream processors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeAlias

from typing_extensions import TypeForm, TypeVar

from leftfold.errors import ConfigurationError
from leftfold.model.computed_views import StreamedView
from leftfold.model.decider import Decider
from leftfold.model.messages import Event
from leftfold.model.process import Process
from leftfold.model.reaction import Reaction
from leftfold.model.typing import check_name, is_name, members
from leftfold.model.view import View

__all__ = ["App", "Streaming"]


E = TypeVar("E", bound=Event)


class Streaming:
    """A stream processor: Faust agents and tables over typed events.

    Args:
        name: lower case; part of its consumer groups and of the changelog topics of its tables.
        events: a closed union of the events its agents read, of any category.
        work: called with a `leftfold.faust.EventStreams` and with `ExternalRows` for each view, in their order; it
            makes tables and agents and returns.
        views: the views it writes; with views, one process at a time runs it.
        settings: of Faust, such as `{"store": "rocksdb://"}`.

    Raises:
        ConfigurationError: two parts do not fit together; the message names the correction.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        events: TypeForm[E],
        work: Callable[..., None],
        views: Sequence[StreamedView[Any, Any]] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.work, self.views, self.settings = name, work, tuple(views), dict(settings or {})
        where = f"stream {name}"
        check_name(name, where, "lately")
        self.events: tuple[type[Event], ...] = members(events, Event, f"{where}: events")
        for view in self.views:
            if missing := sorted(set(view.categories).difference(self.categories)):
                raise ConfigurationError(
                    f"{where}: view {view.name} is made of events of {', '.join(missing)}; add them to the stream's "
                    f"events="
                )

    @property
    def categories(self) -> tuple[str, ...]:
        """The categories whose events it reads, in alphabetical order."""
        return tuple(sorted({cls.__leftfold__.category for cls in self.events}))

    def __repr__(self) -> str:
        return f"Streaming({self.name!r})"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


class App:
    """One service: it owns the topics of its deciders and processes, their partition count and their fencing.

    Args:
        name: lower case; part of topic names (`{name}.replies`) and transactional ids.
        partitions: of every topic of its categories; changing it later is a migration.
        senders: names of processes of other Apps whose commands its deciders accept. Commands that claim another
            process as sender are dead-lettered: any writer of commands could forge one and redirect the answers.
        lateness: how late an event may be and still hold back the timers of its processes; absent = no limit, which
            loading old events needs. Without a limit, a sender that backdates commands could hold back all timers.
        dead_retention: how long dead commands are kept, a day at least; None = for ever. Dead letters of processes and
            reactions are kept for ever, since nothing else records them.
    """

    def __init__(
        self,
        name: str,
        /,
        *,
        partitions: int = 12,
        deciders: Sequence[Decider[Any, Any, Any]] = (),
        processes: Sequence[Process[Any, Any, Any]] = (),
        reactions: Sequence[Reaction[Any]] = (),
        views: Sequence[View[Any, Any]] = (),
        streams: Sequence[Streaming] = (),
        senders: Sequence[str] = (),
        lateness: timedelta | None = None,
        dead_retention: timedelta | None = timedelta(days=90),
    ) -> None:
        self.name, self.partitions = name, partitions
        given = {"deciders": deciders, "processes": processes, "reactions": reactions, "views": views}
        for what, value in given.items():
            if not isinstance(value, Iterable):
                raise ConfigurationError(f"app {name}: {what}={value!r} is no list; write {what}=[{value!r}]")
        self.deciders, self.processes, self.views = tuple(deciders), tuple(processes), tuple(views)
        self.reactions, self.streams = tuple(reactions), tuple(streams)
        kinds = {"deciders": Decider, "processes": Process, "reactions": Reaction, "streams": Streaming, "views": View}
        for what, kind in kinds.items():
            for one in getattr(self, what):
                if not isinstance(one, kind):
                    raise ConfigurationError(f"app {name}: {what}= holds {one!r}, which is no {kind.__name__}")
        check_name(name, f"app {name!r}", "baskets")
        self.senders, self.lateness, self.dead_retention = tuple(senders), lateness, dead_retention
        if dead_retention is not None and dead_retention < timedelta(days=1):
            raise ConfigurationError(
                f"app {name}: dead_retention={dead_retention!r} must be a day at least, or None = for ever, so that an "
                f"operator has time to look at dead letters"
            )
        if lateness is not None and lateness < timedelta():
            raise ConfigurationError(f"app {name}: lateness={lateness!r} must not be negative")
        if isinstance(senders, str) or not all(isinstance(s, str) and is_name(s) for s in senders):
            raise ConfigurationError(
                f"app {name}: senders={senders!r} must be names of processes of other Apps, such as ['checkout']"
            )
        if not 1 <= partitions <= 4096:
            raise ConfigurationError(f"app {name}: partitions={partitions} must be between 1 and 4096")
        _distinct(name, "deciders", (d.name for d in self.deciders))
        working = [*(d.name for d in self.deciders), *(p.name for p in self.processes)]
        _distinct(name, "deciders or processes", working)
        working += [*(r.name for r in self.reactions), *(s.name for s in self.streams)]
        _distinct(name, "deciders, processes, reactions or streams", working)
        _distinct(name, "views", (v.name for v in self.views))
        readers: tuple[_Reader, ...] = (*self.views, *self.reactions, *self.streams, *self.processes)
        for reader in readers:
            _same_events(name, reader, self.deciders)
        _check_kept(name, self.streams, self.views)
        for process in self.processes:
            _same_commands(name, process, self.deciders)

    def receivers_of(self, name: str) -> frozenset[str]:
        """The names of the categories that a process sends commands to, or of the processes that a decider answers."""
        sends = next((process.sends for process in self.processes if process.name == name), None)
        return self.senders_to(name) if sends is None else frozenset(sent.__leftfold__.category for sent in sends)

    def senders_to(self, category: str) -> frozenset[str]:
        """The names of the processes whose commands a decider accepts: `senders`, and the App's own that send to it."""
        own = {p.name for p in self.processes if any(c.__leftfold__.category == category for c in p.sends)}
        return frozenset(own.union(self.senders))

    def decider(self, category: str) -> Decider[Any, Any, Any]:
        """The decider of a category; raises ConfigurationError if this App has none."""
        return _named(self.name, "decider for category", category, self.deciders)

    def process(self, name: str) -> Process[Any, Any, Any]:
        """The process of a name; raises ConfigurationError if this App has none."""
        return _named(self.name, "process", name, self.processes)

    def reaction(self, name: str) -> Reaction[Any]:
        """The reaction of a name; raises ConfigurationError if this App has none."""
        return _named(self.name, "reaction", name, self.reactions)

    def stream(self, name: str) -> Streaming:
        """The stream of a name; raises ConfigurationError if this App has none."""
        return _named(self.name, "stream", name, self.streams)

    def keeper(self, view: View[Any, Any]) -> Streaming | None:
        """The stream processor that writes a view; None where another program does, or where none is needed."""
        return next((stream for stream in self.streams if view in stream.views), None)

    def view(self, name: str) -> View[Any, Any]:
        """The view of a name; raises ConfigurationError if this App has none."""
        return _named(self.name, "view", name, self.views)

    def __repr__(self) -> str:
        return f"App({self.name!r}, partitions={self.partitions})"


def _named(app: str, what: str, name: str, among: Sequence[N]) -> N:
    for one in among:
        if one.name == name:
            return one
    known = ", ".join(one.name for one in among) or "none"
    raise ConfigurationError(f"app {app} has no {what} {name!r}; it has: {known}")


def _distinct(app: str, what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigurationError(f"app {app}: two {what} are named {name!r}; give one another name")
        seen.add(name)


_Reader: TypeAlias = View[Any, Any] | Process[Any, Any, Any] | Reaction[Any] | Streaming


def _same_events(app: str, reader: _Reader, deciders: Iterable[Decider[Any, Any, Any]]) -> None:
    kinds = {Process: "process", Reaction: "reaction", Streaming: "stream"}
    what = kinds.get(type(reader), "view")
    for decider in deciders:
        known = {cls.__leftfold__.name: cls for cls in decider.events}
        for cls in reader.events:
            spec = cls.__leftfold__
            if spec.category == decider.name and known.get(spec.name) is not cls:
                raise ConfigurationError(
                    f"app {app}: {what} {reader.name} reads {cls.__name__}, which decider {decider.name} never writes; "
                    f"add it to the decider's events or take it out of the {what}"
                )


def _check_kept(app: str, streams: Iterable[Streaming], views: Sequence[View[Any, Any]]) -> None:
    keepers: dict[str, str] = {}
    for stream in streams:
        for view in stream.views:
            if view not in views:
                raise ConfigurationError(f"app {app}: stream {stream.name} keeps view {view.name}; add it to views=")
            if (other := keepers.setdefault(view.name, stream.name)) != stream.name:
                raise ConfigurationError(f"app {app}: streams {other} and {stream.name} keep one view, {view.name}")


def _same_commands(app: str, process: Process[Any, Any, Any], deciders: Iterable[Decider[Any, Any, Any]]) -> None:
    for decider in deciders:
        for cls in process.sends:
            if cls.__leftfold__.category == decider.name and cls not in decider.commands:
                raise ConfigurationError(
                    f"app {app}: process {process.name} sends {cls.__name__}, which decider {decider.name} does not "
                    f"decide; add it to the decider's commands or take it out of the process's sends="
                )
