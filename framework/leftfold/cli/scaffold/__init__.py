"""Writes the project of `leftfold new` from the templates in this folder."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Callable
from importlib.metadata import packages_distributions
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from leftfold.errors import ConfigurationError
from leftfold.version import __version__

__all__ = ["write_project"]


CATEGORY, _KEY = "carts", "cart"
"""The template's names: its category, and the name of one of its streams."""

_NAME = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?")  # a name that ends with _ is refused in pyproject.toml
_TAKEN = frozenset({"leftfold", "tests", "test"})
_USED_NAMES = frozenset(
    "app at command commands customer domain event events item price product quantity replace row".split()  # noqa: SIM905  # the list would take fifteen lines
)
_USED_CLASSES = frozenset(
    {"AddItem", "CheckOut", "Decider", "Decimal", "ItemAdded", "QuantityTooSmall", "Sequence", "WrongPrice"}
)
"""Names that the template uses for other things."""
_SUFFIX = ".tmpl"
_SHARED = (
    ".gitignore",
    "__name__/events/__init__.py",
    "__name__/projections/__init__.py",
    "__name__/services/__init__.py",
    "pyproject.toml",
)
"""Files of the template that a project without a domain also has."""


def write_project(name: str, parent: Path, *, category: str = "", key: str = "", empty: bool = False) -> list[Path]:
    """Writes the project into `parent/name` and returns its files.

    Args:
        category: name of the service and its category, instead of carts. key: name of one stream, with or without
            `_id`; '' = the category in the singular.
        empty: write an App without a domain.

    Raises:
        ConfigurationError: the name is no valid package name, or the directory exists and is not empty.
    """
    _check(name)
    rename = _renaming(category or CATEGORY, (key or _singular(category or CATEGORY)).removesuffix("_id"))
    root, templates = parent / name, files("leftfold.cli.scaffold")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConfigurationError(f"{root} is there already and not empty; nothing was written. Choose another name")
    found, app = _files(templates / "template"), f"{name}.services.{category or CATEGORY}.app"
    if empty:
        found = {path: found[path] for path in _SHARED} | _files(templates / "empty")
        app = f"{name}.app"
    written = []
    try:
        for path, text in found.items():
            target = root / rename(path).replace("__name__", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(
                rename(text).replace("{{app}}", app).replace("{{name}}", name).replace("{{version}}", __version__),
                "utf-8",
            )
            written.append(target)
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}") from error
    return sorted(written)


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot name a package: lower case letters, digits and _, such as 'shop'")
    # A project is the first place where Python looks, so it would hide a library of its name.
    taken = sys.stdlib_module_names | _TAKEN | packages_distributions().keys()
    if keyword.iskeyword(name) or name in taken:
        raise ConfigurationError(f"{name!r} means something else to Python; choose another name, such as 'my_{name}'")


def _renaming(category: str, key: str) -> Callable[[str], str]:
    """A function that replaces the template's names by these in a text."""
    capital = "".join(part.capitalize() for part in key.split("_"))
    for word in (category, key):
        if not _NAME.fullmatch(word) or keyword.iskeyword(word):
            raise ConfigurationError(f"{word!r} cannot be a name: lower case letters, digits and _, such as 'booking'")
        if word in _USED_NAMES or (word == key and capital in _USED_CLASSES):
            raise ConfigurationError(f"{word!r} is something else in the project that is written; choose another word")

    def replace_names(text: str) -> str:
        text = text.replace(CATEGORY, "\0").replace(_KEY, key).replace("Cart", capital).replace("\0", category)
        return re.sub(r"\bc-(?=[0-9])", f"{key[0]}-", text)

    return replace_names


def _singular(category: str) -> str:
    return category[:-1] if category.endswith("s") and len(category) > 1 else category


def _files(template: Traversable, above: str = "") -> dict[str, str]:
    """The text of every template file by its path in the project; `dot-gitignore.tmpl` becomes `.gitignore`."""
    found: dict[str, str] = {}
    for part in template.iterdir():
        name = part.name.removesuffix(_SUFFIX)
        path = above + (f".{name.removeprefix('dot-')}" if name.startswith("dot-") else name)
        if part.is_dir():
            found |= {} if name == "__pycache__" else _files(part, f"{path}/")
        else:
            found[path] = part.read_text("utf-8")
    return found
