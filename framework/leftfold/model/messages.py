"""Events and commands: the frozen pydantic models with a key that users declare."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, JsonValue
from pydantic_core import CoreSchema, core_schema
from typing_extensions import dataclass_transform

from leftfold.errors import ConfigurationError, DomainError

__all__ = ["Command", "Event", "Json", "adjusted_schema"]


TAG = "@"
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def with_aware_times(schema: Any, *, in_utc: bool) -> Any:
    """A message's pydantic schema in which datetimes need a time zone; `in_utc`: and must be representable in UTC."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(with_aware_times(s, in_utc=in_utc) for s in schema)
    if not isinstance(schema, dict):
        return schema
    done = {
        k: v if k in ("metadata", "serialization") else with_aware_times(v, in_utc=in_utc) for k, v in schema.items()
    }
    if done.get("type") == "datetime":
        done["tz_constraint"] = "aware"
        if in_utc:
            done.setdefault("ge", _FIRST)
            done.setdefault("le", _LAST)
    return done


def adjusted_schema(schema: Any, *, canonical: bool, classes: Mapping[str, type] | None = None) -> Any:
    """The pydantic schema of state or rows: aware UTC times, sorted sets, unions of classes tagged by class name.

    Args:
        canonical: sort mappings too. classes: the classes of the schema's definitions, by ref.
    """
    classes = classes or {}
    if isinstance(schema, (list, tuple)):
        return type(schema)(adjusted_schema(s, canonical=canonical, classes=classes) for s in schema)
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "definitions":
        classes = {d["ref"]: cls for d in schema["definitions"] if (cls := _class_of(d, {}))}
    done = {
        k: v if k in ("metadata", "serialization") else adjusted_schema(v, canonical=canonical, classes=classes)
        for k, v in schema.items()
    }
    match done.get("type"):
        case "frozenset" | "set":
            done["serialization"] = _wrap(lambda value, handler: sorted(handler(value), key=_text))
        case "dict" if canonical:
            done["serialization"] = _wrap(lambda value, handler: dict(sorted(handler(value).items())))
        case "datetime":
            done["tz_constraint"] = "aware"
            done["serialization"] = _wrap(lambda value, handler: handler(value.astimezone(UTC)))
        case "union":
            return _tagged(done, classes)
    return done


def _wrap(function: Callable[[Any, Any], Any]) -> Any:
    return core_schema.wrap_serializer_function_ser_schema(function)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _class_of(choice: Any, classes: Mapping[str, type]) -> type | None:
    if isinstance(choice, tuple):
        choice = choice[0]
    if choice.get("type") == "definition-ref":
        return classes.get(choice["schema_ref"])
    cls = choice.get("cls")
    return cls if choice.get("type") in ("dataclass", "model") and isinstance(cls, type) else None


def _tagged(union: dict[str, Any], classes: Mapping[str, type]) -> Any:
    named = {cls.__name__: (cls, choice) for choice in union["choices"] if (cls := _class_of(choice, classes))}
    if len(named) < 2:
        return union
    return core_schema.tagged_union_schema(
        {name: {**choice, "serialization": _wrap(_tagging(cls))} for name, (cls, choice) in named.items()},
        discriminator=lambda v: v.get(TAG) if isinstance(v, dict) else type(v).__name__,
    )


def _tagging(cls: type) -> Callable[[Any, Any], Any]:
    return lambda value, handler: {TAG: cls.__name__, **handler(value)} if type(value) is cls else handler(value)


Json: TypeAlias = dict[str, JsonValue]
Upcast: TypeAlias = Callable[[Json], Json]

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass

    @dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
    class _Frozen(ModelMetaclass): ...
else:
    _Frozen = type(BaseModel)

_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True)
class MessageSpec:
    """The class keywords of a message; those that are not given are inherited."""

    category: str = ""
    key: str = ""
    name: str = ""
    version: int = 1
    upcasts: Mapping[int, Upcast] = field(default_factory=dict)
    rejects: tuple[type[DomainError], ...] = ()

    @property
    def type(self) -> str:
        """The wire name, `{category}.{Name}.v{n}`: part of the format, never a Python path."""
        return f"{self.category}.{self.name}.v{self.version}"


def _check(cls: type[BaseModel], spec: MessageSpec) -> None:
    where = f"{cls.__name__}:"
    if not spec.category and not spec.key:
        return
    if not _NAME.fullmatch(spec.category):
        raise ConfigurationError(
            f"{where} category={spec.category!r} must be lower case letters, digits, _ and -, such as 'baskets'"
        )
    if not spec.key:
        raise ConfigurationError(f"{where} a category without a key; add key='<the field that names the stream>'")
    if spec.key not in cls.model_fields:
        fields = ", ".join(cls.model_fields) or "none"
        raise ConfigurationError(f"{where} key={spec.key!r} is no field of it (fields: {fields})")
    if cls.model_fields[spec.key].annotation is not str:
        raise ConfigurationError(f"{where} the key field {spec.key!r} must be a plain str, since it is the Kafka key")
    if spec.version < 1 or set(spec.upcasts) != set(range(1, spec.version)):
        missing = sorted(set(range(1, spec.version)) - set(spec.upcasts)) or sorted(spec.upcasts)
        raise ConfigurationError(
            f"{where} version={spec.version} needs one upcast from each earlier version, no more and no fewer; "
            f"look at {', '.join(f'upcasts={{{v}: ...}}' for v in missing)}"
        )


class _Message(BaseModel, metaclass=_Frozen):
    model_config = ConfigDict(frozen=True)
    __leftfold__: ClassVar[MessageSpec] = MessageSpec()
    __in_utc__: ClassVar[bool] = False
    """Whether its times must be representable in UTC; events that are already written are read with any time."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        # pydantic does not type this: a schema in, a schema out.
        return with_aware_times(handler(source), in_utc=cls.__in_utc__)  # type: ignore[no-any-return]


class Event(_Message):
    """A fact in the past tense; subclass it with `category=` and `key=` (inherited), and frozen fields.

    Metadata (ids, times of writing, versions) is in `Recorded`, never here, so events compare by value.
    """

    def __init_subclass__(
        cls,
        *,
        category: str = "",
        key: str = "",
        name: str = "",
        version: int = 1,
        upcasts: Mapping[int, Upcast] = {},  # never written to
    ) -> None:
        super().__init_subclass__()
        above = cls.__leftfold__
        cls.__leftfold__ = MessageSpec(
            category or above.category, key or above.key, name or cls.__name__, version, dict(upcasts)
        )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        _check(cls, cls.__leftfold__)


class Command(_Message):
    """A request in the imperative; `rejects` lists the domain errors that may answer it.

    Unknown fields are refused.
    """

    model_config = ConfigDict(extra="forbid")

    __in_utc__ = True

    def __init_subclass__(
        cls,
        *,
        category: str = "",
        key: str = "",
        name: str = "",
        version: int = 1,
        upcasts: Mapping[int, Upcast] = {},  # never written to
        rejects: tuple[type[DomainError], ...] = (),
    ) -> None:
        super().__init_subclass__()
        above = cls.__leftfold__
        cls.__leftfold__ = MessageSpec(
            category or above.category,
            key or above.key,
            name or cls.__name__,
            version,
            dict(upcasts),
            tuple(dict.fromkeys((*above.rejects, *rejects))),
        )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        _check(cls, cls.__leftfold__)
        rejects = cls.__leftfold__.rejects
        wrong = [r for r in rejects if not (isinstance(r, type) and issubclass(r, DomainError))]
        if wrong:
            raise ConfigurationError(f"{cls.__name__}: rejects={wrong[0]!r} is no subclass of DomainError")
        if len({r.__name__ for r in rejects}) < len(rejects):
            raise ConfigurationError(
                f"{cls.__name__}: two errors in rejects have one name; the wire knows them by it, so rename one"
            )
