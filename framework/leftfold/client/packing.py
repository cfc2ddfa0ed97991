"""Encodes commands as records, the same for a broker and in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from leftfold.client.commands import CommandRequest
from leftfold.engine.processing.command_wire import command_headers, command_id
from leftfold.errors import ConfigurationError, ContractError
from leftfold.model import keys as names
from leftfold.model.messages import Command
from leftfold.ports.message_codec import exact_json, utc_text

__all__ = ["CommandPacker", "EncodedCommand"]


class EncodedCommand(NamedTuple):
    """A command encoded as a record; `body` is what a repeat must equal: type, value and expected version."""

    topic: str
    id: bytes
    key: bytes
    value: bytes
    headers: Any
    body: tuple[bytes, bytes, int | None]


class CommandPacker:
    """Encodes commands as records of their topics.

    Args:
        source: the App on whose behalf commands are sent.
        now: the time of a command without one, as a header value.
    """

    def __init__(self, source: str, now: Callable[[], bytes]) -> None:
        self._source, self._now = source, now
        self._types: dict[type[Command], tuple[str, str, bytes]] = {}

    def pack(self, request: CommandRequest, reply_to: bytes) -> EncodedCommand:
        """Encodes a command as a record.

        Raises:
            ContractError: its key is empty or reserved, the id or the principal is no text or too long, `at` is no
                datetime or has no time zone, `expected_version` is no whole number, or a value cannot be encoded.
            ConfigurationError: its class has no category.
        """
        type_ = type(request.command)
        place = self._types.get(type_) or self._learn(type_)
        try:
            return self._encoded(request, reply_to, *place)
        except (ValueError, OverflowError) as error:  # half of a surrogate pair, or a time before the year 1
            raise ContractError(f"{type_.__name__} cannot be sent: {error}") from error

    def _encoded(
        self, request: CommandRequest, reply_to: bytes, topic: str, key_field: str, type_: bytes
    ) -> EncodedCommand:
        command, id_, expected_version, at, principal, traceparent = request
        key, id_ = getattr(command, key_field), command_id() if id_ is None else id_
        if not key or key == "@" or not id_:
            raise ContractError(f"{key_field}={key!r}, id={id_!r}: neither may be empty, and '@' is reserved")
        for name, text in (("id", id_), ("principal", principal)):
            if text and not isinstance(text, str):
                raise ContractError(f"{name}={text!r} is {type(text).__name__}, and must be text: {name}=str(...)")
        if at is not None and not isinstance(at, datetime):
            raise ContractError(f"at={at!r} is {type(at).__name__}, and must be an aware datetime")
        if expected_version is not None and not hasattr(expected_version, "__index__"):
            raise ContractError(f"expected_version={expected_version!r} must be a whole number")
        value = exact_json(command)
        headers = command_headers(
            command,
            id=id_,
            source=self._source,
            at=self._now() if at is None else utc_text(at).encode(),
            type_=type_,
            expected_version=expected_version,
            reply_to=reply_to,
            principal=principal,
            traceparent=traceparent,
        )
        return EncodedCommand(topic, id_.encode(), key.encode(), value, headers, (type_, value, expected_version))

    def _learn(self, cls: type[Command]) -> tuple[str, str, bytes]:
        spec = cls.__leftfold__
        if not spec.category:
            raise ConfigurationError(f"{cls.__name__} has no category; give it category= and key=, or send a subclass")
        self._types[cls] = found = names.commands(spec.category), spec.key, spec.type.encode()
        return found
