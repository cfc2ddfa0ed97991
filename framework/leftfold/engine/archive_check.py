"""Whether an archive holds what the topic holds, record by record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from leftfold.codec import header
from leftfold.engine.archive import Archive
from leftfold.engine.bulk_log import BulkLog, Range, raw
from leftfold.ports import RawRecord

__all__ = ["Compared", "compare"]


@dataclass(frozen=True)
class Compared:
    """What a comparison of a range came to.

    Args:
        records: in whole decisions.
        whole_to: an offset in the range, at most its end, below which there are whole decisions only.
        difference: where the two first differ; '' = nowhere.
    """

    records: int
    whole_to: int
    difference: str = ""


def compare(archive: Archive, log: BulkLog, part: Range, tell: Callable[[int], None] = lambda count: None) -> Compared:
    """Compares a range that both should hold: offsets, keys, values, headers, times.

    Raises:
        InfrastructureError: one of them does not hold the range, or a file is broken.
    """
    whole, begun = 0, -1
    pairs = zip_longest(_archived(archive, part), _logged(log, part, tell))
    for count, (kept, found) in enumerate(pairs, 1):
        if kept != found:
            where = min(record.offset for record in (kept, found) if record is not None)
            return Compared(whole, part.start, f"{part.topic}[{part.partition}]@{where}: {_told(kept, found)}")
        if begun < 0:
            begun = kept.offset
        if _is_last(kept):
            whole, begun = count, -1
    return Compared(whole, begun if begun >= 0 else part.end)


def _archived(archive: Archive, part: Range) -> Iterator[RawRecord]:
    for records in archive.read(part):
        yield from (raw(part, record) for record in records)


def _logged(log: BulkLog, part: Range, tell: Callable[[int], None]) -> Iterator[RawRecord]:
    for records in log.read(part):
        yield from (raw(part, record) for record in records)
        tell(len(records))


def _is_last(record: RawRecord) -> bool:
    k, _, n = header(record.headers, "ce_decision").partition(b"/")
    return k == n or not n


def _told(kept: RawRecord | None, found: RawRecord | None) -> str:
    if kept is None or found is None or kept.offset != found.offset:
        return f"only {'the topic' if kept is None or (found and found.offset < kept.offset) else 'the archive'} has it"
    names = [name for name in RawRecord._fields if getattr(kept, name) != getattr(found, name)]
    return f"archive and topic differ in {', '.join(names)}"
