"""Checks a state topic against its events: each stream's record against the fold of its events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

from leftfold.engine.log_gaps import check_complete
from leftfold.engine.processing.stream_state import MARK, ChangelogCheckpoint, Stream, StreamCodec, state_key
from leftfold.errors import ContractError
from leftfold.model import keys as names
from leftfold.model.decider import Decider
from leftfold.model.position import Position
from leftfold.model.state_codec import number_in
from leftfold.ports.bulk import OffsetRange, OpenBulkLog, read_range
from leftfold.ports.message_codec import MessageCodec
from leftfold.ports.protocols import RawRecord

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
        topic = names.events(decider.name)
        with closing(open_log()) as log:
            states, events = log.stable_ends([names.state(decider.name, decider.version)]), log.stable_ends([topic])
            check_complete(log, [OffsetRange(topic, p, 0, end) for p, end in events.offsets[topic].items()])
            return cls(decider, open_log, states | events)

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
        pairs = ((k, self._text(found.get(k)), self._text(folded.get(k))) for k in sorted(found.keys() | folded.keys()))
        differences = [Difference(partition, key, one, other) for key, one, other in pairs if one != other]
        return PartitionCheck(partition, events, len(found), tuple(differences))

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
                raise ContractError(
                    f"{record.address}: ce_sequence is {found.get('ce_sequence')!r}, which is no number"
                )
            event = codec.decode(found.get("ce_type", b""), record.value)
            yield record.offset, (record.key or b"").decode(), version, event

    def _records(self, topic: str, partition: int, tell: ProgressCallback) -> Iterator[RawRecord]:
        part = OffsetRange(topic, partition, 0, self.ends.next_offset(topic, partition))
        with closing(self.open_log()) as log:
            yield from read_range(log, part, tell)


def check_locally(check: StateCheck, tell: ProgressCallback) -> Iterable[PartitionCheck]:
    """Checks all partitions in this process, one after another."""
    return [check.run(partition, tell) for partition in check.partitions]
