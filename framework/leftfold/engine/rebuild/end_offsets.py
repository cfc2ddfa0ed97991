"""End offsets at which a view may be examined, never inside a decision, and a fold that stops there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from leftfold.engine.rebuild.sorted_fold import KeyedUpdate
from leftfold.model.position import Position
from leftfold.model.state_encoding import number_in
from leftfold.ports.bulk import BulkLog, BulkRecord, OffsetRange
from leftfold.ports.flush import Generation

__all__ = ["before_cuts", "between_decisions", "ranges_to"]


_LOOK = 1000


def between_decisions(log: BulkLog, position: Position) -> Position:
    """The position, moved back in each partition to the last boundary of a decision before the stable end."""
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
    for records in log.read(OffsetRange(topic, partition, max(0, offset - _LOOK), offset)):
        last = _last(records) or last
    if last is None:
        return offset
    k, _, n = (dict(last.headers() or ()).get("ce_decision") or b"1/1").partition(b"/")
    number = None if k == n or number_in(n) is None else number_in(k)
    return offset if number is None else last.offset() - number + 1


def _last(records: Sequence[BulkRecord]) -> BulkRecord | None:
    return records[-1] if records else None


def ranges_to(generation: Generation, cuts: Mapping[int, Position]) -> tuple[OffsetRange, ...]:
    """The ranges to read to fold each of these buckets up to its own end offsets."""
    ends = Position.union(cuts.values())
    partitions = (
        (topic, partition)
        for topic, count in sorted(generation.topics.items())
        for partition in range(count)
        if not generation.stream_keyed or partition in cuts
    )
    ranges = (OffsetRange(topic, partition, 0, ends.next_offset(topic, partition)) for topic, partition in partitions)
    return tuple(part for part in ranges if part.end > 0)


def before_cuts(
    items: Iterable[KeyedUpdate], cuts: Mapping[int, Position], sources: Sequence[OffsetRange]
) -> Iterator[KeyedUpdate]:
    """The updates of some buckets that lie before each bucket's own end offsets."""
    for item in items:
        cut, source = cuts.get(item.bucket), sources[item.source]
        if cut is not None and item.offset < cut.next_offset(source.topic, source.partition):
            yield item
