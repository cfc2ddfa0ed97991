"""The fold of a rebuild that must sort: events become keyed updates, which are folded in order into rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple

from leftfold.engine.views.decoding import Decoded, EventDecoder, folds_record
from leftfold.engine.views.parking import StepwiseFold, check_storable
from leftfold.errors import ContractError
from leftfold.model.keys import NO_ROW, NoRowKey, partition_of
from leftfold.model.row_codec import CHECKSUM_MODULUS
from leftfold.model.state_codec import Storage
from leftfold.model.view import View
from leftfold.ports.bulk import BucketResult, BulkRecord, BulkRow, OffsetRange, raw_all, type_of
from leftfold.ports.flush import Checkpoint, Parked
from leftfold.ports.message_codec import MessageCodec, header
from leftfold.ports.protocols import RawRecord
from leftfold.safety import shown

__all__ = ["BucketFold", "KeyedUpdate", "OpenedRecords", "UpdateReader", "UpdateSorter", "partitions_for", "sampled"]


@lru_cache(maxsize=200_000)
def sampled(key: str, share: float) -> bool:
    """Whether an encoded row key belongs to a share (0 to 1) of all keys."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) < share * (1 << 64)


def partitions_for(share: float, checkpoints: Mapping[int, Checkpoint]) -> tuple[Mapping[int, Checkpoint], float]:
    """The buckets of a stream-keyed view that a sample reads, the largest first, and the share of their rows.

    Keys are spread over partitions by their hash, so the rows of one are a sample, and no other partition need be read.
    """
    rows = sum(checkpoint.rows for checkpoint in checkpoints.values())
    chosen: dict[int, Checkpoint] = {}
    held = 0
    for bucket, checkpoint in sorted(checkpoints.items(), key=lambda one: (-one[1].rows, one[0])):
        if held and held >= share * rows:
            break
        chosen[bucket] = checkpoint
        held += checkpoint.rows
    return chosen, min(1.0, share * rows / held) if held else share


_MOST_KEYS = 1_000_000
# Start the body of an update of NO_ROW, and of one whose item is refused; neither that of an event nor JSON.
_REASON, _REFUSAL = b"\0", b"\1"
# The named constructor costs twice as much.
_new: Any = tuple.__new__


class KeyedUpdate(NamedTuple):
    """One update of one row; when sorted, updates are in the order in which a bucket is folded.

    `source` numbers the topic-partitions of the plan, `nth` the updates of one event, `body` is for UpdateReader and
    `time` the event's.
    """

    bucket: int
    key: str
    source: int
    offset: int
    nth: int
    body: bytes
    time: str

    def place(self, sources: Sequence[OffsetRange]) -> Decoded:
        """The place and time of the event, without its content, as a fold reports them."""
        source = sources[self.source]
        return Decoded(source.topic, source.partition, self.offset, self.key, None, None, 0, True, self.time)


class OpenedRecords:
    """Decodes records for several views at once; types that none of them reads are decoded once only."""

    def __init__(self, views: Iterable[View[Any, Any]]) -> None:
        self._decoder = EventDecoder(views)
        self._passed: set[bytes] = set()

    def of(self, part: OffsetRange, records: Iterable[BulkRecord]) -> list[tuple[RawRecord, Decoded]]:
        """The records that any view may want, each raw and decoded."""
        passed = self._passed
        if passed:
            records = [r for r in records if header(r.headers() or (), "ce_type") not in passed]
        wholes = raw_all(part, records)
        opened = list(zip(wholes, self._decoder.decode_all(wholes), strict=True))
        foreign = {d.type for _, d in opened if d.event is None and d.error is None}
        if not foreign:
            return opened
        passed |= foreign
        return [pair for pair in opened if pair[1].event is not None or pair[1].error is not None]


class UpdateSorter:
    """Turns records into keyed updates.

    Args:
        buckets: of the generation.
        share: makes updates for this share of the row keys only, chosen by their hash.
    """

    def __init__(self, view: View[Any, Any], buckets: int, share: float = 1.0) -> None:
        self._view, self._buckets, self._is_mine, self._share = view, buckets, folds_record(view), share
        self._places: dict[str, int] = {}

    def items(self, source: int, records: Iterable[tuple[RawRecord, Decoded]]) -> Iterator[KeyedUpdate]:
        """The updates of some records of a partition, which is number `source` of the plan.

        Raises:
            ContractError: an event cannot be read, or the view's `key` or `each` fails on it. The row of such an event
                is unknown, so none can be parked, and the rebuild stops. An event that names no row is an update of
                NO_ROW.
        """
        is_mine, events, bucket_of = self._is_mine, self._view.events, self._bucket
        for whole, decoded in records:
            if type(decoded.event) in events or (decoded.error is not None and is_mine(decoded)):
                offset, time = decoded.offset, decoded.time
                for index, (key, body) in enumerate(self._touches(decoded, whole)):
                    yield _new(KeyedUpdate, (bucket_of(key), key, source, offset, index, body, time))

    def _touches(self, decoded: Decoded, whole: RawRecord) -> Sequence[tuple[str, bytes]]:
        try:
            if decoded.error is not None:
                raise decoded.error
            pairs = self._view.touches(decoded.event, decoded.key)  # type: ignore[arg-type]  # no error, so an event
            if self._share < 1:
                pairs = [pair for pair in pairs if sampled(pair[0], self._share)]
            storage = self._view.items
            if storage is None:
                event = b"%b %b" % (type_of(whole), whole.value or b"")
                return [(key, event if key is not NO_ROW else _reason(item)) for key, item in pairs]
            return [(key, _item_body(storage, item)) for key, item in pairs]
        except Exception as error:
            raise ContractError(f"view {self._view.name} stops at {decoded.address}: {shown(error, str)}") from error

    def _bucket(self, key: str) -> int:
        bucket = self._places.get(key)
        if bucket is None:
            if len(self._places) >= _MOST_KEYS:
                self._places.clear()
            bucket = self._places[key] = partition_of(key.encode(), self._buckets)
        return bucket


class UpdateReader:
    """Reads the argument of a view's fold from the body of an update."""

    def __init__(self, view: View[Any, Any]) -> None:
        self._codec: MessageCodec[Any] = MessageCodec(view.events)
        storage = view.items
        self.read: Callable[[bytes], Any] = self._event if storage is None else storage.decode

    def value(self, body: bytes) -> Any:
        """The same, but returns an exception if there is nothing that could be folded."""
        if body.startswith((_REASON, _REFUSAL)):
            return (NoRowKey if body.startswith(_REASON) else ContractError)(body[1:].decode())
        try:
            return self.read(body)
        except Exception as error:  # noqa: BLE001  # an unreadable body parks its row
            return error

    def _event(self, body: bytes) -> Any:
        type_, _, value = body.partition(b" ")
        return self._codec.decode(type_, value)


def _reason(item: NoRowKey) -> bytes:
    """The body of an update that names no row: the reason."""
    return _REASON + str(item).encode()


def _item_body(storage: Storage[Any], item: Any) -> bytes:
    """The body of an update with an item of `each`; the refusal of an item parks the row, as it does in a projector."""
    if isinstance(item, NoRowKey):
        return _reason(item)
    return _REFUSAL + str(item).encode() if isinstance(item, ContractError) else storage.encode(item)


_RUN = 1000


class BucketFold:
    """Folds the sorted updates of one bucket: iterate over `rows`, then take `result`.

    Args:
        sources: the partitions that `KeyedUpdate.source` numbers.
        aside: keys that the checksum leaves out, like parked ones.
    """

    def __init__(
        self, view: View[Any, Any], bucket: int, sources: Sequence[OffsetRange], aside: Collection[str] = ()
    ) -> None:
        self._view, self._bucket, self._sources = view, bucket, sources
        self._evolve = view.evolve
        self._reader = UpdateReader(view)
        self._checksum = self._rows = 0
        self._time = ""
        self.parked: dict[str, Parked] = {}
        self._aside = aside

    def rows(self, items: Iterable[KeyedUpdate]) -> Iterator[BulkRow]:
        """The rows of the bucket, in the key order of the updates."""
        codec = self._view.rows
        for key, group in groupby(items, attrgetter("key")):
            row = self._folded(key, group)
            if row is None:
                continue
            fields = codec.encode(row)
            self._rows += 1
            if key not in self.parked and key not in self._aside:
                self._checksum += codec.digest(key, fields)
            yield BulkRow(key, fields, None, codec.index_entries(row))

    def result(self) -> BucketResult:
        """The result of the bucket, from which its checkpoint is made."""
        return BucketResult(self._bucket, self._checksum % CHECKSUM_MODULUS, self._rows, self._time, self.parked)

    def _folded(self, key: str, items: Iterator[KeyedUpdate]) -> Any:
        """The row of a key; from the first run of updates that fails on, it is checked after each update."""
        row: Any = None
        tracked: StepwiseFold | None = None
        while run := list(islice(items, _RUN)):
            if tracked is None:
                try:
                    row = self._run(row, run)
                    continue
                except Exception:  # noqa: BLE001  # step by step meets the same error, or shows where it began
                    tracked = StepwiseFold(self._view, row)
            for item in run:
                tracked.fold(self._reader.value(item.body), item.place(self._sources))
            self._time = max(self._time, tracked.time)
            if tracked.parked is None:
                row, tracked = tracked.row, None
        if tracked is None or tracked.parked is None:
            return row
        self.parked[key] = tracked.parked
        return tracked.good

    def _run(self, row: Any, run: Sequence[KeyedUpdate]) -> Any:
        """The row after a run of updates; raises if it cannot be folded or stored."""
        evolve, read, time = self._evolve, self._reader.read, self._time
        for item in run:
            row = evolve(row, read(item.body))
            time = max(time, item.time)
        if row is not None:
            check_storable(self._view, row)
        self._time = time
        return row
