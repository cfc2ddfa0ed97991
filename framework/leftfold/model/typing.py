"""Checks of users' functions and types: callable, an arm of `match` for every class of a union, storable types."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import filterfalse
from threading import Lock
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import BaseModel, RootModel
from pydantic_core import SchemaSerializer, SchemaValidator

from leftfold.errors import ConfigurationError
from leftfold.model.messages import Command, Event, parts_in, with_parts
from leftfold.safety import shown

__all__ = [
    "bare_type", "check_function", "check_name", "check_stored_type", "checked", "flat", "has_exact_members",
    "has_exact_value", "is_name", "is_record", "members", "missing_arms", "parse_source", "record_fields",
]  # fmt: skip

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

    A function counts as complete without source, without such a match, with a catch-all arm, or with an arm for a name
    of its own, such as one that it imports itself. Of a decorated function it is the function behind its decorators.
    """
    try:
        tree = parse_source(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ()
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        return ()
    inner = inspect.unwrap(function)
    is_bound = inspect.ismethod(function) or inspect.ismethod(inner)  # it is given self
    taken = [*node.args.posonlyargs, *node.args.args][is_bound:]
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
    names = _resolved(inner, named)
    if not found or names is None:
        return ()
    return tuple(c.__name__ for c in classes if not any(issubclass(c, n) for n in names))


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


def _resolved(function: Callable[..., Any], names: set[str]) -> list[type] | None:
    """The classes of these names; None where one is known only while the function runs."""
    nonlocals, code = _nonlocals(function), getattr(function, "__code__", None)
    own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars} - nonlocals.keys() if code is not None else set()
    scope = {**getattr(function, "__globals__", {}), **nonlocals}
    found = []
    for name in names:
        if name.split(".")[0] in own:
            return None
        value: Any = scope.get(name.split(".")[0])
        for part in name.split(".")[1:]:
            value = getattr(value, part, None)
        if isinstance(value, type):
            found.append(value)
    return found


def _nonlocals(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables of enclosing functions; those that have no value yet are left out."""
    found = {}
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _is_exact_for(schema: Any, config: Any = None) -> Callable[[object], bool]:
    """A test of values: whether pydantic reads one as it writes it, both with this schema."""
    writer, reader = SchemaSerializer(schema, config), SchemaValidator(schema, config)

    def is_exact(value: object) -> bool:
        try:
            return bool(reader.validate_json(writer.to_json(value, warnings=False)) == value)
        except Exception:  # noqa: BLE001  # the code of an Enum raises what it likes
            return False

    return is_exact


_EMPTY = (tuple, list, dict, str, int, bool, Decimal)
"""Factories whose values are known."""


def has_exact_value(schema: Any, config: Any) -> bool:
    """Whether a default is read as it is written: pydantic validates none by itself, and a factory may make anything.

    Args:
        schema: the `default` schema of a field. config: that of its class.
    """
    if schema.get("validate_default", config.get("validate_default")):
        return True
    factory = schema.get("default_factory")
    if factory not in (None, *_EMPTY):
        return False
    return _is_exact_for(schema["schema"], config)(schema["default"] if factory is None else factory())


_OWN_READERS = ("function-before", "function-wrap", "function-plain")


def has_exact_members(schema: Any, where: str) -> bool:
    """Whether members of Enums and Literals are read as they are written; if not, code of users may still read them.

    Raises:
        ConfigurationError: one is not, and no such code reads it; a tuple, a Decimal or a date in JSON is no member of
            a plain Enum.
    """
    found = list(_inexact_members(schema))
    for value in (value for value, is_own in found if not is_own):
        raise ConfigurationError(
            f"{where}: {shown(value)} would not be read as it is written; use an Enum of texts or whole numbers, "
            f"and in a Literal a StrEnum, an IntEnum or the value itself"
        )
    return not found


def _inexact_members(schema: Any, *, is_own: bool = False, union: Any = None) -> Iterator[tuple[object, bool]]:
    """Members of Enums and Literals that are not read as they are written, and whether code of users is around them.

    Args:
        union: the union of which the schema is a choice, and which reads it then.
    """
    parts: list[Any] = []
    type_ = schema.get("type") if isinstance(schema, dict) else None
    if isinstance(type_, str):
        is_own = is_own or type_ in _OWN_READERS or "serialization" in schema
    if type_ in ("enum", "literal"):
        values = schema["members" if type_ == "enum" else "expected"]
        for reader in (schema, union):
            if values and reader:
                values = list(filterfalse(_is_exact_for(reader), values))
        yield from ((value, is_own) for value in values)
    if type_ in ("nullable", "union"):
        union = union or (None if parts_in(schema, ("definition-ref",)) else schema)
    elif isinstance(type_, str):
        union = None
    with_parts([schema["json_schema"]] if type_ == "json-or-python" else schema, parts.append)
    for part in parts:
        yield from _inexact_members(part, is_own=is_own, union=union)


def is_record(type_: object) -> bool:
    """Whether the type is a dataclass or a pydantic model, that is, has named fields."""
    return isinstance(type_, type) and (dataclasses.is_dataclass(type_) or issubclass(type_, BaseModel))


def record_fields(type_: type) -> dict[str, Any]:
    """The fields of a dataclass or model with their resolved types, in order."""
    hints = get_type_hints(type_, include_extras=True)
    if issubclass(type_, BaseModel):
        generics = [getattr(base, "__pydantic_generic_metadata__", {}) for base in type_.__mro__]
        has_arguments = any(generic.get("args") for generic in generics)  # its fields know them, its annotations do not
        fields = type_.model_fields.items()
        return {name: field.rebuild_annotation() if has_arguments else hints[name] for name, field in fields}
    return {field.name: hints[field.name] for field in dataclasses.fields(type_)}  # type: ignore[arg-type]  # it is one


def bare_type(type_: Any) -> Any:
    """The type behind a type alias or a NewType; any other type as it is."""
    while hasattr(type_, "__value__") or hasattr(type_, "__supertype__"):
        type_ = type_.__value__ if hasattr(type_, "__value__") else type_.__supertype__
    return type_


_SCALARS = (str, int, bool, Decimal, datetime, date, time, timedelta, UUID, NoneType)


def check_stored_type(type_: Any, where: str) -> None:
    """Checks that values of a type can be stored as state, rows or a part of them.

    Raises:
        ConfigurationError: the type, or one inside it, cannot be stored; the message names where and why.
    """
    _check(type_, where, set())


def _check(type_: Any, where: str, seen: set[type]) -> None:
    origin, args = get_origin(type_), get_args(type_)
    if hasattr(type_, "__value__"):
        _check(type_.__value__, where, seen)
    elif origin is Annotated:
        _check(args[0], where, seen)
    elif origin in (Union, UnionType):
        _check_union(args, where)
        for arg in args:
            _check(arg, where, seen)
    elif origin in (tuple, frozenset):
        for arg in args:
            if arg is not Ellipsis:
                _check(arg, where, seen)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        _check_mapping(type_, where, seen)
    elif is_record(type_):
        _check_record(type_, where, seen)
    elif origin in (list, set):
        raise ConfigurationError(f"{where}: {type_} can be changed in place; use tuple[...] or frozenset[...]")
    elif not (type_ in _SCALARS or origin is Literal or (isinstance(type_, type) and issubclass(type_, Enum))):
        raise ConfigurationError(
            f"{where}: {getattr(type_, '__name__', type_)} cannot be stored; use frozen dataclasses (or frozen "
            f"models) of str, int, bool, Decimal, aware datetime, date, UUID, Enum, X | None, tuples, frozensets, "
            f"mappings and such dataclasses{_hint(type_)}"
        )


def _check_mapping(type_: Any, where: str, seen: set[type]) -> None:
    for arg in get_args(type_):
        _check(arg, where, seen)
    if not all(map(_is_key, get_args(type_)[:1])):
        raise ConfigurationError(
            f"{where}: the keys of {type_} would not be read as they are written; use keys of str, int, Decimal, "
            f"date, datetime, UUID or an Enum of texts, or a tuple of pairs"
        )


def _is_key(type_: Any) -> bool:
    """Whether the text of a key in JSON is read as that key."""
    if hasattr(type_, "__value__"):
        return _is_key(type_.__value__)
    if get_origin(type_) is Annotated:
        return _is_key(get_args(type_)[0])
    if get_origin(type_) is Literal:
        return all(isinstance(one, str) for one in get_args(type_))
    if isinstance(type_, type) and issubclass(type_, Enum):
        return all(isinstance(member.value, str) for member in type_)
    return type_ in _SCALARS and type_ is not NoneType


def _hint(type_: Any) -> str:
    hints = {float: "; money and quantities are Decimal", list: "; a list is a tuple here", set: "; a set is frozenset"}
    return hints.get(type_, "") if isinstance(type_, type) else ""


def _check_union(args: tuple[Any, ...], where: str) -> None:
    records = [a for a in args if is_record(a)]
    others = [a for a in args if a is not NoneType and not is_record(a)]
    if (records and others) or len(others) > 1:
        raise ConfigurationError(
            f"{where}: a union may be X | None or of dataclasses, tagged by class name; "
            f"{' | '.join(getattr(a, '__name__', str(a)) for a in args)} is neither"
        )
    if len(records) > 1 and any(issubclass(r, RootModel) for r in records):
        raise ConfigurationError(f"{where}: a RootModel has no place for the tag of a union; use a model with a field")
    if len({r.__name__ for r in records}) < len(records):
        raise ConfigurationError(f"{where}: two classes of one union have one name; the tag is the name, so rename one")


def _check_record(type_: type, where: str, seen: set[type]) -> None:
    if type_ in seen:
        return
    seen.add(type_)
    frozen = (
        type_.model_config.get("frozen", False) if issubclass(type_, BaseModel) else type_.__dataclass_params__.frozen  # type: ignore[attr-defined]  # every dataclass has it
    )
    if not frozen:
        name, is_model = type_.__name__, issubclass(type_, BaseModel)
        right = f"class {name}(BaseModel, frozen=True)" if is_model else "@dataclass(frozen=True)"
        raise ConfigurationError(f"{where}: {name} is not frozen; write {right}")
    try:
        fields = record_fields(type_)
    except NameError as error:
        raise ConfigurationError(f"{where}: {type_.__name__}: {error}; import the type at module level") from error
    for name, hint in fields.items():
        _check(hint, f"{where}: {type_.__name__}.{name}", seen)
