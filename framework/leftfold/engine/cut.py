"""A fold that stops at a given place in each bucket: for checking what is stored, and for views as of then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

from leftfold.engine.bulk_items import Item
from leftfold.engine.bulk_log import Range
from leftfold.flush import Generation
from leftfold.position import Position

__all__ = ["before_cuts", "ranges_to"]


def ranges_to(generation: Generation, cuts: Mapping[int, Position]) -> tuple[Range, ...]:
    """What must be read to fold each of these buckets up to its own place."""
    ends = reduce(or_, cuts.values(), Position())
    partitions = (
        (topic, partition)
        for topic, count in sorted(generation.topics.items())
        for partition in range(count)
        if not generation.stream_keyed or partition in cuts
    )
    ranges = (Range(topic, partition, 0, ends.next_offset(topic, partition)) for topic, partition in partitions)
    return tuple(part for part in ranges if part.end > 0)


def before_cuts(items: Iterable[Item], cuts: Mapping[int, Position], sources: Sequence[Range]) -> Iterator[Item]:
    """The items of some buckets that lie before each bucket's own place."""
    for item in items:
        cut, source = cuts.get(item.bucket), sources[item.source]
        if cut is not None and item.offset < cut.next_offset(source.topic, source.partition):
            yield item
