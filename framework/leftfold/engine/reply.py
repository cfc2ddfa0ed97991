"""Answers on the wire: an ack is a receipt, a nack is an error with its fields."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from leftfold import names
from leftfold.codec import digest
from leftfold.digits import number_in
from leftfold.envelope import Receipt
from leftfold.errors import ConflictError, ContractError, DecisionFailed, DomainError, LeftfoldError, OutcomeUnknown
from leftfold.messages import Command
from leftfold.position import Position

__all__ = ["ack", "nack", "read_reply", "small", "to_error"]

SMALL = 2048
_SHOWN = 300

T = TypeVar("T")
_MOST = 1 << 63
"""Beyond the offsets, versions and partitions of any topic."""


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


def read_reply(value: bytes, command: type[Command], partitions: int = _MOST) -> Receipt | LeftfoldError:
    """The receipt or the error in an answer, in which anything may stand: whoever may write to the topic wrote it.

    Args:
        partitions: how many the events of the command's category have.

    Raises:
        ContractError: it is no answer to such a command.
    """
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"no answer that this code can read: {value[:200]!r} ({_brief(error)})") from error
    try:
        found = _checked(fields, dict, "the answer")
        if "error" in found:
            return to_error(found, command)
        position = _position(found["position"], names.events(command.__leftfold__.category), partitions)
        return Receipt(position, _number(found["version"], "version"), _number(found["events"], "events"))
    except (ContractError, KeyError) as error:
        raise ContractError(f"no answer that this code can read: {value[:200]!r} ({_brief(error)})") from error


def to_error(fields: dict[str, Any], command: type[Command]) -> LeftfoldError:
    """The error behind a nack: the command's own DomainError where it declares it.

    Raises:
        ContractError: the fields are not those of a nack.
    """
    try:
        name, message = _text(fields["error"], "error"), _text(fields["message"], "message")
        if "digest" in fields:
            return ContractError(f"{name}: {message}")
        found = _checked(fields.get("fields", {}), dict, "fields")
        for declared in command.__leftfold__.rejects:
            if declared.__name__ == name:
                return _declared(declared, found, message)
        if name == ConflictError.__name__:
            expected, actual = (_number(found[each], each) for each in ("expected", "actual"))
            return ConflictError(_text(found["key"], "key"), expected, actual)
        if name == OutcomeUnknown.__name__:
            return OutcomeUnknown(_text(found["command_id"], "command_id"), _text(found["why"], "why"))
    except KeyError as error:
        raise ContractError(f"an error without {error}: {_brief(fields)}") from error
    return DecisionFailed(message) if name == DecisionFailed.__name__ else ContractError(message)


def _declared(error: type[DomainError], fields: dict[str, Any], message: str) -> LeftfoldError:
    """The DomainError with these fields; what its fields are made of, and how they are told, is code of the user."""
    try:
        found = error(**_typed(error, fields))
        str(found)
    except Exception as failure:  # noqa: BLE001
        return ContractError(f"{message} ({error.__name__}, whose fields this code cannot read: {_brief(failure)})")
    return found


def _typed(error: type[DomainError], fields: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(error)
    known = {field.name for field in dataclasses.fields(error)}  # type: ignore[arg-type]  # a DomainError is one
    return {k: TypeAdapter(hints[k]).validate_python(v) for k, v in fields.items() if k in known}


def _position(found: object, topic: str, partitions: int) -> Position:
    """A position in the events of one category; nobody is to wait for an offset of another topic, or for none."""
    offsets: dict[str, dict[int, int]] = {}
    for name, at in _checked(found, dict, "position").items():
        if name != topic:
            raise ContractError(f"the position is in {name!r}, not in {topic}")
        for text, offset in _checked(at, dict, "position").items():
            partition = number_in(text)
            if partition is None or partition >= partitions:
                raise ContractError(f"{topic} has no partition {_brief(text)}")
            offsets.setdefault(topic, {})[partition] = _number(offset, "offset")
    return Position(offsets)


def _number(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ContractError(f"{what} is {_brief(value)}, and no number from 0 on")
    return value


def _text(value: object, what: str) -> str:
    return str(_checked(value, str, what)).encode(errors="replace").decode()


def _checked(value: object, kind: type[T], what: str) -> T:
    if not isinstance(value, kind):
        raise ContractError(f"{what} is {_brief(value)}, and no {kind.__name__}")
    return value


def _brief(value: object) -> str:
    try:
        return repr(value)[:200]
    except RecursionError:
        return type(value).__name__
