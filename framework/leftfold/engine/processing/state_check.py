"""Checks a state topic against its events: each stream's record against the fold of its events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from leftfold.engine.archive.gaps import check_complete
from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint, Stream, StreamCodec, state_key
from leftfold.errors import ContractError
from leftfold.model import keys as names
from leftfold.model.decider import Decider
from leftfold.model.position import Position
from leftfold.model.state_encoding import number_in
from leftfold.ports.bulk import OffsetRange, OpenBulkLog, raw
from leftfold.ports.codec import MessageCodec

__all__ = ["Difference", "PartitionCheck", "StateCheck", "check_locally"]

ProgressCallback = Callable[[int], None]


@dataclass(frozen=True)
class Difference:
    """A stream whose record differs; `found` and `expected` are its version and state as JSON."""

    partition: int
    key: str
    found: str
    expected: str


@dataclass(frozen=True)
class PartitionCheck:
    """The result of one partition: how many events were folded, how many streams agree, and which do not."""

    partition: int
    events: int
    streams: int
    differences: tuple[Difference, ...] = ()

    def to_json(self) -> str:
        """The result as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> PartitionCheck:
        """Reads what `to_json` wrote."""
        found = json.loads(text)
        return cls(**{**found, "differences": tuple(Difference(**d) for d in found["differences"])})


@dataclass(frozen=True)
class StateCheck:
    """A check of all partitions of a category, to be run partition by partition, anywhere; it can be pickled.

    Args:
        ends: the stable ends of the state topic and the events topic, captured in this order.
    """

    decider: Decider[Any, Any, Any]
    open_log: OpenBulkLog
    ends: Position

    @classmethod
    def plan(cls, decider: Decider[Any, Any, Any], open_log: OpenBulkLog) -> StateCheck:
        """A check up to the current ends of the topics.

        The state topic's end is read first, so that no record is ahead of the events.

        Raises:
            InfrastructureError: the log no longer holds the first events.
        """
        log = open_log()
        try:
            states = log.stable_ends([names.state(decider.name, decider.version)])
            events = log.stable_ends([names.events(decider.name)])
            check_complete(
                log, [OffsetRange(t, p, 0, end) for t, ps in events.offsets.items() for p, end in ps.items()]
            )
            return cls(decider, open_log, states | events)
        finally:
            log.close()

    @property
    def partitions(self) -> range:
        """The partitions of the category."""
        return range(len(self.ends.offsets[names.events(self.decider.name)]))

    def run(self, partition: int, tell: ProgressCallback) -> PartitionCheck:
        """Reads one partition's states and events, and compares them stream by stream."""
        checkpoint, records = self._states(partition)
        codec = StreamCodec(self.decider.state, self.decider.initial_state)
        versions = {key: codec.version(record) for key, record in records.items()}
        folded: dict[str, Stream[Any]] = {}
        events = 0
        for offset, key, version, event in self._events(partition, tell):
            events += 1
            limit = versions.get(key)
            if (limit is None and offset >= checkpoint.events) or (limit is not None and version > limit):
                continue
            stream = folded.setdefault(key, Stream(0, self.decider.initial_state, {}, {}))
            stream.state, stream.version = self.decider.evolve(stream.state, event), version
        found = {key: codec.decode(record, 0.0) for key, record in records.items()}
        return PartitionCheck(partition, events, len(found), tuple(self._differences(partition, found, folded)))

    def _differences(
        self, partition: int, found: Mapping[str, Stream[Any]], folded: Mapping[str, Stream[Any]]
    ) -> Iterator[Difference]:
        for key in sorted(found.keys() | folded.keys()):
            one, other = self._text(found.get(key)), self._text(folded.get(key))
            if one != other:
                yield Difference(partition, key, one, other)

    def _text(self, stream: Stream[Any] | None) -> str:
        version, state = (stream.version, stream.state) if stream else (0, self.decider.initial_state)
        return f'{{"version":{version},"state":{self.decider.state.encode(state).decode()}}}'

    def _states(self, partition: int) -> tuple[ChangelogCheckpoint, dict[str, bytes]]:
        topic = names.state(self.decider.name, self.decider.version)
        checkpoint, records = ChangelogCheckpoint(), dict[str, bytes]()
        for record in self._records(topic, partition, lambda count: None):
            if record.key == MARK:
                checkpoint = ChangelogCheckpoint.read(record.value or b"{}") or checkpoint
            elif record.value is not None and (key := state_key(record.key or b"")):
                records[key] = record.value
        return checkpoint, records

    def _events(self, partition: int, tell: ProgressCallback) -> Iterator[tuple[int, str, int, Any]]:
        codec: MessageCodec[Any] = MessageCodec(self.decider.events)
        for record in self._records(names.events(self.decider.name), partition, tell):
            if record.key == MARK:
                continue
            found = dict(record.headers)
            version = number_in(found.get("ce_sequence") or b"")
            if version is None:
                where = f"{record.topic}[{record.partition}]@{record.offset}"
                raise ContractError(f"{where}: ce_sequence is {found.get('ce_sequence')!r}, which is no number")
            event = codec.decode(found.get("ce_type", b""), record.value)
            yield record.offset, (record.key or b"").decode(), version, event

    def _records(self, topic: str, partition: int, tell: ProgressCallback) -> Iterator[Any]:
        part = OffsetRange(topic, partition, 0, self.ends.next_offset(topic, partition))
        log = self.open_log()
        try:
            for records in log.read(part):
                yield from (raw(part, record) for record in records)
                tell(len(records))
        finally:
            log.close()


def check_locally(check: StateCheck, tell: ProgressCallback) -> Iterable[PartitionCheck]:
    """Checks all partitions in this process, one after another."""
    return [check.run(partition, tell) for partition in check.partitions]
