"""Writes a new project from the template beside this file."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from leftfold.errors import ConfigurationError

__all__ = ["write_project"]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = frozenset({"leftfold", "tests", "test"})
_SUFFIX = ".tmpl"


def write_project(name: str, parent: Path) -> list[Path]:
    """Writes the project into `parent/name` and returns its files.

    Raises:
        ConfigurationError: the name cannot be a package's, or the directory holds something already.
    """
    _check(name)
    root = parent / name
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigurationError(f"{root} is there already and not empty; nothing was written. Choose another name")
    try:
        return sorted(_write(files("leftfold.scaffold") / "template", root, name))
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}") from error


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot name a package: lower case letters, digits and _, such as 'shop'")
    if keyword.iskeyword(name) or name in sys.stdlib_module_names or name in _TAKEN:
        raise ConfigurationError(f"{name!r} means something else to Python; choose another name, such as 'my_{name}'")


def _write(template: Traversable, target: Path, name: str) -> list[Path]:
    if template.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        written = []
        for part in template.iterdir():
            if part.name != "__pycache__":
                written += _write(part, target / _named(part.name, name), name)
        return written
    target.write_text(template.read_text("utf-8").replace("{{name}}", name), "utf-8")
    return [target]


def _named(part: str, name: str) -> str:
    """A file's name in the project: `dot-gitignore.tmpl` is `.gitignore`, `__name__` is the package."""
    part = part.removesuffix(_SUFFIX)
    if part.startswith("dot-"):
        part = f".{part.removeprefix('dot-')}"
    return name if part == "__name__" else part
