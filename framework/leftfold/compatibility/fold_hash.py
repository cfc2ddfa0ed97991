"""The hash of a fold: of its function and of every function and class of the user that it uses."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import logging
import re
import sys
import sysconfig
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property, partial, singledispatchmethod
from hashlib import blake2b
from pathlib import Path
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType, SimpleNamespace, UnionType
from typing import Any, get_args

from pydantic import BaseModel

from leftfold.errors import ConfigurationError
from leftfold.model.messages import Command, Event, with_parts
from leftfold.model.typing import parse_source

__all__ = ["fold_hash"]


# Only type checkers read these; `type_params` is new in 3.12, and hashes must not depend on the interpreter.
_SILENT = frozenset({"returns", "type_comment", "kind", "ctx", "type_params"})


class SourceTrees:
    """The syntax trees of functions and classes; each file is parsed once."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module] = {}

    def of(self, thing: FunctionType | type) -> Sequence[ast.AST]:
        """The nodes of a function or class: one, or every lambda of its line, since they cannot be distinguished.

        Raises:
            ConfigurationError: its source cannot be read.
        """
        try:
            file = inspect.getsourcefile(thing) or ""
            if file not in self._trees:
                self._trees[file] = parse_source(Path(file).read_text("utf-8"))
            tree = self._trees[file]
        except (OSError, TypeError, SyntaxError) as error:
            raise ConfigurationError(
                f"the source of {thing.__module__}.{thing.__qualname__} cannot be read ({error}); "
                f"leftfold.lock needs it, so define it in a file"
            ) from error
        found = _class(tree, thing) if isinstance(thing, type) else _function(tree, thing)
        if not found:
            raise ConfigurationError(f"{thing.__module__}.{thing.__qualname__} is not where {file} says; save the file")
        return found


def canonical(node: object) -> str:
    """A node as text: no positions, docstrings, comments or annotations of arguments; equal for every Python."""
    if isinstance(node, list):
        return f"[{','.join(map(canonical, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = [f"{name}={canonical(_undocumented(node, name, value))}" for name, value in _fields(node)]
    return f"{type(node).__name__}({','.join(parts)})"


def spoken(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all nodes within it that `canonical` writes."""
    yield node
    for _, value in _fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from spoken(child)


def _fields(node: ast.AST) -> list[tuple[str, object]]:
    silent = _SILENT | {"annotation"} if isinstance(node, ast.arg) else _SILENT
    found = [(name, value) for name, value in ast.iter_fields(node) if name not in silent]
    return [(name, value) for name, value in found if value is not None and value != []]


def _undocumented(node: ast.AST, name: str, value: object) -> object:
    if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.body if ast.get_docstring(node, clean=False) is None else node.body[1:]
    return value


def _function(tree: ast.Module, function: FunctionType) -> Sequence[ast.AST]:
    line, name = function.__code__.co_firstlineno, function.__code__.co_name
    if name == "<lambda>":
        return [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == line]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    named = [node for node in functions if node.name == name]
    return [node for node in named if line in {node.lineno, *(d.lineno for d in node.decorator_list)}]


def _class(tree: ast.Module, cls: type) -> Sequence[ast.AST]:
    nodes: list[ast.AST] = [tree]
    for name in cls.__qualname__.split("."):
        inside = [child for node in nodes for child in ast.walk(node)]
        wanted = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if name != "<locals>":
            nodes = [node for node in inside if isinstance(node, wanted) and node.name == name]
    return [node for node in nodes if isinstance(node, ast.ClassDef)][:1]


_INSTALLED = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_OURS = Path(__file__).parents[1]


def fold_hash(*roots: object) -> str:
    """The hash of a fold: sixteen hex digits over functions, classes and values, and those of their package they name.

    A comment, a docstring or a type annotation changes nothing; a constant or a helper two calls away does. The fields
    of an event are not part of it, since its schema is recorded separately, but its upcasts, methods and constants are,
    and those of the classes in its fields; of the object or class that a method is bound to, what its code names.
    """
    reach = _Reach({_package(root) for root in roots})
    for root in roots:
        reach.visit(root)
    return blake2b("\n".join(sorted(reach.texts)).encode(), digest_size=8).hexdigest()


class _Reach:
    """The functions, classes and values that the roots reach, as texts."""

    def __init__(self, packages: set[str]) -> None:
        self.texts: set[str] = set()
        self._packages, self._sources = packages - {""}, SourceTrees()
        self._seen: set[Hashable] = set()
        self._kept: list[object] = []

    def visit(self, thing: object, name: str = "", owner: object = None) -> None:
        """Adds a value and its parts; the owner is what a function is bound to."""
        if isinstance(thing, str | bytes | int | float | complex | None):
            self.texts.add(f"{name}={thing!r}")
            return
        seen = id(thing) if owner is None else (id(thing), id(owner))
        if seen in self._seen:
            return
        self._seen.add(seen)
        self._kept += thing, owner  # an id is only unique while its owner lives
        if not isinstance(thing, type):
            # A function behind decorators, of libraries too, and what `singledispatch` chooses from.
            if (inner := inspect.getattr_static(thing, "__wrapped__", None)) is not None:
                self.visit(inner, name, owner)
            if isinstance(thing, FunctionType) and isinstance(choices := getattr(thing, "registry", None), Mapping):
                self.visit(list(choices.values()), name)
        match thing:
            case MethodType():
                self.visit(thing.__func__, owner=thing.__self__)
            case partial():
                for part in (thing.func, thing.args, thing.keywords):
                    self.visit(part, name)
            case FunctionType() | type():
                self._code(thing, owner)
            case _:
                self._value(thing, name)

    def _code(self, thing: FunctionType | type, owner: object = None) -> None:
        if not self._is_users(thing):
            return
        if isinstance(thing, type) and issubclass(thing, Event):
            self.visit(list(thing.__leftfold__.upcasts.values()))
        if isinstance(thing, type) and issubclass(thing, Event | Command):
            parts = [part for cls in _classes_in(thing) if self._is_users(cls) for part in self._methods(cls)]
        elif (generic := getattr(thing, "__pydantic_generic_metadata__", {})).get("origin"):
            self.visit([generic["origin"], *generic["args"]])
            parts = []
        else:
            parts = [(node, _scope(thing)) for node in self._sources.of(thing)]
        for part, scope in parts:
            self.texts.add(canonical(part))
            held = () if owner is None else _held(part, owner)
            for name, value in (*_named(part, scope), *_named(part, self._imports(part, scope)), *held):
                self.visit(value, name)

    def _imports(self, node: ast.AST, scope: Mapping[str, Any]) -> dict[str, Any]:
        """What a function imports itself from modules of users, by the names that it gives it."""
        found: dict[str, Any] = {}
        for child in spoken(node):
            if isinstance(child, ast.ImportFrom):
                where = "." * child.level + (child.module or "")
                module, begin = self._module(where, scope), where if where.endswith(".") else f"{where}."
                for alias in child.names if module is not None else ():
                    inside = None if hasattr(module, alias.name) else self._module(begin + alias.name, scope)
                    found[alias.asname or alias.name] = getattr(module, alias.name, inside)
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    module, top = self._module(alias.name, scope), alias.name.partition(".")[0]
                    found[alias.asname or top] = module if alias.asname else module and sys.modules[top]
        return {name: value for name, value in found.items() if value is not None}

    def _module(self, name: str, scope: Mapping[str, Any]) -> ModuleType | None:
        try:
            full = importlib.util.resolve_name(name, scope.get("__package__") or "")
            return importlib.import_module(full) if self._is_users(full.partition(".")[0]) else None
        except (Exception, SystemExit) as error:  # a hash without it would be another one than where it can be imported
            raise ConfigurationError(
                f"{name}, which a function of {scope.get('__name__')} imports, cannot be imported here "
                f"({type(error).__name__}: {error}); leftfold.lock needs it, so install what it needs"
            ) from error

    def _methods(self, cls: type) -> list[tuple[ast.AST, dict[str, Any]]]:
        """What a class has beside its fields; nothing where it has no source, as a generic class with its arguments."""
        try:
            (node,) = self._sources.of(cls)
        except ConfigurationError:
            return []
        return [(child, _scope(cls)) for child in ast.iter_child_nodes(node) if _is_no_field(child, cls)]

    def _value(self, thing: object, name: str) -> None:
        parts = _parts(thing)
        if parts is None:
            self.texts.add(f"{name}={_text(thing)}")
            parts = _behind(thing)
        ordered = not isinstance(thing, set | frozenset)
        for number, part in enumerate(parts):
            self.visit(part, f"{name}.{number}" if ordered else name)

    def _is_users(self, thing: FunctionType | type | str) -> bool:
        top = thing if isinstance(thing, str) else _package(thing)
        if top in self._packages:
            return True
        if top in sys.stdlib_module_names or top in ("", "builtins", "leftfold"):
            return False
        try:
            file = _origin(top) if isinstance(thing, str) else inspect.getsourcefile(thing) or ""
        except TypeError:
            return False
        return file is not None and not any(Path(file).is_relative_to(place) for place in (*_INSTALLED, _OURS))


def _origin(module: str) -> str | None:
    """The file or folder of a module; None for one that is not here, which may be a library that is not installed."""
    spec = importlib.util.find_spec(module)
    return next(iter(spec.submodule_search_locations or [spec.origin or ""])) if spec is not None else None


def _parts(thing: object) -> list[object] | None:
    """What a value consists of; None for a value that only its text describes."""
    if isinstance(thing, UnionType) or get_args(thing):
        return list(get_args(thing))
    if isinstance(thing, Mapping):
        return [part for pair in thing.items() for part in pair]
    if isinstance(thing, tuple | list | set | frozenset):
        return list(thing)
    if isinstance(thing, ModuleType):
        return []
    if dataclasses.is_dataclass(thing):
        return [type(thing), *(getattr(thing, part.name, None) for part in dataclasses.fields(thing))]
    if isinstance(thing, BaseModel):
        return [type(thing), *vars(thing).values()]
    if isinstance(thing, SimpleNamespace):  # its text has sets in an order of its process, as that of a class of attrs
        return [type(thing), *vars(thing).items()]
    if fields := getattr(type(thing), "__attrs_attrs__", ()):
        return [type(thing), *(getattr(thing, part.name, None) for part in fields)]
    return None


def _text(thing: object) -> str:
    """A value as text, without what differs from run to run: addresses, and the level of a logger."""
    if isinstance(thing, Enum):
        return f"{type(thing).__name__}.{thing.name}"
    if isinstance(thing, logging.Logger | logging.LoggerAdapter):
        return f"<{type(thing).__name__} {thing.name} (WARNING)>"  # its text in a process that sets no level
    try:
        text = repr(thing) if type(thing).__repr__ is not object.__repr__ else f"<{type(thing).__name__} object>"
        return _ADDRESS.sub("", text)  # an object that has no other text is no value
    except Exception:  # noqa: BLE001  # __repr__ of users raises what it likes
        return f"<{type(thing).__name__}>"


def _package(thing: object) -> str:
    found = thing if isinstance(thing, FunctionType | type) else type(thing)
    top = found.__module__.split(".")[0]
    return "" if top in ("leftfold", "builtins") or top in sys.stdlib_module_names else top


def _scope(thing: FunctionType | type) -> dict[str, Any]:
    if isinstance(thing, type):
        return dict(vars(sys.modules.get(thing.__module__, thing)))
    cells = dict(zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False))
    return {**thing.__globals__, **{name: cell.cell_contents for name, cell in cells.items()}}


def _classes_in(message: type[Event | Command]) -> list[type]:
    """The class of a message and the classes in its fields, at every depth, with their bases."""
    found: dict[type, None] = {}

    def add(schema: Any) -> None:
        if isinstance(schema, Mapping) and isinstance(cls := schema.get("cls"), type):
            found.update(dict.fromkeys(cls.__mro__))
        with_parts(schema, add)

    add(message.__pydantic_core_schema__)
    return list(found)


def _is_no_field(node: ast.AST, cls: type) -> bool:
    """Whether a part of a class is in no schema: methods and constants, but no fields and no members of an enum."""
    if isinstance(node, ast.AnnAssign):
        return "ClassVar" in ast.unparse(node.annotation)
    if isinstance(node, ast.Assign):
        return not issubclass(cls, Enum)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _named(node: ast.AST, scope: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """The values of the names in a node, through modules: `rules.limit` as well as `limit`."""
    for child in spoken(node):
        if isinstance(child, ast.Name) and child.id in scope:
            yield child.id, scope[child.id]
        elif isinstance(child, ast.Attribute):
            value = _dotted(child, scope, _of_module)
            if value is not None:
                yield child.attr, value


def _dotted(node: ast.expr, scope: Mapping[str, Any], read: Callable[[object, str], object]) -> object | None:
    if isinstance(node, ast.Name):
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _dotted(node.value, scope, read)
        return None if owner is None else read(owner, node.attr)
    return None


def _held(node: ast.AST, owner: object) -> Iterator[tuple[str, object]]:
    """The values that a method names of the object or class that it is bound to."""
    arguments = getattr(node, "args", None)
    if not isinstance(arguments, ast.arguments) or not (taken := [*arguments.posonlyargs, *arguments.args]):
        return
    own, nodes = taken[0].arg, list(spoken(node))
    holders = {id(child.value) for child in nodes if isinstance(child, ast.Attribute)}
    for child in nodes:
        if isinstance(child, ast.Attribute):
            described = _described(value := _dotted(child, {own: owner}, _attribute))
            if value is not None and (described is value or id(child) not in holders):
                yield child.attr, described
        elif isinstance(child, ast.Name) and child.id == own and id(child) not in holders:
            yield own, _described(owner)
        elif isinstance(child, ast.Name) and child.id == "super":
            yield from (("super", base) for base in _class_of(owner).__mro__[1:])


def _of_module(owner: object, name: str) -> Any:
    return getattr(owner, name, None) if isinstance(owner, ModuleType) else None


def _attribute(owner: object, name: str) -> Any:
    """An attribute of an object or class, found without running code of that class."""
    if isinstance(owner, ModuleType):
        return getattr(owner, name, None)
    found: Any = inspect.getattr_static(owner, name, None)
    of_class = inspect.getattr_static(_class_of(owner), name, None)
    # The value of a cached_property is in the object only once it was read.
    return _bound(of_class, owner) if found is of_class or isinstance(of_class, cached_property) else found


def _bound(found: Any, owner: object) -> Any:
    """What a class has under a name, as an object of it or the class itself gets it."""
    if isinstance(found, singledispatchmethod):
        return [_bound(choice, owner) for choice in found.dispatcher.registry.values()]
    if isinstance(found, staticmethod | classmethod):
        return found.__func__ if isinstance(found, staticmethod) else MethodType(found.__func__, _class_of(owner))
    if isinstance(owner, type):
        return found
    if isinstance(found, MemberDescriptorType):
        return getattr(owner, found.__name__, None)
    if isinstance(found, property | cached_property):
        found = found.fget if isinstance(found, property) else found.func
    is_function = isinstance(found, FunctionType) or inspect.getattr_static(found, "__wrapped__", None) is not None
    return MethodType(found, owner) if is_function else found


def _class_of(thing: object) -> type:
    return thing if isinstance(thing, type) else type(thing)


def _described(value: object) -> object:
    """The value, or what is behind it where its text is such as <unlocked lock>, which may differ between processes."""
    try:
        is_whole = isinstance(value, FunctionType | MethodType | partial | type) or _parts(value) is not None
        return value if is_whole or not _text(value).startswith("<") else _behind(value)
    except Exception:  # noqa: BLE001  # items() of users, too
        return type(value)


def _behind(value: object) -> list[object]:
    """What an object does beside its fields: its class, the function that calls it, and the one that it wraps."""
    call, inner = _attribute(value, "__call__"), inspect.getattr_static(value, "__wrapped__", None)
    return [type(value), *([call] if isinstance(call, MethodType) else []), *([] if inner is None else [inner])]
