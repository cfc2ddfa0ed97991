"""Events and commands: the frozen pydantic models with a key that users declare."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, JsonValue
from pydantic_core import CoreSchema, SchemaSerializer, SchemaValidator, core_schema
from typing_extensions import dataclass_transform

from leftfold.errors import ConfigurationError, DomainError

__all__ = ["Command", "Event", "Json", "adjusted_schema", "is_plain", "parts_in", "with_parts"]


TAG = "@"
UNTAGGED = "@"
"""The choice of a tagged union for what was stored without a tag; no class has such a name."""
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def with_aware_times(schema: Any, *, in_utc: bool) -> Any:
    """A message's pydantic schema in which datetimes need a time zone; `in_utc`: and must be representable in UTC."""
    done = with_parts(schema, lambda part: with_aware_times(part, in_utc=in_utc))
    if isinstance(done, dict) and done.get("type") == "datetime":
        done["tz_constraint"] = "aware"
        if in_utc:
            done.setdefault("ge", _FIRST)
            done.setdefault("le", _LAST)
    return done


def _with_sorted_sets(schema: Any) -> Any:
    """A message's pydantic schema in which equal sets give equal JSON: one command id belongs to one body."""
    done = with_parts(schema, _with_sorted_sets)
    if isinstance(done, dict) and done.get("type") in ("frozenset", "set") and "serialization" not in done:
        done["serialization"] = core_schema.wrap_serializer_function_ser_schema(
            lambda value, handler: sorted(handler(value), key=_text), when_used="json"
        )
    return done


OF_USERS = ("function-before", "function-after", "function-wrap")
# What pydantic's schemas hold beside other schemas: values, settings and serializers of users.
_VALUES = frozenset({"metadata", "serialization", "default", "config", "expected", "members"})
# Settings of classes without a meaning for what is stored: unknown fields are ignored, values are of the field's class.
_SETTINGS = frozenset({"extra_fields_behavior", "polymorphic_serialization"})


def with_parts(schema: Any, change: Callable[[Any], Any]) -> Any:
    """A pydantic schema, or a container of schemas, in which each schema that it directly holds is changed."""
    if isinstance(schema, (list, tuple)):
        return type(schema)(map(change, schema))
    if not isinstance(schema, dict):
        return schema
    values = _VALUES if isinstance(schema.get("type"), str) else ()  # else its keys are names of fields or choices
    return {name: part if name in values else change(part) for name, part in schema.items()}


def parts_in(schema: Any, types: Collection[str] = ("dataclass", "model")) -> list[dict[str, Any]]:
    """The schemas of these types in a schema, at every depth."""
    found = [schema] if isinstance(schema, dict) and schema.get("type") in types else []
    with_parts(schema, lambda part: found.extend(parts_in(part, types)))
    return found


def adjusted_schema(schema: Any, *, canonical: bool) -> Any:
    """The pydantic schema of state or rows: aware UTC times, sorted sets, unions of classes tagged by class name.

    Models used to be encoded by pydantic alone. What was stored so is still read: unions without a tag, naive times.

    Args:
        canonical: sort mappings too.
    """
    return _adjusted(schema, _Place(canonical))


class _Place(NamedTuple):
    """The surroundings of a part of a schema: its definitions by ref, and whether it is inside a class of pydantic."""

    canonical: bool
    definitions: Mapping[str, Any] = {}
    in_model: bool = False


def _adjusted(schema: Any, place: _Place) -> Any:
    type_, inner = schema.get("type") if isinstance(schema, dict) else None, place
    if type_ == "definitions":
        found = {part["ref"]: part for part in schema["definitions"]}
        inner = _Place(place.canonical, found, any(map(_is_of_pydantic, parts_in(schema))))
    elif type_ in ("dataclass", "model") and _is_of_pydantic(schema):
        inner = place._replace(in_model=True)
    done = with_parts(schema, lambda part: _adjusted(part, inner))
    match type_:
        case "dataclass" | "model":
            done["config"] = {name: v for name, v in done.get("config", {}).items() if name not in _SETTINGS}
            # Its own __init__ would read the values inside it by the schema of the class.
            return {**done, "custom_init": False} if type_ == "model" else done
        case "frozenset" | "set":
            return _written(done, lambda value, handler: sorted(handler(value), key=_text), place)
        case "dict" if place.canonical:
            return _written(done, lambda value, handler: dict(sorted(handler(value).items())), place)
        case "datetime" if place.in_model:
            return _written(done, lambda v, handler: handler(v if v.tzinfo is None else v.astimezone(UTC)), place)
        case "datetime":
            return _written({**done, "tz_constraint": "aware"}, lambda v, handler: handler(v.astimezone(UTC)), place)
        case "decimal":  # an int in its field is written as the equal Decimal
            return {"serialization": core_schema.to_string_ser_schema(), **done}
        case "union":
            return _tagged(schema, done, place)
    return done


def _is_of_pydantic(record: dict[str, Any]) -> bool:
    """Whether the class of a schema is a model or a dataclass of pydantic, which has a serializer of its own."""
    return bool(vars(record["cls"]).get("__pydantic_complete__", False))


def _written(schema: dict[str, Any], function: Callable[[Any, Any], Any], place: _Place) -> Any:
    """The schema with a serializer, below the field's own serializer inside a model, as it has always been there."""
    done = {**schema, "serialization": core_schema.wrap_serializer_function_ser_schema(function)}
    return _below(schema.get("serialization") if place.in_model else None, done)


def _below(own: Any, schema: dict[str, Any]) -> dict[str, Any]:
    if own is None:
        return schema
    return {**schema, "serialization": {"schema": schema, **own} if own["type"] == "function-wrap" else own}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _class_of(choice: Any, place: _Place, through: Collection[str] = OF_USERS) -> type | None:
    """The class of a choice of a union, also behind validators of the class."""
    while True:
        match choice:
            case (first, _):
                choice = first
            case {"type": "definition-ref", "schema_ref": ref} if ref in place.definitions:
                choice = place.definitions[ref]
            case {"type": str() as type_, "schema": inner} if type_ in through:
                choice = inner
            case {"type": "dataclass" | "model", "cls": type() as cls}:
                return cls
            case _:
                return None


def _tagged(union: dict[str, Any], done: dict[str, Any], place: _Place) -> Any:
    found = [(_class_of(choice, place), choice) for choice in done["choices"]]
    named = {cls.__name__: (cls, choice[0] if isinstance(choice, tuple) else choice) for cls, choice in found if cls}
    if len(named) < 2:
        return done
    bare = [choice for choice in union["choices"] if _class_of(choice, place, through=())]
    was_untagged = place.in_model or len(bare) < 2
    choices: dict[Any, Any] = {
        name: {
            **choice,
            "serialization": core_schema.wrap_serializer_function_ser_schema(
                _tagging(cls, was_untagged), schema=choice
            ),
        }
        for name, (cls, choice) in named.items()
    }
    if was_untagged:
        choices[UNTAGGED] = {name: part for name, part in union.items() if name not in ("ref", "serialization")}

    def tag_of(value: Any) -> Any:
        if isinstance(value, dict):
            return value.get(TAG, UNTAGGED if was_untagged else None)
        name = type(value).__name__
        return UNTAGGED if was_untagged and name not in named else name

    tagged: Any = core_schema.tagged_union_schema(choices, tag_of, ref=union.get("ref"))
    return _below(union.get("serialization") if place.in_model else None, tagged)


def _tagging(cls: type, was_untagged: bool) -> Callable[[Any, Any], Any]:
    def tagging(value: Any, handler: Any) -> Any:
        written = handler(value)
        if type(value) is not cls or (was_untagged and not isinstance(written, dict)):
            return written
        return {TAG: cls.__name__, **written}

    return tagging


@cache
def is_plain(cls: type[BaseModel]) -> bool:
    """Whether all valid values of a message are read as they are written: of plain types, read by pydantic alone."""
    schema: Any = cls.__pydantic_core_schema__
    odd = set(schema) - {"type", "cls", "schema", "config", "root_model", "metadata", "ref", "custom_init"}
    if odd and (odd != {"post_init"} or cls.model_post_init.__name__ != "init_private_attributes"):
        return False
    inner = schema["schema"] if schema["type"] == "model" else {}
    if inner.get("type") != "model-fields" or inner.get("computed_fields") or inner.get("extras_schema"):
        return False
    fields = inner["fields"].values()
    return cls.model_config.get("extra") != "allow" and all(
        field.keys() <= {"type", "schema", "metadata"} and _is_plain(field["schema"]) for field in fields
    )


def _is_plain(schema: Any) -> bool:
    if "serialization" in schema:
        return False
    match schema["type"]:
        case "nullable" | "default":
            return _is_plain(schema["schema"])
        case "list":
            return _is_plain(schema.get("items_schema", {"type": "any"}))
        case "tuple":
            return all(map(_is_plain, schema["items_schema"]))
        case "dict":
            return schema["keys_schema"]["type"] == "str" and _is_plain(schema["values_schema"])
        case "enum":
            return all(type(member.value) is str for member in schema["members"])
        case type_:
            return type_ in _PLAIN


_PLAIN = frozenset({"str", "int", "bool", "decimal", "date", "datetime", "uuid"})
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


M = TypeVar("M", bound=BaseModel)


def _validated(made: M, given: Mapping[str, Any]) -> M:
    """The message, validated in place with the given values, if it is written without being read again."""
    if is_plain(type(made)):
        values = {name: value for name, value in vars(made).items() if name in type(made).model_fields}
        made.__pydantic_validator__.validate_python({**values, **given}, self_instance=made, by_name=True)
    return made


class _Message(BaseModel, metaclass=_Frozen):
    model_config = ConfigDict(frozen=True)
    __leftfold__: ClassVar[MessageSpec] = MessageSpec()
    __in_utc__: ClassVar[bool] = False
    """Whether its times must be representable in UTC; events that are already written are read with any time."""

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy, as pydantic makes it; values of plain types are validated, since they are written as they are."""
        made = super().model_copy(update=update, deep=deep)
        return _validated(made, update) if update else made

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
        """A message, as pydantic makes it; values of plain types are validated, since they are written as they are."""
        return _validated(super().model_construct(_fields_set, **values), {})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return cls._stored_schema(handler(source))

    @classmethod
    def __pydantic_on_complete__(cls) -> None:
        whole = cls.__pydantic_core_schema__
        if any(_is_of_pydantic(record) for record in parts_in(whole) if record["cls"] is not cls):
            # Else the models inside would be written and read by serializers and validators of their own.
            schema = cls._stored_schema(whole)
            cls.__pydantic_serializer__ = SchemaSerializer(schema, _use_prebuilt=False)
            if cls.__in_utc__:
                cls.__pydantic_validator__ = SchemaValidator(schema, _use_prebuilt=False)

    @classmethod
    def _stored_schema(cls, schema: CoreSchema) -> CoreSchema:
        # pydantic does not type this: a schema in, a schema out.
        return _with_sorted_sets(with_aware_times(schema, in_utc=cls.__in_utc__))  # type: ignore[no-any-return]


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
        rejected = tuple(dict.fromkeys((*above.rejects, *rejects)))
        cls.__leftfold__ = MessageSpec(
            category or above.category, key or above.key, name or cls.__name__, version, dict(upcasts), rejected
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
        made = cls.__pydantic_decorators__
        is_changed = made.model_validators or made.model_serializers
        if made.computed_fields and not is_changed and cls.model_config.get("extra") == "forbid":
            field_name = next(iter(made.computed_fields))
            raise ConfigurationError(f"{cls.__name__}.{field_name} is a computed_field; make it a property or a field")
