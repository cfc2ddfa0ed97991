"""One command against one stream: the order of checks, the decision, and what it makes of the stream."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from leftfold.codec import MessageCodec
from leftfold.decider import Decider
from leftfold.engine.received import Received
from leftfold.engine.reply import SMALL, nack, small
from leftfold.engine.stream import Stream, answer
from leftfold.errors import (
    ConflictError,
    ContractError,
    DecisionFailed,
    DomainError,
    LeftfoldError,
    OutcomeUnknown,
)
from leftfold.messages import Event
from leftfold.printable import shown

__all__ = ["Accepted", "Duplicate", "Outcome", "Refused", "decide"]


Encoded: TypeAlias = tuple[bytes, bytes]
"""An event's wire type and value."""


class Accepted(NamedTuple):
    """The command wrote these events, the first of which has version `first`; none is an accepted nothing."""

    events: tuple[Encoded, ...]
    first: int
    dropped: int


class Duplicate(NamedTuple):
    """The command was answered before: `version` and `events` as then, or the same `error` fields."""

    version: int
    events: int
    error: dict[str, Any] | None


class Refused(NamedTuple):
    """The command wrote nothing. `remembered`: the stream's answers changed; a ContractError is dead-lettered."""

    error: LeftfoldError
    remembered: bool
    dropped: int = 0


Outcome = Accepted | Duplicate | Refused


def decide(
    decider: Decider[Any, Any, Any],
    codec: MessageCodec[Any],
    stream: Stream[Any],
    received: Received,
    now: float,
    max_bytes: int = 1_000_000,
    decided: float = 0.0,
) -> Outcome:
    """Decides one command and changes `stream` to what it is afterwards.

    Order of checks (design §3): answered, deadline, origins, expected version, decide. `now` is when the broker
    appended the command and `decided` the worker's clock, in seconds since 1970; `max_bytes` is what one event's value
    may weigh.
    A decision that fails in any way leaves version and state as they were.
    """
    given = stream.answered.get(received.id)
    if given is not None:
        if given.digest and given.digest != received.digest:
            return Refused(
                ContractError(
                    f"command id {received.id!r} belongs to another command; one id needs the same fields, times too"
                ),
                False,
            )
        version = given.first + given.events - 1 if given.events else given.first
        return Duplicate(version, given.events, given.error)
    if received.deadline is not None and (late := now - received.deadline / 1000) > 0:
        return Refused(_late(received.id, late), False)
    if received.origin is not None:
        source, offset, index = received.origin
        if stream.origins.get(source, (-1, -1)) >= (offset, index):
            return Duplicate(stream.version, 0, None)
    expected = received.expected_version
    if expected is not None and expected != stream.version:
        return _refused(stream, received, ConflictError(received.key, expected, stream.version), now, decided)
    try:
        events = decider.decide(received.command, stream.state)
        state, encoded = _happened(decider, codec, received, stream.state, events)
    except DomainError as error:
        if isinstance(error, received.command.__leftfold__.rejects):
            return _rejected(decider, stream, received, error, now, decided)
        why = (
            f"{decider.name}.decide raised {type(error).__name__}, which {type(received.command).__name__} does "
            f"not declare; add it to its rejects=: {shown(error, str)}"
        )
        return _failed(why, error)
    except Exception as error:  # noqa: BLE001  # user code may raise anything; it must not stop the lane
        why = f"{decider.name} failed on {shown(received.command)}: {shown(error)}{_where(error)}"
        return _failed(why, error)
    for type_, value in encoded:
        if len(value) > max_bytes:
            return Refused(
                ContractError(f"{type_.decode()} is too large to be written; at most {max_bytes} bytes fit"), False
            )
    first = stream.version + 1
    stream.state, stream.version = state, stream.version + len(events)
    dropped = stream.remember(
        received.id,
        answer(received.id, received.digest, first if events else stream.version, len(events), None, max(now, decided)),
        now,
    )
    _advance(stream, received)
    return Accepted(encoded, first, dropped)


def _failed(why: str, cause: Exception) -> Refused:
    """A refusal that keeps the exception behind it, for the worker's log."""
    error = DecisionFailed(why)
    error.__cause__ = cause
    return Refused(error, False)


def _late(id_: str, seconds: float) -> OutcomeUnknown:
    """Its repeat may have been decided so long ago that this is not remembered."""
    return OutcomeUnknown(
        id_,
        f"it reached the log {seconds:.0f} s behind its deadline and was refused; a network that held it back and a "
        f"clock of the sender that is slow look alike",
    )


def _where(error: Exception) -> str:
    """The line of user code that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _rejected(
    decider: Decider[Any, Any, Any],
    stream: Stream[Any],
    received: Received,
    error: DomainError,
    now: float,
    decided: float,
) -> Refused:
    try:
        return _refused(stream, received, error, now, decided)
    except Exception as failure:  # noqa: BLE001  # its fields and message are user code too
        why = f"{decider.name} rejected with {type(error).__name__}, which cannot be written down: {shown(failure)}"
        return _failed(why, failure)


def _refused(stream: Stream[Any], received: Received, error: LeftfoldError, now: float, decided: float) -> Refused:
    seen, refusal = max(now, decided), nack(error)
    given = answer(received.id, received.digest, stream.version, 0, refusal, seen)
    if len(given.encoded) > SMALL:
        # Each transaction writes it again, and two large ones would fill the record.
        given = answer(received.id, received.digest, stream.version, 0, small(refusal), seen)
    dropped = stream.remember(received.id, given, now)
    _advance(stream, received)
    return Refused(error, True, dropped)


def _advance(stream: Stream[Any], received: Received) -> None:
    if received.origin is not None:
        source, offset, index = received.origin
        stream.origins[source] = (offset, index)


def _happened(
    decider: Decider[Any, Any, Any],
    codec: MessageCodec[Any],
    received: Received,
    state: Any,
    events: Sequence[Event],
) -> tuple[Any, tuple[Encoded, ...]]:
    """The state after the events, and the events as they are written."""
    encoded: list[Encoded] = []
    for event in events:
        type_ = codec.types.get(type(event))
        if type_ is None:
            raise DecisionFailed(f"{event!r} is none of the events of decider {decider.name}")
        key = getattr(event, type(event).__leftfold__.key)
        if key != received.key:
            raise DecisionFailed(
                f"{type(event).__name__} has key {key!r}, but the command decides for {received.key!r} only"
            )
        state = decider.evolve(state, event)
        encoded.append((type_, codec.encode(event)))
    return state, tuple(encoded)
