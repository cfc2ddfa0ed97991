"""Turns what was typed into a command: finds its class, reads its JSON, fills in the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from leftfold.app import App
from leftfold.cli.failures import Usage, unknown
from leftfold.codec import utc_text
from leftfold.messages import Command

__all__ = ["Composed", "checked", "command_class", "compose", "read_object", "sample"]

_CLOCK = "at"


class Composed(NamedTuple):
    """A command as it was typed; `filled` is the time that was put into `at`, '' when it was given."""

    command: Command
    filled: str


def command_class(app: App, name: str) -> type[Command]:
    """The App's command of a name, or of `category.Name` where two have one name.

    Raises:
        Usage: there is none, or several.
    """
    known = {f"{d.name}.{c.__leftfold__.name}": c for d in app.deciders for c in d.commands}
    found = [c for full, c in known.items() if name in (full, c.__leftfold__.name)]
    if not found:
        raise unknown(f"command in app {app.name} called", name, (c.__leftfold__.name for c in known.values()))
    if len(found) > 1:
        raise Usage(
            f"several commands are called {name}: say {' or '.join(n for n in known if n.endswith('.' + name))}"
        )
    return found[0]


def compose(cls: type[Command], text: str, *, id_: str = "") -> Composed:
    """The command that the JSON describes; a missing time called `at` is now.

    With an id of the user's own nothing is filled in: sent again, the command must be the very same.

    Raises:
        Usage: the text is no JSON object, or its fields are not the command's; every such field is named.
    """
    fields = read_object(text, f"{cls.__name__} looks like {sample(cls)}")
    filled = ""
    if _CLOCK not in fields and _wants_clock(cls):
        if id_:
            raise Usage(f"with an id the command must be the same each time: say {_CLOCK}, such as {_example_time()}")
        fields[_CLOCK] = filled = utc_text(datetime.now(UTC))
    return Composed(checked(cls, fields), filled)


def read_object(text: str, example: str) -> dict[str, Any]:
    """The fields in a JSON object. Raises Usage: it is none; `example` says what one looks like."""
    try:
        fields = json.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise Usage(f"that is no JSON ({error}): {text}\n{example}") from error
    if not isinstance(fields, dict):
        raise Usage(f"a command is a JSON object: {example}")
    return fields


def checked(cls: type[Command], fields: Mapping[str, Any]) -> Command:
    """The command with these fields. Raises Usage: they are not the command's; every such field is named."""
    try:
        command = cls.model_validate_json(json.dumps(fields, default=str))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise Usage("\n".join(_problem(cls, problem) for problem in problems)) from error
    key = cls.__leftfold__.key
    if getattr(command, key) in ("", "@"):
        raise Usage(f"{cls.__name__}.{key}: the key may not be empty, and '@' is reserved")
    return command


def sample(cls: type[Command]) -> str:
    """What the JSON of a command looks like, fields that may be left out not shown."""
    schema = cls.model_json_schema()
    required = [name for name in schema.get("required", ()) if not (name == _CLOCK and _wants_clock(cls))]
    return json.dumps({name: _placeholder(schema["properties"][name]) for name in required})


def _example_time() -> str:
    return json.dumps({_CLOCK: utc_text(datetime.now(UTC).replace(microsecond=0))})


def _wants_clock(cls: type[Command]) -> bool:
    field = cls.model_fields.get(_CLOCK)
    if field is None or not field.is_required():
        return False
    return any(isinstance(t, type) and issubclass(t, datetime) for t in (field.annotation, *get_args(field.annotation)))


def _problem(cls: type[Command], problem: ErrorDetails) -> str:
    where = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        near = get_close_matches(where, cls.model_fields, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(cls.model_fields)}"
        return f"{cls.__name__}.{where}: there is no such field; {hint}"
    got = "" if problem["type"] == "missing" else f", not {json.dumps(problem['input'], default=str)}"
    return f"{cls.__name__}.{where}: {problem['msg'][0].lower()}{problem['msg'][1:]}{got}"


def _placeholder(schema: Mapping[str, Any]) -> object:
    kinds: dict[str, object] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    options = [schema, *schema.get("anyOf", ())]
    if any("Decimal" in str(o.get("title", "")) for o in options) or {o.get("type") for o in options} >= {
        "number",
        "string",
    }:
        return "1.00"
    return next((kinds[o["type"]] for o in options if o.get("type") in kinds), "...")
