"""A partition at its broker: records with offsets, producer states and open transactions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

__all__ = ["BrokerError", "Headers", "Partition", "ProducedBatch", "SimulatedTopic", "StoredRecord"]

Headers = list[tuple[str, bytes | None]] | None
_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}
REMEMBERED = 5
"""The batches of a producer by which a partition recognises duplicates."""


class BrokerError(Exception):
    """A broker's error code as an answer."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class StoredRecord(NamedTuple):
    """One record, or a transaction marker (`outcome`)."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    producer: int = -1
    is_open: bool = False
    outcome: bool | None = None
    kind: int = 1
    """The kind of the timestamp: 1 = the producer's, 2 = the broker's."""

    @property
    def weight(self) -> int:
        """The approximate size in bytes."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers or ())
        return 70 + len(self.key or b"") + len(self.value or b"") + headers


class ProducedBatch(NamedTuple):
    """A batch that a producer sends to one partition; `producer` -1 = one without sequence numbers."""

    records: Sequence[tuple[bytes | None, bytes | None, Headers, int]]
    producer: int = -1
    epoch: int = -1
    sequence: int = -1
    is_transactional: bool = False


class _Writer:
    """The state of a producer at a partition."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next = 0
        self.recent: list[tuple[int, int, int]] = []


class Partition:
    """One partition; `watchers` are called at every change.

    Attributes:
        start: the first available offset. end: the high watermark. lost: transactions whose end never comes.
    """

    def __init__(self, topic: SimulatedTopic, number: int) -> None:
        self.topic, self.number = topic, number
        self.start = self.end = 0
        self.records: list[StoredRecord] = []
        self.watchers: dict[Callable[[], None], None] = {}
        self._writers: dict[int, _Writer] = {}
        self._open: dict[int, int] = {}
        self._aborted: list[tuple[int, int, int]] = []
        self._committed: Sequence[StoredRecord] | None = None

    def __repr__(self) -> str:
        return f"{self.topic.name}[{self.number}]"

    @property
    def stable_end(self) -> int:
        """The last stable offset: every transaction before it is decided."""
        return min(self._open.values(), default=self.end)

    def append(self, batch: ProducedBatch, now: int) -> int:
        """Appends a batch; returns the offset of its first record.

        Raises:
            BrokerError: DUPLICATE_SEQUENCE_NUMBER, OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH.
        """
        if batch.producer >= 0:
            known = self._known(batch)
            if known is not None:
                return known
        base = self.end
        records, producer, is_open = self.records, batch.producer, batch.is_transactional
        by_broker = self.topic.config.get("message.timestamp.type") == "LogAppendTime"
        for offset, (key, value, headers, timestamp) in enumerate(batch.records, base):
            when = now if by_broker else timestamp
            records.append(StoredRecord(offset, key, value, headers, when, producer, is_open, None, 1 + by_broker))
        self.end += len(batch.records)
        if batch.producer >= 0:
            writer = self._writers[batch.producer]
            last = batch.sequence + len(batch.records) - 1
            writer.next = last + 1
            writer.recent = [*writer.recent[1 - REMEMBERED :], (batch.sequence, last, base)]
            if batch.is_transactional:
                self._open.setdefault(batch.producer, base)
        self.changed()
        return base

    def _known(self, batch: ProducedBatch) -> int | None:
        """The offset of a batch that was appended before."""
        writer = self._writers.get(batch.producer)
        if writer is not None and batch.epoch < writer.epoch:
            raise BrokerError(47)
        if writer is None or batch.epoch > writer.epoch:
            if batch.sequence != 0 and writer is not None:
                raise BrokerError(45)
            self._writers[batch.producer] = writer = _Writer(batch.epoch)
            writer.next = batch.sequence
        last = batch.sequence + len(batch.records) - 1
        for first, end, base in writer.recent:
            if (first, end) == (batch.sequence, last):
                return base
        if batch.sequence != writer.next:
            raise BrokerError(46 if batch.sequence < writer.next else 45)
        return None

    def decide(self, producer: int, epoch: int, outcome: bool, now: int) -> None:
        """Writes the marker of a producer's open transaction; older epochs are refused from now on."""
        writer = self._writers.get(producer)
        if writer is None or epoch > writer.epoch:
            self._writers[producer] = _Writer(epoch)
        first = self._open.pop(producer, None)
        if first is not None and not outcome:
            self._aborted.append((producer, first, self.end))
        self.records.append(StoredRecord(self.end, None, None, None, now, producer, True, outcome))
        self.end += 1
        self.changed()

    def read(
        self, offset: int, *, committed: bool, most: int, weight: int = 1 << 20, markers: bool = False
    ) -> tuple[list[StoredRecord], int]:
        """Records from an offset on, with markers if wanted, and the offset of the next read.

        Raises:
            BrokerError: OFFSET_OUT_OF_RANGE.
        """
        if not self.start <= offset <= self.end:
            raise BrokerError(1)
        end = self.stable_end if committed else self.end
        found: list[StoredRecord] = []
        for index in range(self._index(offset), len(self.records)):
            record = self.records[index]
            if record.offset >= end:
                break
            if len(found) >= most or weight <= 0:
                return found, record.offset
            if markers if record.outcome is not None else not (committed and self._is_aborted(record)):
                found.append(record)
                weight -= record.weight
        return found, max(offset, end)

    def committed(self) -> Sequence[StoredRecord]:
        """Every record that readers of committed records see."""
        # A run asks many times between two changes whether all is done.
        if self._committed is None:
            self._committed = self.read(self.start, committed=True, most=1 << 60, weight=1 << 60)[0]
        return self._committed

    def at(self, timestamp: int) -> int:
        """The offset of the first record at or after a time, -1 when there is none."""
        found = (r.offset for r in self.records if r.outcome is None and r.timestamp >= timestamp)
        return next(found, -1)

    def delete(self, before: int) -> None:
        """Deletes the records before an offset."""
        self.start = max(self.start, min(before, self.end))
        del self.records[: self._index(self.start)]
        self.changed()

    def cut(self, end: int) -> None:
        """Loses the records behind an offset and the states of their producers: a log that was restored, or torn."""
        del self.records[self._index(end) :]
        self.end = end
        self._open.clear()
        self._writers.clear()
        self._aborted = [one for one in self._aborted if one[2] <= end]
        self.changed()

    @property
    def settled(self) -> list[int]:
        """Offsets at which no transaction was open."""
        found, open_ = [self.start], set[int]()
        for record in self.records:
            if record.outcome is not None:
                open_.discard(record.producer)
            elif record.is_open:
                open_.add(record.producer)
            if not open_:
                found.append(record.offset + 1)
        return found

    def compact(self) -> None:
        """Keeps the last record of each key, except in the part that is not stable."""
        end = self.stable_end
        last = {
            r.key: r.offset for r in self.records if r.outcome is None and r.offset < end and not self._is_aborted(r)
        }
        self.records = [
            r for r in self.records if r.offset >= end or (r.outcome is None and last.get(r.key) == r.offset)
        ]
        self.changed()

    @property
    def open(self) -> dict[int, int]:
        """The first offset of the open transaction of each producer."""
        return dict(self._open)

    def changed(self) -> None:
        """Calls the watchers."""
        self._committed = None
        for watcher in list(self.watchers):
            watcher()

    def _index(self, offset: int) -> int:
        records = self.records
        if not records or offset > records[-1].offset:
            return len(records)
        guess = offset - records[0].offset
        if 0 <= guess < len(records) and records[guess].offset == offset:
            return guess
        return bisect_left(records, offset, key=lambda record: record.offset)

    def _is_aborted(self, record: StoredRecord) -> bool:
        if not record.is_open:
            return False
        return any(p == record.producer and first <= record.offset < end for p, first, end in self._aborted)


class SimulatedTopic:
    """A topic with its partitions; `id_` distinguishes it from an earlier topic of the same name."""

    def __init__(self, name: str, count: int, config: dict[str, str], id_: str) -> None:
        self.name, self.id_ = name, id_
        self.config = {**_DEFAULTS, **config}
        self.partitions = [Partition(self, number) for number in range(count)]
