"""The first half of a rebuild that must sort: what each event folds into which row, as plain values on their way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from leftfold.codec import MessageCodec, header
from leftfold.engine.bulk_log import BulkRecord, Range, raw_all, type_of
from leftfold.engine.decoded import Decoded, EventDecoder, wanted_by
from leftfold.engine.sample import sampled
from leftfold.errors import ContractError
from leftfold.keys import NO_ROW, NoRowKey
from leftfold.partitioner import partition_of
from leftfold.ports import RawRecord
from leftfold.printable import shown
from leftfold.view import View

__all__ = ["Item", "ItemReader", "ItemWriter", "OpenedRecords"]

_MOST_KEYS = 1_000_000
# Begins the body of an item of NO_ROW, and neither that of an event nor JSON.
_REASON = b"\0"
# The named constructor costs twice as much.
_new: Any = tuple.__new__


class Item(NamedTuple):
    """One touch of one row; sorted, these are in the order in which a bucket is folded.

    `source` numbers the topic-partitions of the plan, `nth` the touches of one event, `body` is for ItemReader and
    `time` the event's.
    """

    bucket: int
    key: str
    source: int
    offset: int
    nth: int
    body: bytes
    time: str


class OpenedRecords:
    """Decodes records for several views at once, those of types that none of them reads but once per type."""

    def __init__(self, views: Iterable[View[Any, Any]]) -> None:
        self._decoder = EventDecoder(views)
        self._passed: set[bytes] = set()

    def of(self, part: Range, records: Iterable[BulkRecord]) -> list[tuple[RawRecord, Decoded]]:
        """The records that any view may want, as they stand in the log and decoded."""
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


class ItemWriter:
    """Makes items of records.

    Args:
        buckets: of the generation. share: makes items of only so many of the row keys, chosen by their hash.
    """

    def __init__(self, view: View[Any, Any], buckets: int, share: float = 1.0) -> None:
        self._view, self._buckets, self._is_mine, self._share = view, buckets, wanted_by(view), share
        self._places: dict[str, int] = {}

    def items(self, source: int, records: Iterable[tuple[RawRecord, Decoded]]) -> Iterator[Item]:
        """The items of some records of a partition, which is number `source` of the plan.

        Raises:
            ContractError: an event cannot be read, or the view's `key` or `each` fails on it. No row can be told that
                such an event belongs to, so none can be parked, and the rebuild stops. One that names no row is an
                item of NO_ROW.
        """
        is_mine, events, bucket_of = self._is_mine, self._view.events, self._bucket
        for whole, decoded in records:
            if isinstance(decoded.event, events) or (decoded.error is not None and is_mine(decoded)):
                offset, time = decoded.offset, decoded.time
                for index, (key, body) in enumerate(self._touches(decoded, whole)):
                    yield _new(Item, (bucket_of(key), key, source, offset, index, body, time))

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
            return [(key, storage.encode(item) if key is not NO_ROW else _reason(item)) for key, item in pairs]
        except Exception as error:
            at = f"{decoded.topic}[{decoded.partition}]@{decoded.offset}"
            raise ContractError(f"view {self._view.name} stops at {at}: {shown(error, str)}") from error

    def _bucket(self, key: str) -> int:
        bucket = self._places.get(key)
        if bucket is None:
            if len(self._places) >= _MOST_KEYS:
                self._places.clear()
            bucket = self._places[key] = partition_of(key.encode(), self._buckets)
        return bucket


class ItemReader:
    """Makes what a view's fold takes of item bodies."""

    def __init__(self, view: View[Any, Any]) -> None:
        self._codec: MessageCodec[Any] = MessageCodec(view.events)
        storage = view.items
        self.read: Callable[[bytes], Any] = self._event if storage is None else storage.decode

    def value(self, body: bytes) -> Any:
        """The same, but an exception if there is nothing that could be folded."""
        if body.startswith(_REASON):
            return NoRowKey(body.removeprefix(_REASON).decode())
        try:
            return self.read(body)
        except Exception as error:  # noqa: BLE001  # what cannot be read parks its row
            return error

    def _event(self, body: bytes) -> Any:
        type_, _, value = body.partition(b" ")
        return self._codec.decode(type_, value)


def _reason(item: NoRowKey) -> bytes:
    """The body of an item that names no row: why it does not."""
    return _REASON + str(item).encode()
