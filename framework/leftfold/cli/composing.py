"""Turns what was typed into a command: finds its class, reads its JSON, fills in the time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from leftfold.app import App
from leftfold.cli.console import note
from leftfold.cli.failures import Usage, unknown
from leftfold.codec import utc_text
from leftfold.messages import Command

__all__ = ["command_class", "compose", "sample"]

_CLOCK = "at"


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


def compose(cls: type[Command], text: str, *, id_: str = "") -> Command:
    """The command that the JSON describes; a missing time called `at` is now, which is said.

    With an id of the user's own nothing is filled in: sent again, the command must be the very same.

    Raises:
        Usage: the text is no JSON object, or its fields are not the command's; every such field is named.
    """
    try:
        fields = json.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise Usage(f"that is no JSON ({error}): {text}\n{cls.__name__} looks like {sample(cls)}") from error
    if not isinstance(fields, dict):
        raise Usage(f"a command is a JSON object: {cls.__name__} looks like {sample(cls)}")
    if _CLOCK not in fields and _wants_clock(cls) and id_:
        raise Usage(f"with --id the command must be the same each time: say {_CLOCK}, such as {_example_time()}")
    if _CLOCK not in fields and _wants_clock(cls):
        fields[_CLOCK] = utc_text(datetime.now(UTC))
        note(f"{_CLOCK} = {fields[_CLOCK]} (now, since it was not given)")
    try:
        return cls.model_validate_json(json.dumps(fields, default=str))
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise Usage("\n".join(_problem(cls, problem) for problem in problems)) from error


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
