"""The project that a command is typed in: its directory, its App, and where its embedded servers live."""

from __future__ import annotations

import importlib
import sys
import tomllib
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from leftfold.app import App
from leftfold.connection import ring
from leftfold.errors import ConfigurationError, LeftfoldError
from leftfold.owners import is_foreign

__all__ = ["Project", "find_project", "load_app", "load_apps", "names_in", "together"]


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
        """The lock of an App that was asked for as `spec`: another one than the project's own has a file of its own."""
        if not spec or not self.app or spec == self.app:
            return self.lock
        return self.root / f"leftfold.{app.name}.lock"


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
    place = file.parent
    return not (is_foreign(file) or is_foreign(place)) or ring("leftfold.servers").Environment().trusts(place)


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
