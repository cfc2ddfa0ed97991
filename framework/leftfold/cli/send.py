"""`leftfold send`: one command, or a file of them, answered."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from leftfold.cli.options import AppOption, JsonOption, KafkaOption, examples

if TYPE_CHECKING:
    from leftfold.envelope import Receipt
    from leftfold.errors import LeftfoldError
    from leftfold.messages import Command

__all__ = ["EXAMPLES", "send"]

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
        int, typer.Option("--window", metavar="N", min=1, help="With --file: how many may be under way at once.")
    ] = 1000,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for the answer.")
    ] = 10.0,
    app: AppOption = "",
    kafka: KafkaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one command and print the answer.

    A missing time called `at` is now, unless --id is given: then the same id needs the same fields.
    Exit code 1 when a rule says no, 75 when no answer came in time: ask again with the same id.

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
    from leftfold.cli.composing import command_class, compose, sample
    from leftfold.cli.console import emit
    from leftfold.cli.failures import Unanswered, Usage
    from leftfold.cli.never_run import explained
    from leftfold.cli.project import load_app
    from leftfold.connection import connect
    from leftfold.engine.received import command_id
    from leftfold.errors import (
        ConflictError,
        ContractError,
        DecisionFailed,
        DomainError,
        InfrastructureError,
        OutcomeUnknown,
    )

    whole = load_app(app, having=[name])
    cls = command_class(whole, name)
    text = _typed(fields)
    if not text.strip():
        raise Usage(f"{name} needs its fields: leftfold send {name} {shlex.quote(sample(cls))}")
    command, filled = compose(cls, text, id_=id_ or "")
    id_ = id_ or command_id()
    with connect(whole, kafka=kafka) as leftfold:
        try:
            receipt = leftfold.client.send(command, id=id_, expected_version=expected_version, timeout=timeout)
        except (DomainError, ConflictError, DecisionFailed, ContractError) as error:
            _refused(error, id_, as_json=as_json)
        except InfrastructureError as error:
            raise explained(error, whole, kafka) from error
        except OutcomeUnknown as error:
            line = _again(command, id_, expected_version)
            if as_json:
                emit({"id": id_, "error": "OutcomeUnknown", "message": error.why})
            raise Unanswered(f"the outcome is not known: {error.why}\nask again, safely: {line}") from error
        else:
            _accepted(command, id_, receipt, filled, as_json=as_json)


def _whole_file(file: str, app: str, kafka: str | None, *, window: int, timeout: float, as_json: bool) -> None:
    from leftfold.cli.never_run import explained
    from leftfold.cli.project import load_app
    from leftfold.cli.sending import send_lines
    from leftfold.connection import connect
    from leftfold.errors import InfrastructureError

    whole = load_app(app)
    with connect(whole, kafka=kafka) as leftfold:
        try:
            code = send_lines(leftfold.client, whole, file, window=window, timeout=timeout, as_json=as_json)
        except InfrastructureError as error:
            raise explained(error, whole, kafka) from error
    if code:
        raise typer.Exit(code)


def _typed(fields: str) -> str:
    """What was typed, or comes on standard input where nothing was; '' on a terminal, where nobody waits for input."""
    if fields in ("", "-") and not (fields == "" and sys.stdin.isatty()):
        return sys.stdin.read()
    return fields


def _accepted(command: Command, id_: str, receipt: Receipt, filled: str, *, as_json: bool) -> None:
    from leftfold.cli.console import amount, emit, note, say, styled

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
    """Tells of a rule that said no, a stream at another version, or a command that nobody can decide."""
    from leftfold.cli.console import emit, note, styled
    from leftfold.engine.reply import nack
    from leftfold.errors import DomainError

    if as_json:
        emit({"id": id_, **nack(error)})
    elif isinstance(error, DomainError):
        note(styled("rejected:", fg="yellow"), f" {type(error).__name__}: {error}")
    else:
        raise error
    raise typer.Exit(1)


def _again(command: Command, id_: str, expected_version: int | None) -> str:
    """With the very same fields, times included: another body under one id is another command."""
    line = ["leftfold", "send", command.__leftfold__.name, command.model_dump_json(), "--id", id_]
    if expected_version is not None:
        line += ["--expected-version", str(expected_version)]
    return shlex.join(line)
