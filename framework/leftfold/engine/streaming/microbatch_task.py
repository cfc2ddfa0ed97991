"""The task of a micro-batch: decodes, folds and flushes whole buckets, and reports their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

from leftfold.engine.rebuild.sorted_fold import KeyedUpdate, OpenedRecords, UpdateReader, UpdateSorter
from leftfold.engine.views.decoding import EventDecoder
from leftfold.engine.views.folded_rows import RowAddress, stream_row
from leftfold.engine.views.projection_writer import MAX_PARKED, ProjectionWriter
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import OffsetRange, OpenBulkLog, ReadRecord, read_range
from leftfold.ports.flush import Checkpoint, Generation, Parked, Phase, Snapshot
from leftfold.ports.message_codec import header, is_last_of_decision
from leftfold.ports.protocols import RawRecord, ViewStore

__all__ = ["BatchResult", "MicroBatchTask", "MicroBatchWriter"]


class MicroBatchWriter(ProjectionWriter):
    """A ProjectionWriter for one batch, which gets its rows and checkpoints from `read`.

    Args:
        places, read: the rows that the batch changes, and what the store holds of them and of their buckets.
        token: of the checkpoints that it writes.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generation: Generation,
        store: ViewStore,
        places: Sequence[RowAddress],
        read: Snapshot,
        *,
        token: str,
        max_parked: int,
    ) -> None:
        self._given, self._named = read, token
        self._fields = dict(zip(places, read.rows, strict=True))
        super().__init__(view, generation, store, most=len(places), max_parked=max_parked)

    def reread(self) -> None:
        """Takes the checkpoints that it was given."""
        self._begin_at(dict(self._given.checkpoints))

    def _read(self, places: Sequence[RowAddress]) -> Snapshot:
        return replace(self._given, rows=tuple(self._fields[place] for place in places))

    def _token(self) -> str:
        return self._named


class UpdateWriter(MicroBatchWriter):
    """Folds keyed updates, which name the rows they change, instead of records.

    Args:
        sources: the topic-partitions that `KeyedUpdate.source` numbers.
    """

    def __init__(self, *args: Any, sources: Sequence[OffsetRange], **options: Any) -> None:
        super().__init__(*args, **options)
        self._sources, self._value = sources, UpdateReader(self.view).value

    def _take(self, records: Sequence[KeyedUpdate]) -> list[RowAddress]:
        for item in records:
            source = self._sources[item.source]
            if not _folded(self.checkpoints, source, item):
                self._fold.give((item.bucket, item.key), item.key, self._value(item.body), item.place(self._sources))
        return self._fold.missing()


def _folded(checkpoints: Mapping[int, Any], source: OffsetRange, item: KeyedUpdate) -> bool:
    at: int = checkpoints[item.bucket].position.next_offset(source.topic, source.partition)
    return item.offset < at


@dataclass(frozen=True)
class BatchResult:
    """The state of a bucket after a batch.

    Args:
        checkpoint: the one in the store now; None = the batch changed nothing in the bucket.
        whole: where decisions end, for the partitions where that is not where the batch ends.
        trouble: why the query must restart from the checkpoints.
        stopped: why the view cannot continue at all.
    """

    bucket: int
    checkpoint: Checkpoint | None = None
    whole: Position = field(default_factory=Position)
    trouble: str = ""
    stopped: str = ""

    def to_json(self) -> str:
        """The result as one line of JSON."""
        checkpoint = None if self.checkpoint is None else asdict(replace(self.checkpoint, position=Position()))
        if checkpoint is not None and self.checkpoint is not None:
            checkpoint |= {"position": self.checkpoint.position.to_json()}
        fields = {"bucket": self.bucket, "mark": checkpoint, "whole": self.whole.to_json()}
        return json.dumps(fields | {"trouble": self.trouble, "stopped": self.stopped})

    @classmethod
    def from_json(cls, text: str) -> BatchResult:
        """Reads what `to_json` wrote."""
        fields = json.loads(text)
        checkpoint, whole = fields.pop("mark"), Position.from_json(fields.pop("whole"))
        return cls(**fields, checkpoint=None if checkpoint is None else _checkpoint(checkpoint), whole=whole)


def _checkpoint(found: Mapping[str, object]) -> Checkpoint:
    fields = dict(found)
    parked: Mapping[str, Mapping[str, object]] = fields.pop("parked")  # type: ignore[assignment]  # as written above
    return Checkpoint(
        position=Position.from_json(str(fields.pop("position"))),
        phase=Phase(str(fields.pop("phase"))),
        parked={key: Parked(**why) for key, why in parked.items()},  # type: ignore[arg-type]  # the same
        **fields,  # type: ignore[arg-type]  # the same
    )


_WHOLE = -1
"""The `nth` of an update that only carries, as its offset, how far decisions of a source are whole."""


@dataclass(frozen=True)
class MicroBatchTask:
    """One batch for one generation; every field can be pickled if the factories can.

    A checkpoint written in a batch has the token `{run}.{batch}`. A task that finds a token of this run, but not the
    one that the driver knows, decides by the position: behind this batch, another attempt of the task was faster;
    before it, the store went back in time. Any other token is another writer's.

    Args:
        tokens: of the checkpoints, as the driver wrote or read them last.
        done: up to where events are folded. `done` is before `begin` where a batch ended within a decision.
        begin, end: the range of this batch.
        parked: how many keys are parked in each bucket.
    """

    view: View[Any, Any]
    generation: Generation
    open_store: Callable[[], ViewStore]
    open_log: OpenBulkLog
    run: str
    batch: int
    tokens: Mapping[int, str]
    done: Position
    begin: Position
    end: Position
    parked: Mapping[int, int] = field(default_factory=dict)
    max_parked: int = MAX_PARKED

    @property
    def token(self) -> str:
        """The token of checkpoints written in this batch."""
        return f"{self.run}.{self.batch}"

    @property
    def sources(self) -> tuple[OffsetRange, ...]:
        """Every partition of the topics, in the order in which `KeyedUpdate.source` numbers them."""
        return tuple(
            OffsetRange(
                topic, partition, self.begin.next_offset(topic, partition), self.end.next_offset(topic, partition)
            )
            for topic, count in self.generation.topics.items()
            for partition in range(count)
        )

    def expected(self, topic: str, partition: int) -> int:
        """The offset up to which a partition is folded after this batch, unless a task reports another."""
        done, begin = self.done.next_offset(topic, partition), self.begin.next_offset(topic, partition)
        return done if done < begin else self.end.next_offset(topic, partition)

    def fold_partitions(self, records: Iterable[RawRecord], store: ViewStore) -> Iterator[BatchResult]:
        """Folds the records of some partitions of a stream-keyed view, one after another, into their buckets."""
        for _, arrived in groupby(records, attrgetter("topic", "partition")):
            yield self._fold_partition(arrived, store)

    def _fold_partition(self, arrived: Iterator[RawRecord], store: ViewStore) -> BatchResult:
        first = next(arrived)
        decoder = EventDecoder([self.view])
        decoded = [decoder.decode(record) for record in self._from_done(first, arrived)]
        count = self.whole([record.last for record in decoded])
        whole = decoded[:count]
        reached = self._reached(decoded[count].offset if count < len(decoded) else None, first)
        at = Position.at(first.topic, first.partition, reached)
        said = Position() if reached == self.expected(first.topic, first.partition) else at
        # An event of another type changes no row.
        keys = dict.fromkeys(stream_row(self.view, one)[1] for one in whole if one.event is not None or one.error)
        places = [(first.partition, key) for key in keys]
        return self._folded(store, places, whole, at, BatchResult(first.partition, whole=said))

    def read_items(self, records: Iterable[RawRecord]) -> Iterator[KeyedUpdate]:
        """The records of some partitions as keyed updates for a view that is not stream-keyed.

        Raises:
            ContractError: an event stops the view.
        """
        for _, arrived in groupby(records, attrgetter("topic", "partition")):
            yield from self._read_partition(arrived)

    def _read_partition(self, arrived: Iterator[RawRecord]) -> Iterator[KeyedUpdate]:
        first = next(arrived)
        source = next(n for n, s in enumerate(self.sources) if (s.topic, s.partition) == (first.topic, first.partition))
        known = list(self._from_done(first, arrived))
        count = self.whole([is_last_of_decision(header(record.headers, "ce_decision")) for record in known])
        reached = self._reached(known[count].offset if count < len(known) else None, first)
        if reached != self.expected(first.topic, first.partition):
            yield from (KeyedUpdate(b, "", source, reached, _WHOLE, b"", "") for b in range(self.generation.buckets))
        writer = UpdateSorter(self.view, self.generation.buckets)
        opened = OpenedRecords([self.view]).of(self.sources[source], map(ReadRecord, known[:count]))
        yield from writer.items(source, opened)

    def fold_buckets(self, items: Iterable[KeyedUpdate], store: ViewStore) -> Iterator[BatchResult]:
        """Folds all updates of some buckets of a view that is not stream-keyed, sorted by bucket and key."""
        for bucket, found in groupby(items, attrgetter("bucket")):
            yield self._fold_bucket(bucket, found, store)

    def _fold_bucket(self, bucket: int, items: Iterable[KeyedUpdate], store: ViewStore) -> BatchResult:
        sources = self.sources
        reached = {(t, p): self.expected(t, p) for t, count in self.generation.topics.items() for p in range(count)}
        whole, touching = dict[tuple[str, int], int](), []
        for item in items:
            if item.nth == _WHOLE:
                topic, partition = sources[item.source][:2]
                whole[topic, partition] = max(item.offset, whole.get((topic, partition), 0))
            else:
                touching.append(item)
        places = [(bucket, key) for key in dict.fromkeys(item.key for item in touching)]
        result = BatchResult(bucket, whole=Position.of(whole))
        return self._folded(store, places, touching, Position.of({**reached, **whole}), result)

    def whole(self, ends: Sequence[bool]) -> int:
        """How many records of a partition can be folded, by whether each ends its decision."""
        return next((count for count in range(len(ends), 0, -1) if ends[count - 1]), 0)

    def in_step(self, bucket: int, checkpoint: Checkpoint) -> bool:
        """Whether this run, or another attempt of its task, wrote or read the checkpoint last."""
        if checkpoint.token == self.tokens[bucket]:
            return True
        here = self.done.only(self.generation.topics, bucket if self.generation.stream_keyed else None)
        return checkpoint.token.startswith(f"{self.run}.") and checkpoint.position.covers(here)

    def is_done(self, checkpoint: Checkpoint, reached: Position) -> bool:
        """Whether a bucket holds this batch already: the batch, or its task, is run again."""
        return checkpoint.position.covers(reached)

    def writer(self, store: ViewStore, places: Sequence[RowAddress], read: Snapshot, bucket: int) -> MicroBatchWriter:
        """Makes the writer of a bucket."""
        elsewhere = sum(count for other, count in self.parked.items() if other != bucket)
        args = (self.view, self.generation, store, places, read)
        if self.generation.stream_keyed:
            return MicroBatchWriter(*args, token=self.token, max_parked=self.max_parked - elsewhere)
        most = self.max_parked - elsewhere
        return UpdateWriter(*args, sources=self.sources, token=self.token, max_parked=most)

    def _folded(
        self,
        store: ViewStore,
        places: Sequence[RowAddress],
        touching: Sequence[Any],
        reached: Position,
        result: BatchResult,
    ) -> BatchResult:
        """The result after folding into its bucket."""
        bucket = result.bucket
        if not places:
            return result
        read = store.read(self.generation, places)
        checkpoint = read.checkpoints.get(bucket)
        if checkpoint is None or not self.in_step(bucket, checkpoint):
            found = "is lost" if checkpoint is None else f"was written by {checkpoint.token}"
            return replace(result, trouble=f"the checkpoint of bucket {bucket} {found}")
        if self.is_done(checkpoint, reached):
            return replace(result, checkpoint=checkpoint)
        writer = self.writer(store, places, read, bucket)
        if not writer.fold(touching, reached):
            return replace(result, trouble=f"bucket {bucket} was written meanwhile")
        return replace(result, checkpoint=writer.checkpoints[bucket], stopped=writer.stopped)

    def _from_done(self, first: RawRecord, rest: Iterator[RawRecord]) -> Iterator[RawRecord]:
        """The records of the batch, after those that earlier batches held back since their decision was not whole."""
        done = self.done.next_offset(first.topic, first.partition)
        part = OffsetRange(first.topic, first.partition, done, self.begin.next_offset(first.topic, first.partition))
        if part.start < part.end:
            with closing(self.open_log()) as log:
                yield from read_range(log, part)
        yield from chain((first,), rest)

    def _reached(self, held: int | None, first: RawRecord) -> int:
        """The offset at which the next batch continues: that of a record held back, or the batch's end."""
        return held if held is not None else self.end.next_offset(first.topic, first.partition)
