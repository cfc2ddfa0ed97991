"""The task of a worker, for commands or a process: topics, processor, and the fold of state that its topic lacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from itertools import islice
from typing import Any, TypeAlias

from leftfold.engine.processing.command_processor import CommandProcessor, End
from leftfold.engine.processing.partition_processor import OVERHEAD, Clock, PartitionProcessor, Partitions
from leftfold.engine.processing.process_instance import Instance, InstanceCodec
from leftfold.engine.processing.process_processor import ProcessManagerProcessor
from leftfold.engine.processing.process_reactor import Failed, InputSkipped, Reactor
from leftfold.engine.processing.process_wire import BARRIER, read_input
from leftfold.engine.processing.stream_state import (
    MARK,
    ChangelogCheckpoint,
    Stream,
    StreamCodec,
    answer,
    answers_in,
    is_state,
)
from leftfold.errors import ContractError, InfrastructureError
from leftfold.model import keys as names
from leftfold.model.app import App
from leftfold.model.decider import Decider
from leftfold.model.keys import partition_of
from leftfold.model.process import Process
from leftfold.model.state_codec import number_in
from leftfold.ports.message_codec import UNREADABLE, MessageCodec, header
from leftfold.ports.outgoing import PASSED, offset_in
from leftfold.ports.protocols import RawRecord

__all__ = ["CommandTask", "ProcessRefold", "Refold", "Refolding", "TaskSpec", "task_for"]


_OPEN = 2000
_ROOM, _WEIGHT = 1_000_000, 16_000_000


class ProcessRefold:
    """Recovers process instances by taking one partition's inputs again, without sending their commands again.

    Inputs that were dead-lettered are skipped, whatever this code would make of them: nothing was sent for them.
    `changed` are the instances that the state topic does not have yet; of a great many only some are held decoded.
    """

    def __init__(self, process: Process[Any, Any, Any], store: MutableMapping[str, bytes]) -> None:
        self.store, self.refused = store, 0
        self.noted: dict[int, int] = {}
        self.passed: set[int] = set()
        self._reactor, self._topic = Reactor(process), f"{process.name}.commands"
        self._codec: InstanceCodec[Any] = InstanceCodec(process.state, process.initial_state)
        self.changed: dict[str, None] = {}
        self._open: dict[str, Instance[Any]] = {}
        self._dead: set[int] = set()

    def skip(self, letter: RawRecord) -> None:
        """Records an input that was dead-lettered, so that it is not taken now either."""
        if (offset := offset_in(letter, self._topic)) is not None:
            self._dead.add(offset)

    def add(self, record: RawRecord) -> None:
        """Takes one input; an unreadable one is skipped, as it was then."""
        if header(record.headers, "ce_type") == BARRIER:
            return
        try:
            given = read_input(record)
        except ContractError:
            return
        instance = self._instance(given.key)
        if record.offset in self._dead:
            self._reactor.refuse(instance, given)
        else:
            outcome = self._reactor.take(instance, given)
            if isinstance(outcome, InputSkipped) and given.key not in self.changed:
                return
            self.refused += isinstance(outcome, Failed)
        self.changed[given.key] = None
        self._open[given.key] = instance
        if len(self._open) > _OPEN:
            self._close(next(iter(self._open)))

    def adopt(self, key: str, record: bytes) -> bool:
        """Adopts nothing: all that an instance knows comes from its inputs."""
        return True

    def take(self, most: int, room: int = _ROOM) -> list[tuple[str, bytes]]:
        """Changed instances as records for the state topic, `most` of them or 16 MB; they count as unchanged then."""
        return list(_some(self.changed, most, self._record))

    def _record(self, key: str) -> bytes:
        self._close(key)
        del self.changed[key]
        return self.store.get(key) or b""

    def _close(self, key: str) -> None:
        if (instance := self._open.pop(key, None)) is not None:
            self.store[key] = self._codec.encode(instance)

    def _instance(self, key: str) -> Instance[Any]:
        if (instance := self._open.pop(key, None)) is not None:
            return instance
        record = self.store.get(key)
        return self._codec.new() if record is None else self._codec.decode(record, 0.0)


class Refold:
    """Recovers streams by folding one partition's events into its state store, each event once.

    Workers that stop at events that cannot be folded note them in `{category}.dead`; a checkpoint behind such a letter
    says that an operator had them skipped. `changed` are the streams that the state topic does not have yet. Answers
    are rebuilt as far as events allow: command ids that wrote something, without the digests of their bodies.
    """

    def __init__(self, decider: Decider[Any, Any, Any], store: MutableMapping[str, bytes]) -> None:
        self._decider, self.store = decider, store
        self._events: MessageCodec[Any] = MessageCodec(decider.events)
        self._streams = StreamCodec(decider.state, decider.initial_state)
        self.changed: dict[str, Stream[Any]] = {}
        self.refused = 0
        self._topic = names.events(decider.name)
        self.noted: dict[int, int] = {}
        self.passed: set[int] = set()

    def skip(self, letter: RawRecord) -> None:
        """Records a noted event, which is skipped once a checkpoint says so; dead-lettered commands are ignored."""
        if (offset := offset_in(letter, self._topic)) is not None:
            if header(letter.headers, "dead_how") == PASSED.encode():
                self.passed.add(offset)
            else:
                self.noted[offset] = letter.offset

    def stream(self, key: str, seen: float = 0.0) -> Stream[Any]:
        """The stream as folded so far; answers in its record count as given at `seen`."""
        if key in self.changed:
            return self.changed[key]
        record = self.store.get(key)
        if record is None:
            return self._streams.new()
        return self._streams.decode(record, seen)

    def _version(self, key: str) -> int:
        if key in self.changed:
            return self.changed[key].version
        record = self.store.get(key)
        return 0 if record is None else self._streams.version(record)

    def add(self, record: RawRecord) -> None:
        """Folds one event; a record with the key `@` is none (it ends a transaction that a broker forgot).

        Raises:
            InfrastructureError: events before it are missing, so no complete state can be made.
            ContractError: the event cannot be read or folded; the partition must not be served.
        """
        if record.key == MARK:
            return
        where, found = record.address, dict(record.headers)
        try:
            key = (record.key or b"").decode()
            version = _number(found["ce_sequence"])
            k, n = map(_number, found["ce_decision"].split(b"/"))
            command_id = found["ce_causationid"].decode()
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            why = header(record.headers, UNREADABLE).decode(errors="replace") or f"broken key or headers ({error!r})"
            raise ContractError(f"{where}: {why}; the partition is not served") from error
        if version <= self._version(key):
            return
        given_at = record.time / 1000
        stream = self.stream(key, given_at)
        if version != stream.version + 1:
            raise InfrastructureError(
                f"{where}: stream {key!r} continues at version {version}, but only {stream.version} are known; events "
                f"before it are missing, so the partition is not served"
            )
        try:
            event = self._events.decode(found.get("ce_type") or b"", record.value)
        except ContractError as error:
            raise ContractError(f"{where}: {error}; the partition is not served") from error
        try:
            stream.state = self._decider.evolve(stream.state, event)
        except Exception as error:
            raise ContractError(
                f"{where}: {self._decider.name}.evolve failed on {_brief(event)}: {_brief(error)}; the partition "
                "is not served"
            ) from error
        stream.version = version
        if command_id not in stream.answered:
            stream.remember(command_id, answer(command_id, "", version - k + 1, n, None, given_at))
        self.changed[key] = stream

    def adopt(self, key: str, record: bytes) -> bool:
        """Takes answers and origins from another decider version's record of the stream; False if it is none."""
        try:
            fields = json.loads(record)
            answers = answers_in(fields, 0.0)
            origins = [(source, (int(offset), int(index))) for source, (offset, index) in fields["origins"].items()]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return False  # of another writer; what it would have held is lost as with a lost state topic (decision 2)
        stream = self.stream(key)
        stream.weight = -1
        stream.answered.update(answers)
        for source, origin in origins:
            stream.origins[source] = max(origin, stream.origins.get(source, (-1, -1)))
        self.changed[key] = stream
        return True

    def take(self, most: int, room: int = _ROOM) -> list[tuple[str, bytes]]:
        """Changed streams as records for the state topic, `most` of them or 16 MB; they count as unchanged then.

        Answers are dropped, oldest first, from those that are larger than `room` bytes with their headers.
        """
        records = list(_some(self.changed, most, lambda key: self._record(key, room)))
        self.store.update(records)
        return records

    def _record(self, key: str, room: int) -> bytes:
        stream, room = self.changed.pop(key), room - OVERHEAD - 2 * len(key.encode())
        value = self._streams.encode(stream)
        return self._streams.encode(stream) if len(value) > room and stream.shed(len(value) - room) else value


def _some(keys: Iterable[str], most: int, record: Callable[[str], bytes]) -> Iterator[tuple[str, bytes]]:
    """The records of the first of these keys, for one transaction: `most` of them, or as many as weigh 16 MB."""
    weight = 0
    for key in list(islice(keys, most)):
        if weight > _WEIGHT:
            return
        value = record(key)
        weight += len(value)
        yield key, value


def _number(text: bytes) -> int:
    number = number_in(text)
    if number is None:
        raise ValueError(f"{text[:80]!r} is no number")
    return number


def _brief(value: object) -> str:
    return repr(value)[:500]


Refolding: TypeAlias = Refold | ProcessRefold
"""Brings the state records of one partition up to a log; `changed` are those that the state topic lacks.

`refused` is how many records of the log this code could not take, though they were taken once. `noted` are the offsets
of those at which workers stop, each with the offset of its dead letter; `passed` those that need not be folded.
"""


class CommandTask:
    """The commands of a category; its state can be folded from the events."""

    is_process = False
    is_state = staticmethod(is_state)

    def __init__(self, decider: Decider[Any, Any, Any]) -> None:
        self.decider, self.name, self.version = decider, decider.name, decider.version
        self.log, self.dead = names.events(self.name), names.dead(self.name)
        self.writes: tuple[str, ...] = (self.log, self.dead)
        self.rests: tuple[str, ...] = (self.log,)

    def processor(
        self, app: App, partitions: Partitions, end: End, max_bytes: int, clock: Clock
    ) -> PartitionProcessor[Any]:
        """The command processor."""
        return CommandProcessor(
            app.name,
            self.decider,
            partition_of=lambda key: partition_of(key, app.partitions),
            partitions=partitions,
            max_bytes=max_bytes,
            clock=clock,
            senders=app.senders_to(self.name),
            end=end,
        )

    def refold(self, store: MutableMapping[str, bytes]) -> Refolding:
        """The fold of the events."""
        return Refold(self.decider, store)

    def span(self, checkpoint: ChangelogCheckpoint, start: int, end: int) -> tuple[int, int]:
        """Events that the last batch before may have written, up to the end."""
        return checkpoint.events, end

    def partly(self, begin: int, start: int) -> tuple[int, int]:
        """The events before are known; no command is taken before all are."""
        return start, begin


class ProcessTask:
    """The inputs of a process; its state can be folded from them, which sends nothing."""

    is_process = True
    is_state = staticmethod(InstanceCodec.is_instance)

    def __init__(self, process: Process[Any, Any, Any]) -> None:
        self.process, self.name, self.version = process, process.name, process.version
        self.log, self.dead = names.commands(self.name), names.dead(self.name)
        self.writes: tuple[str, ...] = (self.dead,)
        self.rests: tuple[str, ...] = (self.log, *map(names.events, process.categories))

    def processor(
        self, app: App, partitions: Partitions, end: End, max_bytes: int, clock: Clock
    ) -> PartitionProcessor[Any]:
        """The process manager's processor."""
        return ProcessManagerProcessor(
            app.name,
            self.process,
            partition_of=lambda key: partition_of(key, app.partitions),
            partitions=partitions,
            max_bytes=max_bytes,
            lateness=app.lateness,
        )

    def refold(self, store: MutableMapping[str, bytes]) -> Refolding:
        """The fold of the inputs."""
        return ProcessRefold(self.process, store)

    def span(self, checkpoint: ChangelogCheckpoint, start: int, end: int) -> tuple[int, int]:
        """Inputs that were taken before, but not with this version's state."""
        return checkpoint.commands, start

    def partly(self, begin: int, start: int) -> tuple[int, int]:
        """The next worker takes all these inputs again."""
        return begin, 0


TaskSpec: TypeAlias = CommandTask | ProcessTask
"""The task of a worker: `log` is the topic to fold its state from, `writes` the topics it writes beside its state.
`is_state` says whether a value may be a state record of it.

`dead` is the topic of the records of the log that were not taken, or need not be: a process must know these before it
folds any. A decider's records of another version may hold what its own log does not. `rests` are the topics whose
offsets the state checkpoint holds beside its own. `span` is the range of the log that the state lacks, given its
checkpoint, the next record and the log's end; `partly` the `commands` and `events` of a checkpoint while only part of
what was folded is written.
"""


def task_for(app: App, name: str) -> TaskSpec:
    """The task of the worker of this name.

    Raises:
        ConfigurationError: the App has no decider and no process of that name.
    """
    for process in app.processes:
        if process.name == name:
            return ProcessTask(process)
    return CommandTask(app.decider(name))
