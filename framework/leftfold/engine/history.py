"""What has touched some rows: their events out of the whole log, in the order in which a fold may take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any
from urllib.parse import unquote

from leftfold.codec import header
from leftfold.engine.bulk_log import BulkLog, BulkRecord, Range, raw, type_of
from leftfold.engine.cut import ranges_to
from leftfold.engine.decoded import Decoded, EventDecoder
from leftfold.engine.places import place_of
from leftfold.errors import ContractError
from leftfold.flush import Generation
from leftfold.ports import RawRecord
from leftfold.position import Position
from leftfold.printable import shown
from leftfold.view import View

__all__ = ["History", "Touch"]


@dataclass(frozen=True)
class Touch:
    """One event that touches a row; `item` is what is folded in, an exception if that cannot be told."""

    key: str
    item: Any
    record: RawRecord
    decoded: Decoded


class History:
    """Reads the touches of some rows, each up to a place of its own.

    Args:
        wanted: for each encoded row key where it stops. since: for each where it begins; None = at the beginning.
        tell: told how many events were read.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generation: Generation,
        wanted: Mapping[str, Position],
        tell: Callable[[int], None] = lambda count: None,
        since: Mapping[str, Position] | None = None,
    ) -> None:
        self._view, self._wanted, self._tell = view, wanted, tell
        self._since = since if since is not None else dict.fromkeys(wanted, Position())
        self._decoder = EventDecoder([view])
        self._passed: set[bytes] = set()
        self._streams = {unquote(key).encode() for key in wanted} if generation.stream_keyed else None
        cuts: dict[int, Position] = {}
        for key, cut in wanted.items():
            bucket = place_of(generation, key)[0]
            cuts[bucket] = cuts.get(bucket, Position()) | cut
        start = reduce(and_, self._since.values()) if self._since else Position()
        parts = (
            part._replace(start=start.next_offset(part.topic, part.partition)) for part in ranges_to(generation, cuts)
        )
        self.ranges = tuple(part for part in parts if part.start < part.end)

    @property
    def events(self) -> int:
        """How many events are read at most."""
        return sum(part.end - part.start for part in self.ranges)

    def of(self, log: BulkLog, part: Range) -> Iterator[Touch]:
        """The touches in one of the `ranges`, in their order.

        Raises:
            ContractError: an event cannot be read or assigned to rows; a view that is not stream-keyed stops there.
        """
        for records in log.read(part):
            for record in records:
                if not self._is_passed(record):
                    yield from self._touches(part, record)
            self._tell(len(records))

    def _is_passed(self, record: BulkRecord) -> bool:
        """Whether a record is of another stream, or of a type that the view does not read."""
        if self._streams is not None and record.key() not in self._streams:
            return True
        headers = record.headers()
        return bool(self._passed and headers and header(headers, "ce_type") in self._passed)

    def _touches(self, part: Range, record: BulkRecord) -> Iterator[Touch]:
        whole = raw(part, record)
        decoded = self._decoder.decode(whole)
        if decoded.error is None and decoded.event is None:
            self._passed.add(type_of(whole))
            return
        for key, item in self._pairs(decoded):
            cut = self._wanted.get(key)
            if cut is None or whole.offset >= cut.next_offset(part.topic, part.partition):
                continue
            if whole.offset >= self._since[key].next_offset(part.topic, part.partition):
                yield Touch(key, item, whole, decoded)

    def _pairs(self, decoded: Decoded) -> list[tuple[str, Any]]:
        try:
            if decoded.error is not None:
                raise decoded.error
            return list(self._view.touches(decoded.event, decoded.key))  # type: ignore[arg-type]  # no error, so an event
        except Exception as error:
            if self._streams is None:
                at = f"{decoded.topic}[{decoded.partition}]@{decoded.offset}"
                raise ContractError(f"view {self._view.name} stops at {at}: {shown(error, str)}") from error
            return [(self._view.keys.encode(decoded.key), error)]
