"""The Redis protocol, RESP2 and RESP3: decoding of commands and encoding of replies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "NULL_ARRAY",
    "OK",
    "CommandReader",
    "ErrorReply",
    "ProtocolError",
    "Push",
    "Reply",
    "SimpleString",
    "encode",
    "number",
    "write_reply",
]

_HEADER = re.compile(rb"[*$](0|[1-9]\d{0,8})\r\n")
_BULK = re.compile(rb"\$(0|[1-9]\d{0,7})\r\n")
_MOST_BULK = 512 * 1024 * 1024
_MOST_PARTS = 1024 * 1024
_MOST_DIGITS = 6


@dataclass(frozen=True)
class SimpleString:
    """A simple string, such as OK."""

    text: bytes


class ErrorReply(Exception):
    """An error reply; its text begins with the code, such as ERR or WRONGTYPE."""


class ProtocolError(Exception):
    """Bytes that are no command; the server answers with an error and closes the connection."""


class Push(list["Reply"]):
    """A message of a subscription: an array in RESP2, a push in RESP3."""


class _NullArray:
    """The reply to EXEC when a watched key has changed."""


NULL_ARRAY = _NullArray()
OK = SimpleString(b"OK")

Reply: TypeAlias = (
    int
    | float
    | bytes
    | SimpleString
    | ErrorReply
    | list["Reply"]
    | set[bytes]
    | dict[bytes, "Reply"]
    | _NullArray
    | None
)
"""A reply before it is encoded; a dict is a map, a set a set, None the null bulk string."""


class CommandReader:
    """Splits the bytes of one connection into commands, and buffers an incomplete one."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[list[bytes]]:
        """The commands that these bytes complete.

        Raises:
            ProtocolError: the bytes are no command.
        """
        if not self._buffer and (whole := _whole(data)) is not None:
            yield from whole
            return
        buffer = self._buffer + data if self._buffer else data
        at = 0
        try:
            while at < len(buffer):
                found = _inline(buffer, at) if buffer[at] != 42 else _command(buffer, at)
                if found is None:
                    break
                at, parts = found
                if parts:
                    yield parts
        finally:
            self._buffer = buffer[at:]


def _whole(data: bytes) -> list[list[bytes]] | None:
    """The commands of these bytes where they are nothing unusual: complete, and without a line break within a part."""
    lines = data.split(b"\r\n")
    last, at = len(lines) - 1, 0
    commands: list[list[bytes]] = []
    while at < last:
        count = lines[at][1:]
        end = at + 1 + 2 * int(count) if count.isdigit() and len(count) < _MOST_DIGITS else at
        parts = lines[at + 2 : end : 2]
        sizes = [b"$%d" % len(part) for part in parts]
        if not parts or lines[at] != b"*%d" % len(parts) or lines[at + 1 : end : 2] != sizes:
            return None
        commands.append(parts)
        at = end
    return None if at != last or lines[last] else commands


def _inline(buffer: bytes, at: int) -> tuple[int, list[bytes]] | None:
    end = buffer.find(b"\n", at)
    return None if end < 0 else (end + 1, buffer[at:end].split())


def _command(buffer: bytes, at: int) -> tuple[int, list[bytes]] | None:
    """The end and the parts of the command that begins here; None while it is incomplete."""
    header = _header(buffer, at, 42, _MOST_PARTS, "invalid multibulk length")
    if header is None:
        return None
    count, at = header
    parts: list[bytes] = []
    match, most = _BULK.match, len(buffer)
    for _ in range(count):
        if found := match(buffer, at):  # nearly always; the rest is for unusual input
            size, start = int(found[1]), found.end()
        else:
            header = _header(buffer, at, 36, _MOST_BULK, "invalid bulk length")
            if header is None:
                return None
            size, start = header
        at = start + size + 2
        if at > most:
            return None
        parts.append(buffer[start : at - 2])
    return at, parts


def _header(buffer: bytes, at: int, mark: int, most: int, message: str) -> tuple[int, int] | None:
    """The number behind a type byte, and where its data begins."""
    found = _HEADER.match(buffer, at)
    if found is not None and buffer[at] == mark and (value := int(found[1])) <= most:
        return value, found.end()
    end = buffer.find(b"\r\n", at)
    if end < 0:
        return None
    if buffer[at] != mark:
        raise ProtocolError(f"expected '{chr(mark)}', got '{chr(buffer[at])}'")
    number_ = number(buffer[at + 1 : end])
    if number_ is None or number_ > most or (mark == 36 and number_ < 0):
        raise ProtocolError(message)
    return number_, end + 2


def number(text: bytes) -> int | None:
    """An integer of 64 bits as Redis parses it; None for anything else: no spaces, no plus, no leading zeros."""
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 19 or (digits[0] == 48 and len(text) > 1):
        return None
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 63 else None


def encode(reply: Reply, version: int = 2) -> bytes:
    """The reply as bytes.

    Args:
        version: of the protocol, 2 or 3.
    """
    parts: list[bytes] = []
    write_reply(parts, reply, is_three=version == 3)
    return b"".join(parts)


def write_reply(parts: list[bytes], reply: Reply, *, is_three: bool) -> None:
    """Adds the bytes of a reply, in version 3 of the protocol or in version 2."""
    if isinstance(reply, bytes):
        parts.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
    elif isinstance(reply, list | set | dict):
        _encode_several(reply, is_three, parts)
    elif isinstance(reply, SimpleString):
        parts.append(b"+%b\r\n" % reply.text)
    elif isinstance(reply, int):
        parts.append(b":%d\r\n" % reply)
    elif isinstance(reply, float):
        text = double(reply)
        parts.append(b",%b\r\n" % text if is_three else b"$%d\r\n%b\r\n" % (len(text), text))
    elif isinstance(reply, ErrorReply):
        line = str(reply).encode(errors="surrogateescape").replace(b"\r", b" ").replace(b"\n", b" ")
        parts.append(b"-%b\r\n" % line)
    elif is_three:
        parts.append(b"_\r\n")
    else:
        parts.append(b"$-1\r\n" if reply is None else b"*-1\r\n")


def _encode_several(
    reply: Push | list[Reply] | set[bytes] | dict[bytes, Reply], is_three: bool, parts: list[bytes]
) -> None:
    values: Iterable[Reply] = reply
    mark, size = b"*", len(reply)
    if isinstance(reply, dict):
        mark, values = b"%", [each for item in reply.items() for each in item]
        size *= 1 if is_three else 2
    elif isinstance(reply, set):
        mark, values = b"~", sorted(reply)
    elif isinstance(reply, Push):
        mark = b">"
    parts.append(b"%b%d\r\n" % (mark if is_three else b"*", size))
    for value in values:
        write_reply(parts, value, is_three=is_three)


def double(value: float) -> bytes:
    """A double as Redis writes it."""
    return b"%.17g" % value
