"""Answers on the wire: an ack is a receipt, a nack is an error with its fields."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from leftfold.codec import digest
from leftfold.envelope import Receipt
from leftfold.errors import ConflictError, ContractError, DecisionFailed, DomainError, LeftfoldError, OutcomeUnknown
from leftfold.messages import Command
from leftfold.position import Position

__all__ = ["ack", "nack", "read_reply", "small", "to_error"]

SMALL = 2048
_SHOWN = 300


def ack(version: int, events: int, position: str) -> bytes:
    """The value of an accepted command's answer; `position` is JSON."""
    return b'{"version":%d,"events":%d,"position":%b}' % (version, events, position.encode())


def nack(error: LeftfoldError) -> dict[str, Any]:
    """The value of a refused command's answer: `{error, message, fields}`."""
    fields: dict[str, Any] = {}
    if isinstance(error, DomainError):
        fields = to_jsonable_python(error._fields())
    elif isinstance(error, ConflictError):
        fields = {"key": error.key, "expected": error.expected, "actual": error.actual}
    elif isinstance(error, OutcomeUnknown):
        fields = {"command_id": error.command_id, "why": error.why}
    return {"error": type(error).__name__, "message": str(error), "fields": fields}


def small(refused: dict[str, Any], most: int = SMALL) -> dict[str, Any]:
    """The value of a refused command's answer; of one of more than `most` bytes its name, beginning and digest."""
    encoded = json.dumps(refused, separators=(",", ":")).encode()
    if len(encoded) <= most:
        return refused
    message = f"{refused['message'][:_SHOWN]} … (its details were too large to be kept)"
    return {"error": refused["error"][:_SHOWN], "message": message, "fields": {}, "digest": digest(encoded)}


def read_reply(value: bytes, command: type[Command]) -> Receipt | LeftfoldError:
    """The receipt or the error in an answer."""
    fields = json.loads(value)
    if "error" in fields:
        return to_error(fields, command)
    offsets = {topic: {int(p): o for p, o in at.items()} for topic, at in fields["position"].items()}
    return Receipt(Position(offsets), fields["version"], fields["events"])


def to_error(fields: dict[str, Any], command: type[Command]) -> LeftfoldError:
    """The error behind a nack: the command's own DomainError where it declares it."""
    name, message = fields["error"], fields["message"]
    if "digest" in fields:
        return ContractError(f"{name}: {message}")
    for declared in command.__leftfold__.rejects:
        if declared.__name__ == name:
            try:
                return declared(**_typed(declared, fields["fields"]))
            except (ValidationError, TypeError) as error:
                return ContractError(f"{message} ({name}, whose fields this code cannot read: {error})")
    if name == ConflictError.__name__:
        return ConflictError(**fields["fields"])
    if name == OutcomeUnknown.__name__:
        return OutcomeUnknown(**fields["fields"])
    return DecisionFailed(message) if name == DecisionFailed.__name__ else ContractError(message)


def _typed(error: type[DomainError], fields: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(error)
    names = {field.name for field in dataclasses.fields(error)}  # type: ignore[arg-type]  # a DomainError is one
    return {k: TypeAdapter(hints[k]).validate_python(v) for k, v in fields.items() if k in names}
