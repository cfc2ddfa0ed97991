"""Watches of a view: its buckets' change streams, read from a position and across generations."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic

from typing_extensions import TypeVar

from leftfold.client.lookup import Live, checked_keys, checked_position, version_of
from leftfold.client.results import Change
from leftfold.client.steps import FlushListener, Steps, ask
from leftfold.engine.views.folded_rows import place_of
from leftfold.errors import ChangesNotKept
from leftfold.model.position import Position
from leftfold.ports.flush import Generation, least
from leftfold.ports.queries import Changed, Changes, Recent, Rows

__all__ = ["Watch"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)
_PAGE = 100
_PATIENCE_SECONDS = 10.0
_EAR_SECONDS = 60.0


class Watch(Generic[Row, K]):
    """A watch of the changes of a view; `next_changes` returns the steps to the next ones.

    It keeps the id of the last stream entry seen in each bucket, and over all buckets the position up to which every
    change was returned. It enters a new live generation at that position. Rows are read after the entries that name
    them, so a change holds the newest row and never an older one.
    """

    def __init__(self, live: Live[Row, K], keys: Iterable[K] | None, after: Position | None) -> None:
        self._live, self._view = live, live.view
        wanted = None if keys is None else checked_keys(live.view, keys)
        self._keys = None if wanted is None else {live.view.keys.encode(key) for key in wanted}
        self._after = None if after is None else checked_position(live.view, after)
        self._listener = FlushListener()
        self._generation: Generation | None = None
        self._ids: dict[int, str] = {}

    @property
    def position(self) -> Position:
        """Up to where every change was returned; empty before the watch begins."""
        return self._after or Position()

    def close(self) -> None:
        """Ends the notifications."""
        self._listener.close()

    def begin(self) -> Steps[Generation]:
        """Finds the last stream entry before the watch's position in each bucket; it misses no change from then on.

        Raises:
            ChangesNotKept: the streams do not reach back to the position. ViewNotBuilt: nothing is live.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._generation is None:
            generation = yield from self._live.generation()
            yield from self._enter(generation, deadline)
        return self._generation

    def next_changes(self, deadline: float | None) -> Steps[list[Change[Row, K]]]:
        """The next changes, at least one; none when the deadline passes before."""
        while True:
            generation = yield from self.begin()
            recent = yield from ask(Changes(generation, self._ids, _PAGE))
            if recent.live != generation.id or not recent.positions.keys() >= self._ids.keys():
                yield from self._leave(generation)
                continue
            if not self._is_unbroken(recent):
                self._generation = None
                continue
            recent = _caught_up(generation, recent, self._after or Position())
            changes = yield from self._changes(generation, recent)
            if changes:
                return changes
            left = _EAR_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return []
            if self._generation is not None and not any(map(_is_full, recent.entries.values())):
                yield from self._listener.wait(generation, None, left)

    def _is_unbroken(self, recent: Recent) -> bool:
        """Whether every stream still has the entry seen last; else only the position shows what came after it."""
        return all(
            recent.entries[bucket][:1] and recent.entries[bucket][0].id == id_ for bucket, id_ in self._ids.items()
        )

    def _enter(self, generation: Generation, deadline: float) -> Steps[None]:
        """Reads the streams of a generation backwards to the last entries that the position covers."""
        buckets = self._buckets(generation)
        ids, open_ = dict[int, str](), dict.fromkeys(buckets, "")
        after = None if self._after is None else dict.fromkeys(buckets, self._after)
        while open_:
            recent = yield from ask(Changes(generation, open_, _PAGE, backwards=True))
            if recent.live != generation.id or not recent.positions.keys() >= open_.keys():
                yield from self._live.moved(generation, deadline)
                return
            after = after or dict(recent.positions)
            for bucket in list(open_):
                found = recent.entries[bucket]
                seen = next((e.id for e in found if _covers(generation, bucket, after[bucket], e.position)), None)
                if seen is not None:
                    ids[bucket] = seen
                    del open_[bucket]
                elif not found:
                    raise self._too_old(generation, bucket, after[bucket])
                else:
                    open_[bucket] = found[-1].id
        if self._after is None and after is not None:
            self._after = least(generation, {bucket: after[bucket] for bucket in buckets})
        self._generation, self._ids = generation, ids

    def _changes(self, generation: Generation, recent: Recent) -> Steps[list[Change[Row, K]]]:
        """The changes in the entries, with the newest rows; none when the generation is not live any more."""
        before = self._after or Position()
        places = self._places(generation, recent, before)
        rows: tuple[Mapping[bytes, bytes] | None, ...] = ()
        if places:
            snapshot = yield from ask(Rows(generation, places))
            if snapshot.live != generation.id:
                yield from self._leave(generation)
                return []
            rows = snapshot.rows
        self._after = before | self._consumed(generation, recent)
        self._ids.update((bucket, entries[-1].id) for bucket, entries in recent.entries.items())
        return self._returned(places, rows, before, self._after)

    def _leave(self, generation: Generation) -> Steps[None]:
        """Leaves a generation that is not live any more; the next round enters the live one."""
        self._generation = None
        yield from self._live.moved(generation, time.monotonic() + _PATIENCE_SECONDS)

    def _places(self, generation: Generation, recent: Recent, before: Position) -> tuple[tuple[int, str], ...]:
        """The changed rows, each once, in the order of their last changes; those that `before` covers were returned."""
        places: dict[tuple[int, str], None] = {}
        for bucket, entries in recent.entries.items():
            for entry in entries[1:]:
                for key in () if _covers(generation, bucket, before, entry.position) else entry.keys:
                    if self._keys is None or key in self._keys:
                        places.pop((bucket, key), None)
                        places[bucket, key] = None
        return tuple(places)

    def _consumed(self, generation: Generation, recent: Recent) -> Position:
        """The position consumed by now: a bucket's checkpoint, or its last entry where more entries follow."""
        reached = {
            bucket: entries[-1].position if _is_full(entries := recent.entries[bucket]) else position
            for bucket, position in recent.positions.items()
        }
        return least(generation, {bucket: reached[bucket] for bucket in self._ids})

    def _returned(
        self,
        places: Sequence[tuple[int, str]],
        rows: Sequence[Mapping[bytes, bytes] | None],
        before: Position,
        after: Position,
    ) -> list[Change[Row, K]]:
        """The changes of one round; only the last has the position `after`, so that a stop before it repeats them."""
        view, last = self._view, len(places) - 1
        return [
            Change(
                view.keys.decode(key),
                None if fields is None else view.rows.decode(fields),
                version_of(fields),
                after if number == last else before,
            )
            for number, ((_, key), fields) in enumerate(zip(places, rows, strict=True))
        ]

    def _buckets(self, generation: Generation) -> tuple[int, ...]:
        if self._keys is None:
            return tuple(range(generation.buckets))
        return tuple(sorted({place_of(generation, key)[0] for key in self._keys}))

    def _too_old(self, generation: Generation, bucket: int, after: Position) -> ChangesNotKept:
        return ChangesNotKept(
            f"generation {generation.id} of view {self._view.name} keeps no changes back to {after} (in "
            f"bucket {bucket}); take describe().position, then read all rows with items(), and watch on from there"
        )


def _caught_up(generation: Generation, recent: Recent, before: Position) -> Recent:
    """The entries that were read, without those of buckets that have not reached `before`: their rows would be older.

    A generation may be behind the one that it replaced; its entries wait until it has caught up.
    """
    behind = {b for b, position in recent.positions.items() if not _covers(generation, b, position, before)}
    return Recent(
        recent.live,
        {bucket: before if bucket in behind else position for bucket, position in recent.positions.items()},
        {bucket: entries[:1] if bucket in behind else entries for bucket, entries in recent.entries.items()},
    )


def _is_full(entries: Sequence[Changed]) -> bool:
    return len(entries) >= _PAGE


def _covers(generation: Generation, bucket: int, one: Position, other: Position) -> bool:
    """Whether a position covers another in the partitions that a bucket reads."""
    return one.covers(other.only(generation.topics, bucket if generation.stream_keyed else None))
