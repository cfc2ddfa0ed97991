"""The state of a console: its Apps and servers, the shared survey, long work, and who looks at its pages."""

from __future__ import annotations

import asyncio
import getpass
import logging
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import urlencode

from leftfold.engine.progress import ProgressReport, RebuildProgress
from leftfold.errors import LeftfoldError
from leftfold.http.access import Principal
from leftfold.http.gateway import AppConnection
from leftfold.model.app import App
from leftfold.model.decider import Decider
from leftfold.model.view import View
from leftfold.runtime.operations.scrape import Rates, Scrape
from leftfold.runtime.operations.survey import Survey
from leftfold.runtime.project import Usage, archive_of, unknown
from leftfold.runtime.servers import Servers
from leftfold.safety import veiled

__all__ = ["Console", "May", "SharedSurvey", "SurveyResult", "Visitor", "Work", "explain_error"]

May: TypeAlias = Callable[[Principal], bool]
"""Whether a principal may look, or act."""

T = TypeVar("T")
_PAUSE, _SHARE = 2.0, 5.0
"""Seconds between two surveys: at least two, and five times as long as the last one took."""
_REMEMBERED = 60
"""How many surveys are remembered, for the course of lags."""
_log = logging.getLogger("leftfold.console")


class SurveyResult(NamedTuple):
    """The rows and problems of one survey; `time` is when it ended, in seconds since 1970.

    `remarks` are no faults, such as events that name no row, and are not among the `problems`.
    `scrape` has what the parts of a run record themselves; None = it was not asked for, or nothing answered.
    `rates` has a row for each member with its rate and durations since the survey before. `is_missing`: a server does
    not answer, so that what has no row is unknown.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    problems: Sequence[str] = ()
    time: float = 0.0
    scrape: Scrape | None = None
    rates: Sequence[Mapping[str, Any]] = ()
    is_missing: bool = False
    remarks: Sequence[str] = ()


def explain_error(error: BaseException) -> str:
    """An error as a sentence for people: its value and the next step, without a traceback and without secrets.

    An error that was not foreseen is logged with its traceback.
    """
    if isinstance(error, LeftfoldError):
        return veiled("; ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())]))
    _log.error("a page of the console failed: %s", type(error).__name__, exc_info=error)
    return (
        f"{type(error).__name__}: {veiled(str(error))}. This was not foreseen; the log of the console has the details. "
        "Reload the page, or type the command in a shell"
    )


class SharedSurvey:
    """One survey for all open pages, made only while a page asks, with a pause between two.

    Args:
        look: makes a survey; called on a thread.
    """

    def __init__(self, look: Callable[[], SurveyResult]) -> None:
        self._look, self._due, self._is_hastened = look, 0.0, False
        self._task: asyncio.Task[SurveyResult] | None = None
        self.latest = SurveyResult()
        self.history: list[SurveyResult] = []

    def hasten(self) -> None:
        """Has the next page that asks get a new survey: something was changed, maybe after the one under way began."""
        self._due, self._is_hastened = 0.0, True

    async def result(self) -> SurveyResult:
        """The latest survey, or a new one when the pause is over; pages that ask together share it."""
        if self._task is None or (self._task.done() and time.monotonic() >= self._due):
            self._task = asyncio.create_task(self._survey())
        return await asyncio.shield(self._task)

    async def _survey(self) -> SurveyResult:
        begun, self._is_hastened = time.monotonic(), False
        try:
            self.latest = await asyncio.to_thread(self._look)
        except Exception as error:  # noqa: BLE001  # every page shows it, and the pause stays
            self.latest = SurveyResult((), [explain_error(error)], time.time(), is_missing=True)
        self.history = [*self.history, self.latest._replace(problems=(), remarks=(), scrape=None)][-_REMEMBERED:]
        ended = time.monotonic()
        self._due = 0.0 if self._is_hastened else ended + max(_PAUSE, _SHARE * (ended - begun))
        return self.latest


@dataclass
class Work:
    """Long work that a visitor began: it runs on a thread of its own, and every page shows how far it is.

    Args:
        name: of the work and what it is done to, such as `rebuild household_spend`; one of a name runs at a time.
        outcome: a sentence once it has ended. failed: whether that is an error.
    """

    name: str
    begun: float = field(default_factory=time.time)
    progress: RebuildProgress | None = None
    outcome: str = ""
    failed: bool = False

    @property
    def share(self) -> float | None:
        """How much of its phase is done, from 0 to 1; None = unknown."""
        return self.progress.done / self.progress.total if self.progress and self.progress.total else None


class Console:
    """What the pages of a console are about, and who may act there.

    Args:
        apps: by their `module:name`. connections: to each App, by its name.
        servers: Kafka, Redis and the archive, as options name them; None = Apps in memory, without servers.
        may_look: whether a principal may see the pages, which show everything; by default everybody.
        may_act: whether a principal may change something; by default only reading is allowed.
        locks: the lock file of each App, by its `module:name`.
        shell: the command line of some words for an App ('' = all), with the options that it needs to reach the same
            servers.
        metrics: `HOST:PORT` at which `leftfold run --metrics` answers; '' = nowhere.
    """

    def __init__(
        self,
        apps: Mapping[str, App],
        connections: Mapping[str, AppConnection],
        servers: Servers | None,
        *,
        may_look: May = lambda principal: True,
        may_act: May = lambda principal: False,
        locks: Mapping[str, Path] = MappingProxyType({}),
        shell: Callable[[Sequence[str], str], str] = lambda words, app: shlex.join(["leftfold", *words]),
        metrics: str = "",
    ) -> None:
        self.locks, self.metrics, self._rates = locks, metrics, Rates()
        self.apps, self.connections, self.may_look, self.may_act = dict(apps), dict(connections), may_look, may_act
        self._servers, self._shell = servers, shell
        self.survey = SharedSurvey(self._look)
        self.works: dict[str, Work] = {}
        self._lock = threading.Lock()
        self._shared: dict[str, Any] = {}
        self._ends: list[Callable[[], object]] = []

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Something that all visitors share, made by the first who needs it."""
        with self._lock:
            if name not in self._shared:
                self._shared[name] = make()
            found: T = self._shared[name]
            return found

    def at_end(self, close: Callable[[], object]) -> None:
        """Has something closed when the console ends."""
        self._ends.append(close)

    def close(self) -> None:
        """Closes what visitors have opened; long work that is under way ends with the process."""
        while self._ends:
            self._ends.pop()()

    @property
    def servers(self) -> Servers:
        """Kafka, Redis and the archive.

        Raises:
            Usage: the Apps of this console are in memory.
        """
        if self._servers is None:
            raise Usage("the Apps of this console are in memory; this needs Kafka and Redis: leftfold console")
        return self._servers

    @property
    def has_servers(self) -> bool:
        """Whether the Apps run on servers."""
        return self._servers is not None

    def _look(self) -> SurveyResult:
        if self._servers is None:
            return SurveyResult((), [], time.time())
        kafka, redis, archive = self._servers
        survey = Survey(kafka, redis, archive_of(archive))
        rows = survey.rows({app.name: app for app in self.apps.values()})
        scrape = Scrape.read(self.metrics) if self.metrics else None
        rates = [{"kind": kind, "name": name} for kind, name in scrape.members] if scrape else []
        self._rates.added(rates, scrape, time.monotonic())
        if self.metrics and scrape is None:
            survey.problems.append(
                f"{self.metrics}/metrics has no metrics of a run; start: leftfold run --metrics {self.metrics}"
            )
        problems = [veiled(one) for one in survey.problems if one not in survey.remarks]
        remarks = list(map(veiled, survey.remarks))
        return SurveyResult(rows, problems, time.time(), scrape, rates, survey.missing, remarks)

    def deciders(self) -> dict[str, tuple[App, Decider[Any, Any, Any]]]:
        """Every decider with its App, by its category."""
        return {decider.name: (app, decider) for app in self.apps.values() for decider in app.deciders}

    def views(self) -> dict[str, tuple[App, View[Any, Any]]]:
        """Every view with its App, by its name."""
        return {view.name: (app, view) for app in self.apps.values() for view in app.views}

    def view(self, name: str) -> tuple[App, View[Any, Any]]:
        """A view with its App.

        Raises:
            Usage: there is no view of this name.
        """
        found = self.views()
        if name not in found:
            raise unknown("view called", name, found)
        return found[name]

    def shell(self, *words: str, app: str = "") -> str:
        """A command line of `leftfold` that does the same in a shell; of one App, where it is about one."""
        return self._shell(words, app)

    def start(self, name: str, do: Callable[[ProgressReport], str]) -> Work:
        """Begins long work on a thread; it ends with the sentence that `do` returns, or with its error.

        Raises:
            Usage: work of this name is under way.
        """
        with self._lock:
            if (found := self.works.get(name)) is not None and not found.outcome:
                raise Usage(f"{name} is under way since {time.time() - found.begun:.0f} s; wait for its end")
            work = self.works[name] = Work(name)

        def run() -> None:
            def report(progress: RebuildProgress) -> None:
                work.progress = progress

            try:
                work.outcome = do(report)
            except Exception as error:  # noqa: BLE001  # the page shows every error
                work.failed, work.outcome = True, explain_error(error)
            self.survey.hasten()

        # Nothing waits for it at the end of the process: an interrupted rebuild leaves what readers see as it was.
        threading.Thread(target=run, name=name, daemon=True).start()
        return work

    def dismiss(self, name: str) -> None:
        """Forgets work that has ended."""
        with self._lock:
            if (found := self.works.get(name)) is not None and found.outcome:
                del self.works[name]


@dataclass(frozen=True)
class Visitor:
    """Who looks at a page.

    Args:
        prefix: the path at which the console is mounted, '' at the root.
        principal: who it is, '' without authentication. may_act: whether buttons that change something are shown.
    """

    console: Console
    prefix: str = ""
    principal: Principal = field(default_factory=Principal)
    may_act: bool = False

    def href(self, path: str, **query: object) -> str:
        """The address of a page of this console, for a link."""
        return self.prefix + self.route(path, **query)

    @staticmethod
    def route(path: str, **query: object) -> str:
        """The address of a page of this console, without the prefix."""
        named = {name: str(value) for name, value in query.items() if value not in ("", None)}
        return f"{path}?{urlencode(named)}" if named else path

    @property
    def name(self) -> str:
        """The name that is written down with an act: the principal, else the login of this process."""
        if self.principal.name:
            return self.principal.name
        try:
            return getpass.getuser()
        except (OSError, KeyError):  # a user id without a name, as in containers
            return ""

    def check_may_act(self) -> None:
        """Checks that this visitor may act.

        Raises:
            Usage: only reading is allowed, or the visitor's token has expired.
        """
        if (until := self.principal.expires) is not None and time.time() > until:
            raise Usage(f"the token of {self.principal.name} has expired since the page was opened; reload the page")
        if not self.console.may_act(self.principal):
            raise Usage("this console only reads; to act, start it again with --allow-acts")
