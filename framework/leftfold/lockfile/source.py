"""The syntax of functions and classes, found in their files and written down without what changes no meaning."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FunctionType

from leftfold.errors import ConfigurationError

__all__ = ["Sources", "canonical", "spoken"]

# What a checker reads and nobody else; `type_params` is new in 3.12, and hashes must not depend on the interpreter.
_SILENT = frozenset({"returns", "type_comment", "kind", "ctx", "type_params"})


class Sources:
    """Finds the syntax tree of a function or class; each file is parsed once."""

    def __init__(self) -> None:
        self._trees: dict[str, ast.Module] = {}

    def of(self, thing: FunctionType | type) -> Sequence[ast.AST]:
        """The thing's nodes: one, or every lambda of its line, which cannot be told apart.

        Raises:
            ConfigurationError: its source cannot be read.
        """
        try:
            file = inspect.getsourcefile(thing)
            tree = self._tree(file or "")
        except (OSError, TypeError, SyntaxError) as error:
            raise ConfigurationError(
                f"the source of {thing.__module__}.{thing.__qualname__} cannot be read ({error}); "
                f"leftfold.lock needs it, so define it in a file"
            ) from error
        found = _class(tree, thing) if isinstance(thing, type) else _function(tree, thing)
        if not found:
            raise ConfigurationError(f"{thing.__module__}.{thing.__qualname__} is not where {file} says; save the file")
        return found

    def _tree(self, file: str) -> ast.Module:
        if file not in self._trees:
            self._trees[file] = ast.parse(Path(file).read_text("utf-8"))
        return self._trees[file]


def canonical(node: object) -> str:
    """A node as text: no positions, docstrings, comments or annotations of arguments; equal for every Python."""
    if isinstance(node, list):
        return f"[{','.join(map(canonical, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    parts = [f"{name}={canonical(_undocumented(node, name, value))}" for name, value in _fields(node)]
    return f"{type(node).__name__}({','.join(parts)})"


def spoken(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all those within it that `canonical` writes down."""
    yield node
    for _, value in _fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from spoken(child)


def _fields(node: ast.AST) -> list[tuple[str, object]]:
    return [
        (name, value)
        for name, value in ast.iter_fields(node)
        if value is not None and value != [] and name not in _SILENT
        if not (isinstance(node, ast.arg) and name == "annotation")
    ]


def _undocumented(node: ast.AST, name: str, value: object) -> object:
    if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        match value:
            case [ast.Expr(value=ast.Constant(value=str())), *rest]:
                return rest
    return value


def _function(tree: ast.Module, function: FunctionType) -> Sequence[ast.AST]:
    line, name = function.__code__.co_firstlineno, function.__code__.co_name
    if name == "<lambda>":
        return [node for node in ast.walk(tree) if isinstance(node, ast.Lambda) and node.lineno == line]
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if node.name == name and line in {node.lineno, *(d.lineno for d in node.decorator_list)}
    ]


def _class(tree: ast.Module, cls: type) -> Sequence[ast.AST]:
    nodes: list[ast.AST] = [tree]
    for name in cls.__qualname__.split("."):
        inside = [child for node in nodes for child in ast.walk(node)]
        wanted = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        if name != "<locals>":
            nodes = [node for node in inside if isinstance(node, wanted) and node.name == name]
    return [node for node in nodes if isinstance(node, ast.ClassDef)][:1]
