"""The project in the current directory: its Apps, its embedded servers, and the printing of errors."""

from __future__ import annotations

import importlib
import logging
import re
import shlex
import sys
import tomllib
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from leftfold.errors import ConfigurationError, LeftfoldError
from leftfold.model.app import App
from leftfold.model.position import RecordAddress
from leftfold.model.process import Process
from leftfold.model.reaction import Reaction
from leftfold.model.view import View
from leftfold.runtime.connect import archive_dir
from leftfold.runtime.console import note, shown_path
from leftfold.safety import is_foreign

if TYPE_CHECKING:
    from leftfold.local import LocalSettings

__all__ = [
    "INTERRUPTED", "Cut", "Project", "Unanswered", "Usage", "archive_needed", "archive_of", "find_project",
    "folded_view_of", "load_app", "load_apps", "local_settings", "member_of", "names_in", "read_address",
    "servers_to_start", "text_about_lock", "together", "unknown", "view_of",
]  # fmt: skip

M = TypeVar("M", bound=View[Any, Any] | Process[Any, Any, Any] | Reaction[Any])


@dataclass(frozen=True)
class Project:
    """A project's directory, with the Apps and the archive that its pyproject.toml names, '' = none.

    Args:
        written: whether there is a pyproject.toml with [tool.leftfold] that may be used.
        refused: why the pyproject.toml may not be used; '' when it may, or when there is none.
    """

    root: Path
    apps: tuple[str, ...] = ()
    archive: str = ""
    written: bool = True
    refused: str = ""

    def require(self) -> None:
        """Checks that the directory belongs to a project.

        Raises:
            ConfigurationError: neither it nor a directory above it has a pyproject.toml with [tool.leftfold].
        """
        if not self.written:
            raise ConfigurationError(
                self.refused
                or f"{self.root} is in no project: no pyproject.toml here or above has [tool.leftfold]; "
                f"go to the project's directory, or make one: leftfold new shop"
            )

    @property
    def app(self) -> str:
        """The App that is used when no option names one: the first."""
        return next(iter(self.apps), "")

    @property
    def data(self) -> Path:
        """The embedded servers' data directory, unless `LEFTFOLD_DATA` names another."""
        return self.root / ".leftfold"

    @property
    def lock(self) -> Path:
        """The file `leftfold.lock`, committed to the repository, of the App that pyproject.toml names."""
        return self.root / "leftfold.lock"

    def lock_of(self, app: App, spec: str, *, is_alone: bool = True) -> Path:
        """The lock file of the App that `spec` names: `leftfold.lock` of the first, `locks/{app}.lock` of others.

        Args:
            is_alone: whether it is the only App that was named; where pyproject.toml names none, that has the first.
        """
        own = self.root / "locks" / f"{app.name}.lock"
        is_first = not spec or spec == self.app or (not self.app and is_alone and not own.exists())
        return self.lock if is_first else own


def text_about_lock(text: str, lock: Path, command: str) -> str:
    """A text that names `leftfold.lock` and `leftfold check --write`, with another App's lock file and command."""
    name = shown_path(lock) if lock.parent.name == "locks" else lock.name
    return text.replace("leftfold check --write", command).replace("leftfold.lock", name)


def find_project(start: Path | None = None) -> Project:
    """Finds the project: the nearest directory upwards whose pyproject.toml has [tool.leftfold], else `start`.

    A pyproject.toml of another user is refused, because its code would run with this user's rights.

    Raises:
        ConfigurationError: that pyproject.toml cannot be read.
    """
    here = (start or Path.cwd()).resolve()
    for place in (here, *here.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            try:
                table = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("leftfold")
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"{file} cannot be read: {error}") from error
            if table is not None and not _is_safe(file):
                return Project(here, written=False, refused=_foreign(file))
            if table is not None:
                archive = str(table.get("archive", ""))
                if archive and "://" not in archive:
                    archive = str(place / Path(archive).expanduser())
                return Project(place, _apps_of(file, table), archive)
    return Project(here, written=False)


def _is_safe(file: Path) -> bool:
    from leftfold.runtime.discovery import Environment

    place = file.parent
    return not (is_foreign(file) or is_foreign(place)) or Environment().trusts(place)


def _foreign(file: Path) -> str:
    place = shlex.quote(str(file.parent))
    return (
        f"{file} belongs to another user, whose code would run as yours; trust it: LEFTFOLD_TRUST={place}, "
        f"or name an App of your own: --app package.module:app"
    )


def _apps_of(file: Path, table: Mapping[str, object]) -> tuple[str, ...]:
    found = table.get("app", [])
    apps = [found] if isinstance(found, str) else found
    if not isinstance(apps, list) or not all(isinstance(app, str) for app in apps):
        raise ConfigurationError(f"{file}: app = {found!r} under [tool.leftfold] is one module:name, or a list of them")
    return tuple(filter(None, apps))


def load_app(spec: str = "", project: Project | None = None, *, having: Sequence[str] = ()) -> App:
    """Imports an App: the given one, else the project's; the import checks every definition in it.

    Args:
        having: names of members or commands; of a project's several Apps, the first that has one of them is loaded.

    Raises:
        ConfigurationError: no App is named, it does not exist, or a definition in it is wrong.
    """
    project = project or find_project()
    if not spec and having and len(project.apps) > 1:
        apps = [*load_apps([]).values()]
        return next((app for app in apps if names_in(app).union(_commands(app)).intersection(having)), apps[0])
    spec = spec or project.app
    if not spec:
        raise ConfigurationError(
            project.refused
            or "which App? say --app package.module:app, set LEFTFOLD_APP, or write into pyproject.toml:\n"
            '[tool.leftfold]\napp = "package.module:app"'
        )
    module_name, colon, name = spec.partition(":")
    if not module_name or not colon or not name:
        raise ConfigurationError(f"--app {spec!r} must be module:name, such as shop.services.carts.app:app")
    for place in (str(Path.cwd()), str(project.root)):
        if place not in sys.path:
            sys.path.insert(0, place)
    probe = logging.getLogger(__name__)
    module = _imported(module_name)
    if probe.disabled:  # a module's dictConfig disables what it does not name, by default
        for logger in [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "leftfold"]:
            logging.getLogger(logger).disabled = False
    found = getattr(module, name, None)
    if not isinstance(found, App):
        raise ConfigurationError(f"{module_name} has no App {name!r}; {_apps(module)}")
    return found


def load_apps(specs: Sequence[str]) -> dict[str, App]:
    """Imports several Apps, by their `module:name`: the given ones, else all of the project's.

    Raises:
        ConfigurationError: as `load_app`, or two of them have the same name.
    """
    project = find_project()
    found = {spec: load_app(spec, project) for spec in tuple(filter(None, specs)) or project.apps or ("",)}
    called: dict[str, str] = {}
    for spec, app in found.items():
        if other := called.get(app.name):
            raise ConfigurationError(
                f"{other} and {spec} are both called {app.name!r}; groups and topics go by the name"
            )
        called[app.name] = spec
    return found


def together(apps: Iterable[App]) -> App:
    """One App with the deciders and views of several Apps, for readers of all their events."""
    first, *_ = apps = list(apps)
    deciders = {decider.name: decider for app in reversed(apps) for decider in app.deciders}
    views = {view.name: view for app in reversed(apps) for view in app.views}
    return App(first.name, partitions=first.partitions, deciders=[*deciders.values()], views=[*views.values()])


def archive_of(given: str | None) -> str:
    """The archive's directory, '' when none is configured; a path in pyproject.toml is relative to that file."""
    return archive_dir(given, default=find_project().archive)


def archive_needed(given: str | None, option: str) -> str:
    """The archive's directory, for commands that cannot do without one.

    Raises:
        Usage: no archive is configured.
    """
    found = archive_of(given)
    if not found:
        raise Usage(
            f"where is the archive? say {option} DIR, set LEFTFOLD_ARCHIVE_DIR, or write archive = 'DIR' under "
            f"[tool.leftfold] in pyproject.toml"
        )
    return found


def folded_view_of(app: App, name: str) -> View[Any, Any]:
    """The App's view with a name; it must be folded event by event.

    Raises:
        Usage: the App has no such view, or Spark computes it as a whole.
    """
    view = view_of(app, name)
    if view.streamed:
        raise Usage(
            f"view {name} is kept by a stream of its own, not folded event by event; only that stream can compute it "
            f"again, and compares the rows: leftfold rebuild {name}"
        )
    if not view.folded:
        raise Usage(
            f"view {name} is computed as a whole by Spark, not event by event; "
            f"compute it again: leftfold rebuild {name}"
        )
    return view


def view_of(app: App, name: str) -> View[Any, Any]:
    """The App's view with a name.

    Raises:
        Usage: the App has no such view.
    """
    return member_of(app, "view", app.views, name)


def member_of(app: App, kind: str, members: Iterable[M], name: str) -> M:
    """The view, process or reaction of an App with a name.

    Raises:
        Usage: the App has no such member.
    """
    known = {member.name: member for member in members}
    if name not in known:
        raise unknown(f"{kind} in app {app.name} called", name, known)
    return known[name]


def names_in(app: App) -> set[str]:
    """The names of an App's deciders, processes, reactions, streams and views."""
    members = (app.deciders, app.processes, app.reactions, app.streams, app.views)
    return {member.name for kind in members for member in kind}


def _commands(app: App) -> set[str]:
    """The names of an App's commands, with and without their category."""
    commands = [(decider.name, command.__leftfold__.name) for decider in app.deciders for command in decider.commands]
    return {name for category, short in commands for name in (short, f"{category}.{short}")}


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except LeftfoldError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {error.name} in {Path.cwd()} or among what is installed; "
                f"is this the project's directory, and --app right?"
            ) from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> ConfigurationError:
    """The error for a failed import, with the last file and line outside Python's import machinery."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}:{error.lineno})"
        return ConfigurationError(f"{name} cannot be imported: {error.msg}{place}")
    return ConfigurationError(f"{name} cannot be imported: {type(error).__name__}: {error}{place}")


def _apps(module: ModuleType) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"it has {', '.join(apps)}" if apps else "it has none; write app = App(...)"


def servers_to_start(kafka: str | None = None, redis: str | None = None, *, quiet: bool = False) -> frozenset[str]:
    """The embedded servers whose address neither an argument nor the environment configures.

    Args:
        quiet: do not print which servers are configured, and by which option or variable.
    """
    from leftfold.runtime.discovery import Environment

    environment = Environment()
    configured = {"kafka": kafka or environment.kafka, "redis": redis or environment.redis}
    for name, given, variable in (("kafka", kafka, "LEFTFOLD_KAFKA_*"), ("redis", redis, "LEFTFOLD_REDIS_URL")):
        if configured[name] and not quiet:
            note(f"{name} is configured by {f'--{name}' if given else variable}; none is started here")
    return frozenset(name for name, address in configured.items() if not address)


def local_settings() -> LocalSettings:
    """Settings of the embedded servers; their data is in the project's directory unless `LEFTFOLD_DATA` is set."""
    from leftfold.local import LocalSettings

    settings: LocalSettings = LocalSettings()
    if "data" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"data": find_project().data})


INTERRUPTED = 130
_USAGE = 2


class Usage(LeftfoldError):
    """An error in what the user typed: an unknown name, or an option's value that is wrong."""

    exit_code = _USAGE


class Unanswered(LeftfoldError):
    """No answer arrived in time; sending again with the same id returns the outcome."""

    exit_code = 75


class Cut(LeftfoldError):
    """An answer that exceeds the limit of rows; only its beginning was printed."""

    exit_code = 3


def unknown(what: str, name: str, known: Iterable[str]) -> Usage:
    """The error for an unknown name; it offers the nearest names and lists all."""
    names = sorted(known)
    near = get_close_matches(name, names, n=2) or [n for n in names if n.lower() == name.lower()]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return Usage(f"there is no {what} {name!r}{hint}\nknown: {', '.join(names) or 'none'}")


_PLACE = re.compile(r"(?P<topic>[^\[\]/]+)(?:\[(?P<p>[0-9]+)\]@|/(?P<q>[0-9]+)/)(?P<offset>[0-9]{1,18})")


def read_address(text: str, what: str = "an event; write it as routers tell it: 'orders.events[2]@7'") -> RecordAddress:
    """Parses the address of a record: `orders.events[2]@7` or `orders.events/2/7`.

    Raises:
        Usage: the text is no address.
    """
    found = _PLACE.fullmatch(text)
    if found is None:
        raise Usage(f"{text!r} is no place of {what}")
    return RecordAddress(found["topic"], int(found["p"] or found["q"]), int(found["offset"]))
