"""Reads by key, and waiting until a view has folded in a position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic

from typing_extensions import TypeVar

from leftfold.description import Description, described
from leftfold.engine.places import place_of
from leftfold.errors import StaleViewError
from leftfold.flush import Generation, Snapshot
from leftfold.position import Position
from leftfold.questions import Glance, Rows, Seen
from leftfold.reading.arguments import checked_keys, checked_position
from leftfold.reading.ear import Ear
from leftfold.reading.entry import Entry
from leftfold.reading.live import Live
from leftfold.reading.steps import Steps, ask

__all__ = ["Lookup", "version_of"]

A = TypeVar("A")
Row = TypeVar("Row")
K = TypeVar("K", default=str)


class Lookup(Generic[Row, K]):
    """Finds rows by key in the live generation; each method is the steps of one read."""

    def __init__(self, live: Live[Row, K]) -> None:
        self._live, self._view = live, live.view

    def row(self, key: K, after: Position | None, timeout: float) -> Steps[Row | None]:
        """The row of a key."""
        encoded = self._view.keys.encode(key)
        seen = (yield from self._glance(encoded)) if after is None else None
        if seen is not None:
            fields = seen.fields
        else:
            _, snapshot = yield from self._read([encoded], after, timeout)
            fields = snapshot.rows[0]
        return None if fields is None else self._view.rows.decode(fields)

    def entry(self, key: K, after: Position | None, timeout: float) -> Steps[Entry[Row]]:
        """The row of a key with its version, position and parking."""
        encoded = self._view.keys.encode(key)
        generation, snapshot = yield from self._read([encoded], after, timeout)
        mark, fields = snapshot.marks[place_of(generation, encoded)[0]], snapshot.rows[0]
        row = None if fields is None else self._view.rows.decode(fields)
        return Entry(row, version_of(fields), mark.position, mark.parked.get(encoded))

    def many(self, keys: Iterable[K], after: Position | None, timeout: float) -> Steps[dict[K, Row]]:
        """The rows that exist among some keys."""
        wanted = checked_keys(self._view, keys)
        if not wanted:
            return {}
        _, snapshot = yield from self._read([self._view.keys.encode(key) for key in wanted], after, timeout)
        rows = zip(wanted, snapshot.rows, strict=True)
        return {key: self._view.rows.decode(fields) for key, fields in rows if fields is not None}

    def reached(self, position: Position, timeout: float) -> Steps[None]:
        """Waits until every bucket has folded in a position."""
        yield from self._read((), position, timeout, whole=True)

    def behind(self, after: Position | None, timeout: float, search: Callable[[], Steps[A]]) -> Steps[A]:
        """What a search finds once every bucket has folded in a position; another generation is waited for again."""
        if after is None:
            found = yield from search()
            return found
        deadline = time.monotonic() + timeout
        while True:
            generation, _ = yield from self._read((), after, deadline - time.monotonic(), whole=True)
            found = yield from search()
            if self._live.known == generation:
                return found

    def describe(self) -> Steps[Description]:
        """What the live generation says of itself."""
        generation = yield from self._live.generation(fresh=True)
        snapshot = yield from ask(Rows(generation, (), tuple(range(generation.buckets))))
        return described(self._view, generation, snapshot.marks)

    def _glance(self, encoded: str) -> Steps[Seen | None]:
        """What one question finds where the live generation is known; None when it has moved on: look again."""
        generation = self._live.known
        if generation is None:
            return None
        seen: Seen = yield Glance(generation, *place_of(generation, encoded))
        return seen if seen.live == generation.id and seen.whole else None

    def _read(
        self, encoded: Sequence[str], after: Position | None, timeout: float, *, whole: bool = False
    ) -> Steps[tuple[Generation, Snapshot]]:
        """The rows, once their buckets (or all, when `whole`) have folded in what is asked for."""
        after = None if after is None else checked_position(self._view, after)
        deadline, ear = time.monotonic() + timeout, Ear()
        try:
            while True:
                generation = yield from self._live.generation()
                question = self._question(generation, encoded, whole)
                snapshot = yield from ask(question)
                buckets = {*question.buckets, *(bucket for bucket, _ in question.keys)}
                if snapshot.live != generation.id or not all(bucket in snapshot.marks for bucket in buckets):
                    yield from self._live.moved(generation, deadline)
                    continue
                lacking = self._lacking(generation, snapshot, buckets, after)
                if not lacking:
                    return generation, snapshot
                left = deadline - time.monotonic()
                if left <= 0:
                    raise self._stale(snapshot.marks[min(lacking)].position, after)
                yield from ear.wait(generation, Position.union(lacking.values()), left)
        finally:
            ear.close()

    def _question(self, generation: Generation, encoded: Sequence[str], whole: bool) -> Rows:
        places = tuple([place_of(generation, key) for key in encoded])
        return Rows(generation, places, tuple(range(generation.buckets)) if whole else ())

    def _lacking(
        self, generation: Generation, snapshot: Snapshot, buckets: Iterable[int], after: Position | None
    ) -> dict[int, Position]:
        """What of a position each bucket has not folded in, without those that have it all."""
        if after is None:
            return {}
        lacking = {}
        for bucket in buckets:
            wanted = after.only(generation.topics, bucket if generation.stream_keyed else None)
            missing = wanted.beyond(snapshot.marks[bucket].position)
            if missing.offsets:
                lacking[bucket] = missing
        return lacking

    def _stale(self, reached: Position, after: Position | None) -> StaleViewError:
        return StaleViewError(
            f"view {self._view.name} is at {reached}, not yet at {after}; "
            f"is its tail running? leftfold run {self._view.name}"
        )


def version_of(fields: Mapping[bytes, bytes] | None) -> int | None:
    """The stream's version in a row's fields, None when there is none."""
    return int(fields[b"@version"]) if fields and b"@version" in fields else None
