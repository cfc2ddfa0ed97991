"""The command processor: decides commands against streams and returns one batch of writes, without a broker."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from leftfold.engine.processing.command_wire import (
    CONTENT_TYPE,
    PRINCIPAL,
    SMALL,
    SPEC_VERSION,
    Received,
    nack,
    read_command,
    small,
    to_error,
)
from leftfold.engine.processing.partition_processor import Clock, Partitioner, PartitionProcessor, Partitions
from leftfold.engine.processing.stream_state import Stream, StreamCodec, answer
from leftfold.errors import ConflictError, ContractError, DecisionFailed, DomainError, LeftfoldError, OutcomeUnknown
from leftfold.model import keys as names
from leftfold.model.decider import Decider
from leftfold.model.messages import Event
from leftfold.ports.instruments import DECIDE, outcome_of
from leftfold.ports.message_codec import MessageCodec, event_id, with_exact_json
from leftfold.ports.outgoing import Batch, HeaderList, Outgoing, Reply
from leftfold.ports.protocols import RawRecord
from leftfold.safety import shown

__all__ = ["Accepted", "CommandProcessor", "Duplicate", "End", "Refused", "decide"]


_LIBRARIES = "<", str(Path(__file__).parents[2]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))
"""Where code is that is not the user's: this framework, the standard library and installed packages."""
Encoded: TypeAlias = tuple[bytes, bytes]
"""An event's wire type and value."""


class Accepted(NamedTuple):
    """An accepted command: the events it wrote, from version `first` on; there may be none."""

    events: tuple[Encoded, ...]
    first: int
    dropped: int


class Duplicate(NamedTuple):
    """A command that was answered before: `version` and `events` as then, or the same `error` fields."""

    version: int
    events: int
    error: dict[str, Any] | None


class Refused(NamedTuple):
    """A command that wrote nothing.

    `remembered` says whether the stream's answers changed; a ContractError is dead-lettered.
    """

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
    """Decides one command and applies the outcome to `stream`.

    Order of checks: answered, deadline, origins, expected version, decide. `now` is when the broker
    appended the command and `decided` the worker's clock, in seconds since 1970; `max_bytes` is the limit of one
    event's value. A decision that fails in any way leaves version and state unchanged.
    """
    given = stream.answered.get(received.id)
    if given is not None:
        if given.digest and given.digest != received.digest:
            why = f"command id {received.id!r} belongs to another command; one id needs the same fields, times too"
            return Refused(ContractError(why), False)
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
        events = _decided(decider, received.command, stream.state)
        state, encoded = _apply(decider, codec, received, stream.state, events)
    except DomainError as error:
        if type(error) in received.command.__leftfold__.rejects:  # a client knows them by their names
            return _rejected(decider, stream, received, error, now, decided)
        why = (
            f"{decider.name}.decide raised {type(error).__name__}, which {type(received.command).__name__} does "
            f"not declare; add it to its rejects=: {shown(error, str)}"
        )
        return _failed(why, error)
    except Exception as error:  # noqa: BLE001  # user code may raise anything; it must not stop the processor
        return _failed(f"{decider.name} failed on {shown(received.command)}: {_reason(error)}", error)
    for type_, value in encoded:
        if len(value) > max_bytes:
            return Refused(
                ContractError(f"{type_.decode()} is too large to be written; at most {max_bytes} bytes fit"), False
            )
    first = stream.version + 1
    stream.state, stream.version = state, stream.version + len(events)
    begins, seen = first if events else stream.version, max(now, decided)
    given = answer(received.id, received.digest, begins, len(events), None, seen)
    dropped = stream.remember(received.id, given, now)
    _advance(stream, received)
    return Accepted(encoded, first, dropped)


def _failed(why: str, cause: Exception) -> Refused:
    """A refusal that keeps the original exception as its cause, for the worker's log."""
    error = DecisionFailed(why)
    error.__cause__ = cause
    return Refused(error, False)


def _late(id_: str, seconds: float) -> OutcomeUnknown:
    """The refusal of a late command. An earlier copy may have been decided so long ago that its answer is forgotten."""
    return OutcomeUnknown(
        id_,
        f"it reached the log {seconds:.0f} s behind its deadline and was refused; a network that held it back and a "
        f"clock of the sender that is slow look alike",
    )


def _decided(decider: Decider[Any, Any, Any], command: Any, state: Any) -> tuple[Event, ...]:
    events = decider.decide(command, state)
    if type(events) is not list and (isinstance(events, Event) or not isinstance(events, Iterable)):
        raise DecisionFailed(f"{decider.name}.decide gave {shown(events)}; give a list of events, [] for none")
    return tuple(events)


def _reason(error: Exception) -> str:
    """The error, with the file and line of user code that raised it, or that called the library that did."""
    if isinstance(error, DecisionFailed):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f"{shown(error)} ({Path(own[-1].filename).name}:{own[-1].lineno})"


def _rejected(
    decider: Decider[Any, Any, Any],
    stream: Stream[Any],
    received: Received,
    error: DomainError,
    now: float,
    decided: float,
) -> Refused:
    try:
        read = to_error(nack(error), type(received.command))
        if type(read) is not type(error):  # a client would not know which error it is
            raise read
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


def _apply(
    decider: Decider[Any, Any, Any], codec: MessageCodec[Any], received: Received, state: Any, events: Sequence[Event]
) -> tuple[Any, tuple[Encoded, ...]]:
    """The state after the events, and the encoded events."""
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
        event_as_read, value = with_exact_json(event)
        state = decider.evolve(state, event_as_read)
        encoded.append((type_, value))
    return state, tuple(encoded)


End: TypeAlias = Callable[[str, int], int]
WITHHELD = 60.0


class CommandProcessor(PartitionProcessor[Received]):
    """Decides batches of one category's commands over the partitions it holds.

    Args:
        app: the name of the App, part of `ce_source`.
        partition_of, partitions, max_bytes, clock: see PartitionProcessor.
        senders: the processes whose commands are taken and answered; commands of others are dead-lettered.
        end: where a partition of a topic ends now, uncommitted records included.
    """

    def __init__(
        self,
        app: str,
        decider: Decider[Any, Any, Any],
        *,
        partition_of: Partitioner,
        partitions: Partitions = lambda topic: 0,
        max_bytes: int = 1_000_000,
        clock: Clock = lambda: 0.0,
        senders: Iterable[str] = (),
        end: End = lambda topic, partition: 0,
    ) -> None:
        codec = StreamCodec(decider.state, decider.initial_state)
        super().__init__(
            app, decider.name, codec, partition_of=partition_of, partitions=partitions, max_bytes=max_bytes, clock=clock
        )
        self.decider = decider
        self.commands: MessageCodec[Any] = MessageCodec(decider.commands)
        self.events: MessageCodec[Any] = MessageCodec(decider.events)
        self._senders = {names.commands(sender).encode(): sender for sender in senders}
        self._withheld: dict[bytes, float] = {}
        self._end, self._ends, self._asked = end, dict[str, int](), set[str]()

    def extend(self, batch: Batch, records: Iterable[RawRecord], *, careful: bool = False) -> None:
        """Adds more records to a batch; see PartitionProcessor."""
        self._asked.clear()
        super().extend(batch, records, careful=careful)

    def _read(self, record: RawRecord) -> Received:
        received = read_command(self.commands, record)
        if received.reply_key or received.origin is not None:
            self._check_sender(received)
        return received

    def withhold(self, topics: Iterable[str]) -> bool:
        """Sends no answers to these topics for a minute, since this App may not write there.

        Returns whether there are any such topics.
        """
        withheld = dict.fromkeys((topic.encode() for topic in topics), self._clock() + WITHHELD)
        self._withheld |= withheld
        return bool(withheld)

    def _sender(self, to: bytes) -> str:
        return "" if self._clock() < self._withheld.get(to, 0.0) else self._senders.get(to, "")

    def _check_sender(self, received: Received) -> None:
        """Checks that a process's command comes from a declared sender and from an existing input.

        Raises:
            ContractError: it does not. A forged origin would count as seen and silence a genuine command.
        """
        to = received.reply_to.decode(errors="replace")
        if received.reply_to not in self._senders:
            raise ContractError(
                f"it is to be answered to {to!r}, no process that sends to {self.name}; if one does, say so in its "
                f"App(..., senders=[...]), and send it again"
            )
        if received.origin is None:
            return
        source, offset, _ = received.origin
        topic, _, partition = source.rpartition("/")
        if topic != to or int(partition) >= self._partitions(topic) or not self._reaches(source, offset):
            raise ContractError(f"its origin {source}/{offset} is no input of {to!r}")

    def _reaches(self, source: str, offset: int) -> bool:
        """Whether a partition has reached an offset; its end is asked for at most once per batch."""
        if offset >= self._ends.get(source, 0) and source not in self._asked:
            topic, _, partition = source.rpartition("/")
            self._asked.add(source)
            self._ends[source] = self._end(topic, int(partition))
        return offset < self._ends.get(source, 0)

    def _take(
        self, batch: Batch, record: RawRecord, given: Received, stream: Stream[Any], now: float, careful: bool
    ) -> None:
        span = self._span(DECIDE, batch, record, given) if given.traceparent else None
        if span is None:
            self._decide(batch, record, given, stream, now, careful)
            return
        with span:
            caused = given._replace(traceparent=span.traceparent.encode() or given.traceparent)
            outcome = self._decide(batch, record, caused, stream, now, careful)
            named = outcome.error if isinstance(outcome, Refused) else None
            span.note({"leftfold.outcome": "duplicate" if isinstance(outcome, Duplicate) else outcome_of(named)})

    def _decide(
        self, batch: Batch, record: RawRecord, given: Received, stream: Stream[Any], now: float, careful: bool
    ) -> Outcome:
        """Decides one command, and adds the effects to the batch."""
        spare = stream.copy() if careful else None
        room = self._room_beside(record.key)
        outcome = decide(self.decider, self.events, stream, given, now, room, self._decided)
        if spare is not None and (wrong := self._unfit(batch, record.partition, stream, room)):
            batch.streams[record.partition][given.key] = stream = spare
            outcome = Refused(wrong, False)
        self._write(batch, record, given, stream, outcome)
        return outcome

    def _write(
        self, batch: Batch, record: RawRecord, received: Received, stream: Stream[Any], outcome: Outcome
    ) -> None:
        if isinstance(outcome, Accepted):
            events, first, dropped = outcome
            for index, (type_, value) in enumerate(events):
                headers = self._headers(record, received, type_, first + index, index + 1, len(events))
                batch.events.append(Outgoing(record.partition, record.key, value, headers))
            batch.changed.add((record.partition, received.key))
            self._count(batch, "accepted")
            batch.drop_answers(record.partition, dropped)
            self._reply(batch, record, received, stream.version, len(events), None)
        elif isinstance(outcome, Duplicate):
            self._count(batch, "duplicates")
            self._reply(batch, record, received, *outcome)
        elif isinstance(outcome.error, ContractError):
            self._bury(batch, record, outcome.error)
        else:
            if outcome.remembered:
                batch.changed.add((record.partition, received.key))
            late = isinstance(outcome.error, OutcomeUnknown)
            self._count(batch, "rejected" if outcome.remembered else "late" if late else "failed")
            batch.drop_answers(record.partition, outcome.dropped)
            if not outcome.remembered and not late:
                batch.fail(outcome.error)
            self._reply(batch, record, received, stream.version, 0, nack(outcome.error))

    def _headers(self, record: RawRecord, received: Received, type_: bytes, version: int, k: int, n: int) -> HeaderList:
        headers = [
            SPEC_VERSION,
            ("ce_id", event_id(self.name, received.key, received.id, k - 1).encode()),
            self._source,
            ("ce_type", type_),
            ("ce_subject", record.key or b""),
            ("ce_time", received.time),
            ("ce_sequence", b"%d" % version),
            ("ce_decision", b"%d/%d" % (k, n)),
            ("ce_correlationid", received.correlation),
            ("ce_causationid", received.id.encode()),
            CONTENT_TYPE,
        ]
        if received.traceparent:
            headers.append(("traceparent", received.traceparent))
        if received.principal:
            headers.append((PRINCIPAL, received.principal))
        return headers

    def _reply(
        self,
        batch: Batch,
        record: RawRecord,
        received: Received,
        version: int,
        events: int,
        error: dict[str, Any] | None,
    ) -> None:
        if received.reply_key:
            self._answer(batch, record, version, events, error)
        elif received.reply_to:
            batch.replies.append(
                Reply(
                    received.reply_to,
                    received.id.encode(),
                    record.partition,
                    version,
                    events,
                    error,
                    received.digest.encode(),
                )
            )
