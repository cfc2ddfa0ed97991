"""The project that `leftfold new` writes, from the templates in this folder."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from leftfold.errors import ConfigurationError

__all__ = ["write_project"]


CATEGORY, _KEY = "carts", "cart"
"""The words of the template: its category, and what one of its streams is called."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = frozenset({"leftfold", "tests", "test"})
_WORDS = frozenset({"app", "command", "commands", "customer", "domain", "event", "events", "item", "product", "row"})
"""What the template calls something else."""
_SUFFIX = ".tmpl"
_SHARED = (
    ".gitignore",
    "__name__/events/__init__.py",
    "__name__/projections/__init__.py",
    "__name__/services/__init__.py",
    "pyproject.toml",
)
"""What a project without a domain has, too."""


def write_project(name: str, parent: Path, *, category: str = "", key: str = "", empty: bool = False) -> list[Path]:
    """Writes the project into `parent/name` and returns its files.

    Args:
        category: what its service is called, instead of carts. key: what one of its streams is called, with or without
            `_id`; else the category in the singular.
        empty: without a domain, an App to be filled.

    Raises:
        ConfigurationError: the name cannot be a package's, or the directory holds something already.
    """
    _check(name)
    worded = _worded(category or CATEGORY, (key or _singular(category or CATEGORY)).removesuffix("_id"))
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
            target = root / worded(path).replace("__name__", name)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(worded(text).replace("{{app}}", app).replace("{{name}}", name), "utf-8")
            written.append(target)
    except OSError as error:
        raise ConfigurationError(f"{error.filename} cannot be written: {error.strerror}") from error
    return sorted(written)


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"{name!r} cannot name a package: lower case letters, digits and _, such as 'shop'")
    if keyword.iskeyword(name) or name in sys.stdlib_module_names or name in _TAKEN:
        raise ConfigurationError(f"{name!r} means something else to Python; choose another name, such as 'my_{name}'")


def _worded(category: str, key: str) -> Callable[[str], str]:
    """What puts these words in place of the template's.

    Raises:
        ConfigurationError: one cannot be a name in Python, or is that of something else there.
    """
    for word in (category, key):
        if not _NAME.fullmatch(word) or keyword.iskeyword(word):
            raise ConfigurationError(f"{word!r} cannot be a name: lower case letters, digits and _, such as 'booking'")
        if word in _WORDS:
            raise ConfigurationError(f"{word!r} is something else in the project that is written; choose another word")
    capital = "".join(part.capitalize() for part in key.split("_"))

    def put(text: str) -> str:
        text = text.replace(CATEGORY, "\0").replace(_KEY, key).replace("Cart", capital).replace("\0", category)
        return re.sub(r"\bc-(?=[0-9])", f"{key[0]}-", text)

    return put


def _singular(category: str) -> str:
    return category[:-1] if category.endswith("s") and len(category) > 1 else category


def _files(template: Traversable, above: str = "") -> dict[str, str]:
    """The text of every file by its path in the project; `dot-gitignore.tmpl` is `.gitignore`."""
    found: dict[str, str] = {}
    for part in template.iterdir():
        name = part.name.removesuffix(_SUFFIX)
        path = above + (f".{name.removeprefix('dot-')}" if name.startswith("dot-") else name)
        if part.is_dir():
            found |= {} if name == "__pycache__" else _files(part, f"{path}/")
        else:
            found[path] = part.read_text("utf-8")
    return found
