"""A hash of a fold: of its function and of everything of the user's own that it reaches."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import FunctionType, MethodType, ModuleType, UnionType
from typing import Any, get_args

from pydantic import BaseModel

from leftfold.lockfile.source import Sources, canonical, spoken
from leftfold.messages import Command, Event

__all__ = ["fold_hash"]

_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OURS = Path(__file__).parents[1]


def fold_hash(*roots: object) -> str:
    """Sixteen hex digits over functions, classes and values, and over those of their own package that they name.

    A comment, a docstring or a type annotation changes nothing; a constant or a helper two calls away does. What an
    event looks like is not in it, since its schema is recorded apart, but its methods are.
    """
    reach = _Reach({_package(root) for root in roots})
    for root in roots:
        reach.visit(root)
    return blake2b("\n".join(sorted(reach.texts)).encode(), digest_size=8).hexdigest()


class _Reach:
    """Everything seen from the roots, as texts."""

    def __init__(self, packages: set[str]) -> None:
        self.texts: set[str] = set()
        self._packages, self._sources = packages - {""}, Sources()
        self._seen: set[int] = set()
        self._kept: list[object] = []

    def visit(self, thing: object, name: str = "") -> None:
        """Takes in a value and what it is made of."""
        if isinstance(thing, str | bytes | int | float | complex | None):
            self.texts.add(f"{name}={thing!r}")
            return
        if id(thing) in self._seen:
            return
        self._seen.add(id(thing))
        # An id is only unique while its owner lives.
        self._kept.append(thing)
        match thing:
            case MethodType():
                self.visit(thing.__func__)
            case partial():
                for part in (thing.func, thing.args, thing.keywords):
                    self.visit(part, name)
            case FunctionType() | type():
                self._code(thing)
            case _:
                self._value(thing, name)

    def _code(self, thing: FunctionType | type) -> None:
        if not self._is_users(thing):
            return
        scope = _scope(thing)
        for node in self._sources.of(thing):
            parts = _methods(node) if isinstance(thing, type) and issubclass(thing, Event | Command) else [node]
            for part in parts:
                self.texts.add(canonical(part))
                for name, value in _named(part, scope):
                    self.visit(value, name)

    def _value(self, thing: object, name: str) -> None:
        if isinstance(thing, UnionType) or get_args(thing):
            parts: list[object] = list(get_args(thing))
        elif isinstance(thing, Mapping):
            parts = [part for pair in thing.items() for part in pair]
        elif isinstance(thing, tuple | list | set | frozenset):
            parts = list(thing)
        elif isinstance(thing, ModuleType):
            return
        elif isinstance(thing, BaseModel) or dataclasses.is_dataclass(thing):
            parts = [type(thing), *vars(thing).values()]
        else:
            text = f"{type(thing).__name__}.{thing.name}" if isinstance(thing, Enum) else repr(thing)
            # Addresses differ from run to run, and what has no other text is no value.
            self.texts.add(f"{name}={_ADDRESS.sub('', text)}")
            parts = [type(thing)]
        ordered = not isinstance(thing, set | frozenset)
        for number, part in enumerate(parts):
            self.visit(part, f"{name}.{number}" if ordered else name)

    def _is_users(self, thing: FunctionType | type) -> bool:
        top = _package(thing)
        if top in self._packages:
            return True
        if top in sys.stdlib_module_names or top in ("", "builtins"):
            return False
        try:
            file = Path(inspect.getsourcefile(thing) or "")
        except TypeError:
            return False
        return not any(file.is_relative_to(place) for place in (*_INSTALLED, _OURS))


def _package(thing: object) -> str:
    found = thing if isinstance(thing, FunctionType | type) else type(thing)
    top = found.__module__.split(".")[0]
    return "" if top in ("leftfold", "builtins") or top in sys.stdlib_module_names else top


def _scope(thing: FunctionType | type) -> dict[str, Any]:
    if isinstance(thing, type):
        return dict(vars(sys.modules.get(thing.__module__, thing)))
    cells = dict(zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False))
    return {**thing.__globals__, **{name: cell.cell_contents for name, cell in cells.items()}}


def _methods(node: ast.AST) -> list[ast.AST]:
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.FunctionDef)]


def _named(node: ast.AST, scope: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The values that the names in a node stand for, through modules: `rules.limit` as well as `limit`."""
    for child in spoken(node):
        if isinstance(child, ast.Name) and child.id in scope:
            yield child.id, scope[child.id]
        elif isinstance(child, ast.Attribute):
            value = _dotted(child, scope)
            if value is not None:
                yield child.attr, value


def _dotted(node: ast.expr, scope: Mapping[str, Any]) -> object | None:
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, scope)
        return getattr(owner, node.attr, None) if isinstance(owner, ModuleType) else None
    return None
