"""`leftfold send`: sends one command, or a file of commands, and prints the answers."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple, get_args

import typer
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from leftfold.cli.options import AppOption, JsonOption, KafkaOption, examples, note_options, seconds
from leftfold.engine.processing.command_wire import command_id, nack
from leftfold.errors import (
    ConflictError,
    ContractError,
    DecisionFailed,
    DomainError,
    InfrastructureError,
    LeftfoldError,
    OutcomeUnknown,
)
from leftfold.kafka.administration.cluster import ClusterAdmin
from leftfold.kafka.errors import Unreachable
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.messages import Command
from leftfold.model.position import Receipt
from leftfold.ports.message_codec import json_form, utc_text
from leftfold.runtime.connect import connect, kafka_settings
from leftfold.runtime.console import amount, emit, note, say, styled
from leftfold.runtime.project import Unanswered, Usage, load_app, unknown
from leftfold.safety import veiled

__all__ = ["again_line", "command_class", "compose", "read_object", "sample"]


_CLOCK = "at"
_QUOTED = 500
"""How much of a text that is no JSON its error quotes."""


class Composed(NamedTuple):
    """A command from the command line; `filled` is the time that was put into `at`, '' when it was given."""

    command: Command
    filled: str


def command_class(app: App, name: str) -> type[Command]:
    """The App's command class of a name, or of `category.Name` where two classes share a name.

    Raises:
        Usage: there is no such command, or several.
    """
    known = {f"{d.name}.{c.__leftfold__.name}": c for d in app.deciders for c in d.commands}
    found = [c for full, c in known.items() if name in (full, c.__leftfold__.name)]
    if not found:
        raise unknown(f"command in app {app.name} called", name, (c.__leftfold__.name for c in known.values()))
    if len(found) > 1:
        full = " or ".join(n for n in known if n.endswith(f".{name}"))
        raise Usage(f"several commands are called {name}: say {full}")
    return found[0]


def compose(cls: type[Command], text: str, *, id_: str = "") -> Composed:
    """The command that the JSON describes; a missing time called `at` becomes now.

    With an id given by the user nothing is filled in: a command that is sent again must be exactly the same.

    Raises:
        Usage: the text is no JSON object, or its fields are not the command's; every such field is named.
    """
    fields = read_object(text, f"{cls.__name__} looks like {sample(cls)}")
    filled = ""
    if _CLOCK not in fields and _wants_clock(cls):
        if id_:
            now = json.dumps({_CLOCK: utc_text(datetime.now(UTC).replace(microsecond=0))})
            raise Usage(f"with an id the command must be the same each time: say {_CLOCK}, such as {now}")
        fields[_CLOCK] = filled = utc_text(datetime.now(UTC))
    return Composed(checked(cls, fields), filled)


def read_object(text: str, example: str) -> dict[str, Any]:
    """The fields of a JSON object. Raises Usage: the text is none; `example` shows a correct one."""
    try:
        fields = json.loads(text, parse_float=Decimal)
    except (ValueError, ArithmeticError, RecursionError) as error:  # of Decimal, or nested too deeply
        raise Usage(f"that is no JSON that can be read ({error}): {text[:_QUOTED]}\n{example}") from error
    if not isinstance(fields, dict):
        raise Usage(f"a command is a JSON object: {example}")
    return fields


def checked(cls: type[Command], fields: Mapping[str, Any]) -> Command:
    """The command with these fields. Raises Usage: the fields are not the command's; every wrong one is named."""
    try:
        try:
            command = cls.model_validate_json(json.dumps(fields, default=str))  # amounts keep their digits as text
        except ValidationError:
            command = cls.model_validate_json(json.dumps(json_form(fields), default=str))  # strict floats take none
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        raise Usage("\n".join(_problem(cls, problem) for problem in problems)) from error
    key = cls.__leftfold__.key
    if getattr(command, key) in ("", "@"):
        raise Usage(f"{cls.__name__}.{key}: the key may not be empty, and '@' is reserved")
    return command


def sample(cls: type[Command]) -> str:
    """An example of a command's JSON, without optional fields."""
    schema = cls.model_json_schema()
    required = [name for name in schema.get("required", ()) if not (name == _CLOCK and _wants_clock(cls))]
    return json.dumps({name: _placeholder(schema["properties"][name]) for name in required})


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
    types = {o.get("type") for o in options}
    if any("Decimal" in str(o.get("title", "")) for o in options) or types >= {"number", "string"}:
        return "1.00"
    return next((kinds[o["type"]] for o in options if o.get("type") in kinds), "...")


def explained(error: InfrastructureError, app: App, kafka: str | None) -> InfrastructureError:
    """The error itself, or a plainer one when a broker answers but has no topics of the App."""
    if isinstance(error, Unreachable):
        return error
    try:
        settings = kafka_settings(kafka)
        with ClusterAdmin(settings) as cluster:
            wanted = [names.replies(app.name), *(names.commands(decider.name) for decider in app.deciders)]
            there = cluster.partition_counts(wanted)
    except LeftfoldError:
        return error
    missing = [topic for topic in wanted if topic not in there]
    if not missing:
        return error
    return InfrastructureError(
        f"app {app.name} has never run at {settings.bootstrap_servers} ({missing[0]} does not exist), and nothing was "
        f"sent; start it in another terminal: leftfold run"
    )


EXAMPLES = examples(
    """leftfold send AddItem '{"basket_id": "b-1", "product_id": "p", "quantity": 2, "sales_value": "3.98"}'""",
    "leftfold send CheckOut - < checkout.json",
    """leftfold send CheckOut '{"basket_id": "b-1", "at": "2026-01-31T12:00:00Z"}' --id till-4/2041""",
    "leftfold send --file commands.ndjson --json > answers.ndjson",
)


def send(
    name: Annotated[str, typer.Argument(metavar="COMMAND", help="The command's name, as in AddItem.")] = "",
    fields: Annotated[str, typer.Argument(metavar="JSON", help="Its fields; - reads standard input.")] = "",
    id_: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Idempotency key: sent again, it is not decided again.")
    ] = None,
    expected_version: Annotated[
        int | None,
        typer.Option("--expected-version", metavar="N", min=0, help="Refuse unless the stream is at this version."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="Commands, one JSON object a line; - reads standard input."),
    ] = None,
    window: Annotated[
        int,
        typer.Option(
            "--window",
            metavar="N",
            min=1,
            help="With --file: how many may be under way at once; 1 for a sender that waits for each answer.",
        ),
    ] = 1000,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="TIME", parser=seconds, help="How long to wait for the answer: 30s.")
    ] = 10.0,
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one command and print the answer.

    A missing time called `at` is now, unless --id is given: then the same id needs the same fields.
    Exit code 1 when a rule rejects it, 75 when no answer came in time: send it again with the same id.

    With --file, a line is {"command": "AddItem", "id": "till-4/2041", "fields": {...}}; `id` and `expected_version` may
    be left out. Answers come in the order of the lines. A file whose lines have ids can be sent again as it is.
    """
    if file is not None:
        if name or fields or id_ is not None or expected_version is not None:
            raise typer.BadParameter("--file names the commands, their ids and versions; give it alone")
        _whole_file(file, app, kafka, window=window, timeout=timeout, as_json=as_json)
        return
    if not name:
        raise typer.BadParameter("name a command, or a file of commands with --file")
    whole = load_app(app, having=[name])
    cls = command_class(whole, name)
    text = _typed(fields)
    if not text.strip():
        raise Usage(f"{name} needs its fields: leftfold send {name} {shlex.quote(sample(cls))}")
    command, filled = compose(cls, text, id_=id_ or "")
    id_ = id_ or command_id()
    again = again_line(command, id_, expected_version, kafka)
    with connect(whole, kafka=kafka) as leftfold:
        try:
            receipt = leftfold.client.send(command, id=id_, expected_version=expected_version, timeout=timeout)
        except (DomainError, ConflictError, DecisionFailed, ContractError) as error:
            _refused(error, id_, as_json=as_json)
        except InfrastructureError as error:
            if (plain := explained(error, whole, kafka)) is not error:
                raise plain from error
            raise
        except OutcomeUnknown as error:
            if as_json:
                emit({"id": id_, "error": "OutcomeUnknown", "message": error.why})
            raise Unanswered(f"the outcome is not known: {error.why}\nask again, safely: {again}") from error
        except KeyboardInterrupt:
            why = f"interrupted; it may be decided all the same. Ask again, safely: {again}"
            note(why)
            note_options(why, [app], kafka)
            raise
        else:
            _accepted(command, id_, receipt, filled, as_json=as_json)


def _whole_file(file: str, app: str, kafka: str | None, *, window: int, timeout: float, as_json: bool) -> None:
    from leftfold.cli.data.send_file import send_lines

    whole = load_app(app)
    with connect(whole, kafka=kafka) as leftfold:
        try:
            code = send_lines(leftfold.client, whole, file, kafka, window=window, timeout=timeout, as_json=as_json)
        except InfrastructureError as error:
            if (plain := explained(error, whole, kafka)) is not error:
                raise plain from error
            raise
    if code == Unanswered.exit_code:
        note_options("leftfold send", [app])
    if code:
        raise typer.Exit(code)


def _typed(fields: str) -> str:
    """The JSON from the argument or from standard input; '' on a terminal, where no input is waiting."""
    if fields not in ("", "-") or (fields == "" and sys.stdin.isatty()):
        return fields
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise Usage(f"what is on standard input is no UTF-8: {error}") from error


def _accepted(command: Command, id_: str, receipt: Receipt, filled: str, *, as_json: bool) -> None:
    if filled:
        note(f"at = {filled} (now, since it was not given)")
    if as_json:
        offsets = receipt.position.offsets
        emit({"id": id_, "version": receipt.version, "events": receipt.events, "position": offsets})
        return
    spec = command.__leftfold__
    stream = f"{spec.category} {getattr(command, spec.key)}"
    say(
        styled("accepted:", fg="green"),
        f" {stream} is at version {receipt.version} ({amount(receipt.events, 'event')}), position {receipt.position}",
    )
    note(f"what follows from it: leftfold log trace {shlex.quote(id_)}")


def _refused(error: LeftfoldError, id_: str, *, as_json: bool) -> None:
    """Reports a rule that rejected the command, a stream at another version, or a command that cannot be decided."""
    if as_json:
        emit({"id": id_, **nack(error)})
    elif isinstance(error, DomainError):
        note(styled("rejected:", fg="yellow"), f" {type(error).__name__}: {error}")
    else:
        raise error
    raise typer.Exit(1)


def again_line(command: Command, id_: str, expected_version: int | None, kafka: str | None) -> str:
    """The line that sends the command again with the same fields: another body under one id is another command."""
    spec, body = command.__leftfold__, command.model_dump_json()
    is_shown = veiled(body) == body
    line = ["leftfold", "send", f"{spec.category}.{spec.name}", body if is_shown else "-", "--id", id_]
    if expected_version is not None:
        line += ["--expected-version", str(expected_version)]
    if kafka is not None:
        line += ["--kafka", kafka]
    return shlex.join(line) + ("" if is_shown else "    with the same JSON on standard input, since it holds secrets")
