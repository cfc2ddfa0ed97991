"""Checks of users' functions and unions: callable, not asynchronous, a `match` arm for every class."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Lock
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from leftfold.errors import ConfigurationError
from leftfold.model.messages import Command, Event

__all__ = ["check_function", "check_name", "checked", "flat", "is_name", "members", "missing_arms", "parse_source"]

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def is_name(text: str) -> bool:
    """Whether a text may be the name of an App or a part of one: it becomes part of topics and groups."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str, where: str, example: str) -> None:
    """Raises ConfigurationError unless an App or a part of one may have this name."""
    if not is_name(name):
        raise ConfigurationError(f"{where}: a name is lower case letters, digits, _ and -, such as {example!r}")


def check_function(function: Callable[..., object], where: str, *given: str) -> None:
    """Checks, before anything runs, that a user's function can be called with the given arguments.

    Args:
        where: the function's role, as in `process checkout: react`. given: the arguments, in order.

    Raises:
        ConfigurationError: it is no function, takes other arguments, or is asynchronous: the engine does not await it.
    """
    wanted = f"it is called as {where.rpartition(' ')[2]}({', '.join(given)})"
    if not callable(function):
        raise ConfigurationError(f"{where} is {function!r}, which is no function; {wanted}")
    for one in (function, getattr(function, "__call__", None)):  # noqa: B004  # an object may be called, too
        if inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one):
            raise ConfigurationError(
                f"{where} is async, and the engine does not await it; write def instead of async def"
            )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have no signature
        return
    try:
        signature.bind(*given)
    except TypeError as error:
        name = getattr(function, "__name__", repr(function))
        raise ConfigurationError(f"{where}: {name} takes {signature}; {wanted}") from error


M = TypeVar("M", bound=Event | Command)


def members(union: object, of: type[M], where: str) -> tuple[type[M], ...]:
    """The classes of a union, a single class or a type alias, in order.

    Raises:
        ConfigurationError: one of them is no concrete subclass of `of` with a category.
    """
    return checked(flat(union), of, where)


def checked(classes: Iterable[Any], of: type[M], where: str) -> tuple[type[M], ...]:
    """The given classes, each once, after a check.

    Raises:
        ConfigurationError: one of them is no concrete subclass of `of` with a category.
    """
    found = list(classes)
    for cls in found:
        if not (isinstance(cls, type) and issubclass(cls, of)):
            union = "; write a union, as in A | B" if isinstance(cls, (list, tuple, set, str)) else ""
            raise ConfigurationError(f"{where}: {cls!r} is no subclass of {of.__name__}{union}")
        if not cls.__leftfold__.category:
            raise ConfigurationError(f"{where}: {cls.__name__} has no category; give its class category= and key=")
    return tuple(dict.fromkeys(found))


def flat(union: object) -> Iterator[Any]:
    """The members of a union, a type alias or an annotated type; any other type is its only member."""
    if hasattr(union, "__value__"):
        union = union.__value__
    if get_origin(union) is Annotated:
        union = get_args(union)[0]
    if get_origin(union) in (Union, UnionType):
        for member in get_args(union):
            yield from flat(member)
    else:
        yield union


_parsing = Lock()


def parse_source(source: str) -> ast.Module:
    """The syntax tree of a module, for one thread at a time.

    CPython 3.11 counts the depth of all threads that parse in one number, and fails when they meet (gh-106905).
    """
    with _parsing:
        return ast.parse(source)


def missing_arms(function: Callable[..., Any], argument: int, classes: Sequence[type]) -> tuple[str, ...]:
    """The names of classes for which the function's `match` on one argument has no arm.

    A function without source, without such a match, or with a catch-all arm counts as complete.
    """
    try:
        tree = parse_source(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ()
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        return ()
    taken = [*node.args.posonlyargs, *node.args.args][inspect.ismethod(function) :]  # a bound method is given self
    if len(taken) <= argument:
        return ()
    name = taken[argument].arg
    named: set[str] = set()
    found = False
    for match in ast.walk(node):
        if isinstance(match, ast.Match) and isinstance(match.subject, ast.Name) and match.subject.id == name:
            found = True
            for case in match.cases:
                arms = _names(case.pattern)
                if arms is None:
                    return ()
                named |= arms
    names = _resolved(function, named)
    return tuple(c.__name__ for c in classes if not any(issubclass(c, n) for n in names)) if found else ()


def _names(pattern: ast.pattern) -> set[str] | None:
    match pattern:
        case ast.MatchClass(cls=cls):
            return {ast.unparse(cls)}
        case ast.MatchOr(patterns=patterns):
            arms = [_names(p) for p in patterns]
            return None if None in arms else {n for arm in arms if arm is not None for n in arm}
        case ast.MatchAs(pattern=inner):
            return None if inner is None else _names(inner)
        case _:
            return set()


def _resolved(function: Callable[..., Any], names: set[str]) -> list[type]:
    scope = {**getattr(function, "__globals__", {}), **_nonlocals(function)}
    found = []
    for name in names:
        value: Any = scope.get(name.split(".")[0])
        for part in name.split(".")[1:]:
            value = getattr(value, part, None)
        if isinstance(value, type):
            found.append(value)
    return found


def _nonlocals(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables of enclosing functions; those that have no value yet are left out."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found
