"""Sorted sets, by score and by bytes, and the commands for them."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import TypeAlias

from leftfold.testing.simulation.redis_server.keyspace import (
    CommandSpec,
    Keyspace,
    Parts,
    integer,
    read_cursor,
    read_scan_options,
    scan_page,
)
from leftfold.testing.simulation.redis_server.resp import ErrorReply, Reply, double

__all__ = ["SORTED_COMMANDS", "SortedSet"]

_Entry: TypeAlias = tuple[float, bytes]
_Span: TypeAlias = tuple[int, int]


class SortedSet:
    """A sorted set: members with scores, in the order of score and then bytes."""

    NAME = b"zset"

    def __init__(self) -> None:
        self.scores: dict[bytes, float] = {}
        self.entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self.scores)

    def put(self, member: bytes, score: float) -> None:
        """Adds a member, or moves it."""
        self.drop(member)
        self.scores[member] = score
        insort(self.entries, (score, member))

    def drop(self, member: bytes) -> bool:
        """Removes a member; returns whether it existed."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.entries[bisect_left(self.entries, (score, member))]
        return True

    def span_of_members(self, low: bytes, high: bytes) -> _Span:
        """The range of the members between two lexicographic ends; all scores are equal there.

        Raises:
            ErrorReply: an end is malformed.
        """
        return self._lexical(low, is_high=False), self._lexical(high, is_high=True)

    def span_of_scores(self, low: bytes, high: bytes) -> _Span:
        """The range of the members between two scores; "(" excludes one.

        Raises:
            ErrorReply: an end is no score.
        """
        (least, without_least), (most, without_most) = _score_end(low), _score_end(high)
        first = bisect_right if without_least else bisect_left
        last = bisect_left if without_most else bisect_right
        return first(self.entries, least, key=_score_of), last(self.entries, most, key=_score_of)

    def _lexical(self, end: bytes, *, is_high: bool) -> int:
        if end in (b"-", b"+"):
            return len(self.entries) if end == b"+" else 0
        if end[:1] not in (b"[", b"("):
            raise ErrorReply("ERR min or max not valid string range item")
        # The end itself is behind the cut when the range begins with it, or ends before it.
        cut = bisect_left if (end[:1] == b"(") == is_high else bisect_right
        return cut(self.entries, end[1:], key=_member_of)


def _score_of(entry: _Entry) -> float:
    return entry[0]


def _member_of(entry: _Entry) -> bytes:
    return entry[1]


def _score_end(text: bytes) -> tuple[float, bool]:
    is_excluded = text[:1] == b"("
    try:
        return _score((text[1:] if is_excluded else text) or b"0"), is_excluded
    except ErrorReply:
        raise ErrorReply("ERR min or max is not a float") from None


def _score(text: bytes) -> float:
    try:
        value = float(text) if b"_" not in text and not text[:1].isspace() and not text[-1:].isspace() else math.nan
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise ErrorReply("ERR value is not a valid float")
    return value


def _zadd(space: Keyspace, parts: Parts) -> Reply:
    rest, flags = list(parts[1:]), set[bytes]()
    while rest and rest[0].upper() in (b"NX", b"XX", b"GT", b"LT", b"CH"):
        flags.add(rest.pop(0).upper())
    if not rest or len(rest) % 2:
        raise ErrorReply("ERR syntax error")
    if {b"NX", b"XX"} <= flags:
        raise ErrorReply("ERR XX and NX options at the same time are not compatible")
    if len(flags & {b"NX", b"GT", b"LT"}) > 1:
        raise ErrorReply("ERR GT, LT, and/or NX options at the same time are not compatible")
    scored = [(_score(score), member) for score, member in zip(rest[::2], rest[1::2], strict=True)]
    found = space.find(parts[0], SortedSet)
    if found is None and b"XX" in flags:
        return 0
    found = space.make(parts[0], SortedSet)
    before, moved = len(found), 0
    for score, member in scored:
        old = found.scores.get(member)
        if (old is None and b"XX" in flags) or (old is not None and not _replaces(old, score, flags)):
            continue
        moved += old is not None
        found.put(member, score)
    added = len(found) - before
    if added or moved:
        space.changed(parts[0], added + moved)
    return added + moved if b"CH" in flags else added


def _replaces(old: float, score: float, flags: set[bytes]) -> bool:
    if old == score or b"NX" in flags:
        return False
    return not ((b"GT" in flags and score < old) or (b"LT" in flags and score > old))


def _zrem(space: Keyspace, parts: Parts) -> Reply:
    found = space.find(parts[0], SortedSet)
    count = 0 if found is None else sum([found.drop(member) for member in parts[1:]])
    if count:
        space.changed(parts[0], count)
    return count


def _zcard(space: Keyspace, parts: Parts) -> Reply:
    return len(space.find(parts[0], SortedSet) or ())


def _zscore(space: Keyspace, parts: Parts) -> Reply:
    found = space.find(parts[0], SortedSet)
    return None if found is None else found.scores.get(parts[1])


def _zrange(space: Keyspace, parts: Parts) -> Reply:
    return _by_rank(space, parts, backwards=False)


def _zrevrange(space: Keyspace, parts: Parts) -> Reply:
    return _by_rank(space, parts, backwards=True)


def _by_rank(space: Keyspace, parts: Parts, *, backwards: bool) -> Reply:
    options = [part.upper() for part in parts[3:]]
    if any(option != b"WITHSCORES" and (option != b"REV" or backwards) for option in options):
        raise ErrorReply("ERR syntax error")
    start, stop = integer(parts[1]), integer(parts[2])
    found = space.find(parts[0], SortedSet)
    if found is None:
        return []
    entries = found.entries[::-1] if backwards or b"REV" in options else found.entries
    start = max(0, start + len(entries)) if start < 0 else start
    stop = stop + len(entries) if stop < 0 else stop
    return _listed(entries[start : stop + 1] if stop >= 0 else [], with_scores=b"WITHSCORES" in options)


def _ranging(
    span: Callable[[SortedSet, bytes, bytes], _Span], *, backwards: bool = False
) -> Callable[[Keyspace, Parts], Reply]:
    def ranged(space: Keyspace, parts: Parts) -> Reply:
        low, high = (parts[2], parts[1]) if backwards else (parts[1], parts[2])
        offset, count, with_scores = _range_options(parts[3:], may_score=span is SortedSet.span_of_scores)
        span(SortedSet(), low, high)
        found = space.find(parts[0], SortedSet)
        if found is None:
            return []
        start, stop = span(found, low, high)
        entries = found.entries[start:stop]
        if backwards:
            entries.reverse()
        if offset < 0:
            return []
        return _listed(entries[offset:] if count < 0 else entries[offset : offset + count], with_scores=with_scores)

    return ranged


def _range_options(parts: Parts, *, may_score: bool) -> tuple[int, int, bool]:
    """Offset, count and whether scores are returned."""
    offset, count, with_scores, rest = 0, -1, False, list(parts)
    while rest:
        option = rest.pop(0).upper()
        if option == b"WITHSCORES" and may_score:
            with_scores = True
        elif option == b"LIMIT" and len(rest) >= 2:
            offset, count = integer(rest.pop(0)), integer(rest.pop(0))
        else:
            raise ErrorReply("ERR syntax error")
    return offset, count, with_scores


def _counting(span: Callable[[SortedSet, bytes, bytes], _Span]) -> Callable[[Keyspace, Parts], Reply]:
    def counted(space: Keyspace, parts: Parts) -> Reply:
        span(SortedSet(), parts[1], parts[2])
        found = space.find(parts[0], SortedSet)
        if found is None:
            return 0
        start, stop = span(found, parts[1], parts[2])
        return max(0, stop - start)

    return counted


def _zremrangebyscore(space: Keyspace, parts: Parts) -> Reply:
    SortedSet().span_of_scores(parts[1], parts[2])
    found = space.find(parts[0], SortedSet)
    if found is None:
        return 0
    start, stop = found.span_of_scores(parts[1], parts[2])
    members = [member for _, member in found.entries[start:stop]]
    for member in members:
        found.drop(member)
    if members:
        space.changed(parts[0], len(members))
    return len(members)


def _zscan(space: Keyspace, parts: Parts) -> Reply:
    cursor, found = read_cursor(parts[1]), space.find(parts[0], SortedSet)
    if found is None:
        return [b"0", []]
    options = read_scan_options(parts[2:])
    next_, page = scan_page(found.scores, cursor, options)
    return [next_, [part for name in page for part in (name, double(found.scores[name]))]]


def _listed(entries: Sequence[_Entry], *, with_scores: bool) -> Reply:
    if not with_scores:
        return [member for _, member in entries]
    return [part for score, member in entries for part in (member, score)]


SORTED_COMMANDS: dict[bytes, CommandSpec] = {
    b"ZADD": CommandSpec(_zadd, -4, True),
    b"ZREM": CommandSpec(_zrem, -3, True),
    b"ZCARD": CommandSpec(_zcard, 2),
    b"ZSCORE": CommandSpec(_zscore, 3),
    b"ZRANGE": CommandSpec(_zrange, -4),
    b"ZREVRANGE": CommandSpec(_zrevrange, -4),
    b"ZRANGEBYLEX": CommandSpec(_ranging(SortedSet.span_of_members), -4),
    b"ZREVRANGEBYLEX": CommandSpec(_ranging(SortedSet.span_of_members, backwards=True), -4),
    b"ZRANGEBYSCORE": CommandSpec(_ranging(SortedSet.span_of_scores), -4),
    b"ZLEXCOUNT": CommandSpec(_counting(SortedSet.span_of_members), 4),
    b"ZCOUNT": CommandSpec(_counting(SortedSet.span_of_scores), 4),
    b"ZREMRANGEBYSCORE": CommandSpec(_zremrangebyscore, 4, True),
    b"ZSCAN": CommandSpec(_zscan, -3),
}
