"""The project in the current directory: its App, its embedded servers, and how errors are shown to its user."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import typer

from leftfold.errors import ConfigurationError, LeftfoldError, StaleViewError
from leftfold.model.app import App
from leftfold.runtime.console import note, note_lines, styled
from leftfold.safety import is_foreign, veiled

if TYPE_CHECKING:
    from leftfold.local import LocalSettings

__all__ = [
    "INTERRUPTED",
    "Cut",
    "Project",
    "Unanswered",
    "Usage",
    "find_project",
    "for_app",
    "for_servers",
    "load_app",
    "load_apps",
    "local_settings",
    "names_in",
    "needed",
    "spec_in",
    "tell",
    "together",
    "unknown",
]


@dataclass(frozen=True)
class Project:
    """A directory, and the Apps and the archive that its pyproject.toml names, '' when it names none.

    Args:
        written: whether there is a pyproject.toml with [tool.leftfold] at all, and one that may be used.
        refused: why one that is there may not be used, '' when it may, or there is none.
    """

    root: Path
    apps: tuple[str, ...] = ()
    archive: str = ""
    written: bool = True
    refused: str = ""

    def require(self) -> None:
        """Refuses a directory that is no project.

        Raises:
            ConfigurationError: neither it nor one above it has a pyproject.toml with [tool.leftfold].
        """
        if not self.written:
            raise ConfigurationError(
                self.refused
                or f"{self.root} is in no project: no pyproject.toml here or above has [tool.leftfold]; "
                f"go to the project's directory, or make one: leftfold new shop"
            )

    @property
    def app(self) -> str:
        """The App that is meant when nobody says which: the first."""
        return next(iter(self.apps), "")

    @property
    def data(self) -> Path:
        """What the embedded servers keep, unless `LEFTFOLD_DATA` says otherwise."""
        return self.root / ".leftfold"

    @property
    def lock(self) -> Path:
        """The committed `leftfold.lock`, that of the App which pyproject.toml names."""
        return self.root / "leftfold.lock"

    def lock_of(self, app: App, spec: str) -> Path:
        """The lock of the App that `spec` names: `leftfold.lock` of the project's own, `locks/{app}.lock` of others."""
        if not spec or not self.app or spec == self.app:
            return self.lock
        return self.root / "locks" / f"{app.name}.lock"


def find_project(start: Path | None = None) -> Project:
    """The nearest directory upwards whose pyproject.toml has [tool.leftfold], else the working directory.

    One that belongs to another user is not used, wherever it is, for its code would run with this user's rights.

    Raises:
        ConfigurationError: that pyproject.toml cannot be read.
    """
    here = (start or Path.cwd()).resolve()
    for place in (here, *here.parents):
        file = place / "pyproject.toml"
        if file.is_file():
            try:
                told = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("leftfold")
            except (OSError, ValueError) as error:
                raise ConfigurationError(f"{file} cannot be read: {error}") from error
            if told is not None and not _is_safe(file):
                return Project(here, written=False, refused=_foreign(file))
            if told is not None:
                return Project(place, _apps_of(file, told), _from(place, str(told.get("archive", ""))))
    return Project(here, written=False)


def _is_safe(file: Path) -> bool:
    from leftfold.runtime.discovery import Environment

    place = file.parent
    return not (is_foreign(file) or is_foreign(place)) or Environment().trusts(place)


def _foreign(file: Path) -> str:
    return (
        f"{file} belongs to another user, whose code would run as yours; trust it: LEFTFOLD_TRUST={file.parent}, "
        f"or name an App of your own: --app package.module:app"
    )


def _apps_of(file: Path, told: Mapping[str, object]) -> tuple[str, ...]:
    found = told.get("app", [])
    apps = [found] if isinstance(found, str) else found
    if not isinstance(apps, list) or not all(isinstance(app, str) for app in apps):
        raise ConfigurationError(f"{file}: app = {found!r} under [tool.leftfold] is one module:name, or a list of them")
    return tuple(filter(None, apps))


def _from(root: Path, archive: str) -> str:
    """A path as seen from the project's directory; a URI is one from everywhere."""
    return archive if not archive or "://" in archive else str(root / archive)


def load_app(spec: str = "", project: Project | None = None, *, having: Sequence[str] = ()) -> App:
    """The App that is meant: the one given, else the project's. Importing it checks every definition in it.

    Args:
        having: what is asked about; where a project has several Apps, it is found in whichever has one of these names.

    Raises:
        ConfigurationError: nobody says which, or it is not there, or a definition in it is wrong.
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
    module = _imported(module_name)
    found = getattr(module, name, None)
    if not isinstance(found, App):
        raise ConfigurationError(f"{module_name} has no App {name!r}; {_apps(module)}")
    return found


def load_apps(specs: Sequence[str]) -> dict[str, App]:
    """The Apps that are meant, each by what it was asked for: those given, else all of the project's.

    Raises:
        ConfigurationError: as `load_app`, or two of them have one name.
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
    """One App with the deciders and views of several, for who reads all their events."""
    first, *_ = apps = list(apps)
    deciders = {decider.name: decider for app in reversed(apps) for decider in app.deciders}
    views = {view.name: view for app in reversed(apps) for view in app.views}
    return App(first.name, partitions=first.partitions, deciders=[*deciders.values()], views=[*views.values()])


def names_in(app: App) -> set[str]:
    """What an App's deciders, processes, reactions, streams and views are called."""
    members = (app.deciders, app.processes, app.reactions, app.streams, app.views)
    return {member.name for kind in members for member in kind}


def _commands(app: App) -> set[str]:
    """What its commands are called, with and without their category."""
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
    """The place shown is the last one in a file that Python runs, past its own import machinery."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        place = f" ({error.filename}:{error.lineno})"
        return ConfigurationError(f"{name} cannot be imported: {error.msg}{place}")
    return ConfigurationError(f"{name} cannot be imported: {type(error).__name__}: {error}{place}")


def _apps(module: ModuleType) -> str:
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    return f"it has {', '.join(apps)}" if apps else "it has none; write app = App(...)"


@dataclass(frozen=True)
class Needed:
    """The servers to start here: those whose address nobody has configured."""

    want: frozenset[str]

    def tell(self) -> None:
        """Says which are left out and why."""
        for name, variable in (("kafka", "LEFTFOLD_KAFKA_*"), ("redis", "LEFTFOLD_REDIS_URL")):
            if name not in self.want:
                note(f"{name} is configured by {variable}; none is started here")


def needed(kafka: str | None = None, redis: str | None = None) -> Needed:
    """What is configured neither by these arguments nor by the environment."""
    from leftfold.runtime.discovery import Environment

    environment = Environment()
    configured = {"kafka": kafka or environment.kafka, "redis": redis or environment.redis}
    return Needed(frozenset(name for name, address in configured.items() if not address))


def local_settings() -> LocalSettings:
    """The user's settings, with the data in the project's own directory unless `LEFTFOLD_DATA` says otherwise."""
    from leftfold.local import LocalSettings

    settings: LocalSettings = LocalSettings()
    if "data" in settings.model_fields_set:
        return settings
    return settings.model_copy(update={"data": find_project().data})


_OF_AN_APP = re.compile(
    r"\bleftfold ((?:run|rebuild|retry|get|explain|verify|promote|rollback|drop|log skip"
    r"|(?:state|timers|topics|reactions) [a-z]+))(?= |$)(?![^;\n]{0,200} --app)"
)
_START = re.compile(r"start(?: one| it)?(?: here)?: leftfold up|start servers with `leftfold up`")
_EMBEDDED = "embedded"


def for_app(text: str, spec: str) -> str:
    """The text, in which every command names the App that was asked for, unless it is the project's own."""
    if not spec or spec == _own():
        return text
    return _OF_AN_APP.sub(rf"leftfold \1 --app {spec}", text)


def for_servers(text: str) -> str:
    """The text, in which `leftfold up` gives way where another process keeps the servers, since `up` would refuse."""
    from leftfold.local import status

    if "leftfold up" not in text:
        return text
    try:
        kept = status(local_settings().data)
    except LeftfoldError:
        return text
    if kept.keeper is None or kept.kind != _EMBEDDED:
        return text
    return _START.sub(
        f"process {kept.parent} keeps the servers here: leftfold dev starts one again by itself, "
        f"another program is to be ended and started again",
        text,
    )


def spec_in(arguments: Sequence[str]) -> str:
    """What was said behind `--app`, '' when nothing was."""
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if word == "--app":
            return following
        if word.startswith("--app="):
            return word.removeprefix("--app=")
    return ""


def _own() -> str:
    try:
        return find_project().app
    except LeftfoldError:
        return ""


INTERRUPTED = 130
_USAGE = 2
_NOT_CAUGHT_UP = 4


class Usage(LeftfoldError):
    """What was typed cannot be meant."""

    exit_code = _USAGE


class Unanswered(LeftfoldError):
    """No answer in time: whoever asks again with the same id finds out."""

    exit_code = 75


class Cut(LeftfoldError):
    """An answer that is longer than it may be; what was printed is its beginning."""

    exit_code = 3


def unknown(what: str, name: str, known: Iterable[str]) -> Usage:
    """The error for a name that nobody has: it offers the nearest ones and lists all."""
    names = sorted(known)
    near = get_close_matches(name, names, n=2) or [n for n in names if n.lower() == name.lower()]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return Usage(f"there is no {what} {name!r}{hint}\nknown: {', '.join(names) or 'none'}")


def tell(error: Exception, *, whole: bool = False, app: str = "") -> int:
    """Writes an error to standard error and returns the exit code that goes with it.

    Args:
        whole: show where it comes from. app: what was said behind `--app`, which commands in its message then say, too.
    """
    if whole:
        note_lines("".join(traceback.format_exception(error)).rstrip("\n").split("\n"))
    if isinstance(error, typer.TyperException):
        return _usage(error)
    if isinstance(error, LeftfoldError):
        _say(for_servers(for_app(str(error) or type(error).__name__, app)))
        return _NOT_CAUGHT_UP if isinstance(error, StaleViewError) else error.exit_code
    _say(f"{type(error).__name__}: {veiled(str(error))}{_where(error)}")
    if not whole:
        note("this was not foreseen; to see where it comes from, set LEFTFOLD_TRACEBACK=1")
    return 1


def _usage(error: typer.TyperException) -> int:
    if error.format_message().startswith("Usage:"):
        note_lines(error.format_message().split("\n"))
        return error.exit_code
    _say(error.format_message())
    context = getattr(error, "ctx", None)
    if context is not None:
        note_lines([*context.command.get_usage(context).split("\n"), f"help: {context.command_path} --help"])
    return error.exit_code


def _say(message: str) -> None:
    """Lines behind the first are indented, so that what a message repeats cannot look like another message."""
    sys.stdout.flush()
    first, *others = message.split("\n")
    note_lines([(styled("error:", fg="red", bold=True), f" {first}"), *(f"  {other}" for other in others)])


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
