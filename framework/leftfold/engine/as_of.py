"""Places of the log at which a view may be looked at: never inside a decision."""

from __future__ import annotations

from collections.abc import Sequence

from leftfold.digits import number_in
from leftfold.engine.bulk_log import BulkLog, BulkRecord, Range
from leftfold.position import Position

__all__ = ["between_decisions"]

_LOOK = 1000


def between_decisions(log: BulkLog, position: Position) -> Position:
    """The position, moved back in each partition to the last place between two decisions, and to the stable end."""
    ends = log.stable_ends(position.offsets)
    return Position(
        {
            topic: {
                partition: _before_half_a_decision(
                    log, topic, partition, min(offset, ends.next_offset(topic, partition))
                )
                for partition, offset in partitions.items()
            }
            for topic, partitions in position.offsets.items()
        }
    )


def _before_half_a_decision(log: BulkLog, topic: str, partition: int, offset: int) -> int:
    last: BulkRecord | None = None
    for records in log.read(Range(topic, partition, max(0, offset - _LOOK), offset)):
        last = _last(records) or last
    if last is None:
        return offset
    k, _, n = (dict(last.headers() or ()).get("ce_decision") or b"1/1").partition(b"/")
    number = None if k == n or number_in(n) is None else number_in(k)
    return offset if number is None else last.offset() - number + 1


def _last(records: Sequence[BulkRecord]) -> BulkRecord | None:
    return records[-1] if records else None
