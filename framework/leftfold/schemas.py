"""pydantic's schemas, adjusted to what the log and the views need: aware times, equal bytes, tagged unions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic_core import core_schema

__all__ = ["adjusted", "with_aware_times"]

TAG = "@"
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def with_aware_times(schema: Any, *, in_utc: bool) -> Any:
    """The schema of a message, in which every datetime must say its zone; `in_utc` = and has a time in UTC, too."""
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


def adjusted(schema: Any, *, canonical: bool, classes: Mapping[str, type] | None = None) -> Any:
    """The schema of state or rows: aware times in UTC, sorted sets, unions of classes tagged by class name.

    Args:
        canonical: sort mappings too. classes: those behind the schema's definitions, by ref.
    """
    classes = classes or {}
    if isinstance(schema, (list, tuple)):
        return type(schema)(adjusted(s, canonical=canonical, classes=classes) for s in schema)
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "definitions":
        classes = {d["ref"]: cls for d in schema["definitions"] if (cls := _class_of(d, {}))}
    done = {
        k: v if k in ("metadata", "serialization") else adjusted(v, canonical=canonical, classes=classes)
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
