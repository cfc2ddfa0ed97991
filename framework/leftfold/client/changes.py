"""Watching a view: its buckets' change streams, read on from a position and across generations."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic

from typing_extensions import TypeVar

from leftfold.client.lookup import Live, checked_keys, checked_position, version_of
from leftfold.client.results import Change
from leftfold.client.steps import FlushListener, Steps, ask
from leftfold.engine.views.row_folding import place_of
from leftfold.errors import ChangesNotKept
from leftfold.model.position import Position
from leftfold.ports.flush import Generation
from leftfold.ports.queries import Changed, Changes, Recent, Rows

__all__ = ["Watch"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)
_PAGE = 100
_PATIENCE_SECONDS = 10.0
_EAR_SECONDS = 60.0


class Watch(Generic[Row, K]):
    """One watcher's place in the changes of a view; `next_changes` is the steps to the next ones.

    In each bucket it remembers the id of the last stream entry seen, and over all of them the position up to which
    nothing is left to tell. A new live generation is entered at that position; rows are read after the entries that
    name them, so a row is told as it is and never as it was.
    """

    def __init__(self, live: Live[Row, K], keys: Iterable[K] | None, after: Position | None) -> None:
        self._live, self._view = live, live.view
        wanted = None if keys is None else checked_keys(live.view, keys)
        self._keys = None if wanted is None else {live.view.keys.encode(key) for key in wanted}
        self._after = None if after is None else checked_position(live.view, after)
        self._ear = FlushListener()
        self._generation: Generation | None = None
        self._ids: dict[int, str] = {}

    def close(self) -> None:
        """Listens no more."""
        self._ear.close()

    def begin(self) -> Steps[Generation]:
        """Finds its place; from here on nothing is missed.

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
                yield from self._ear.wait(generation, None, left)

    def _is_unbroken(self, recent: Recent) -> bool:
        """Whether every stream still has the entry seen last; else only the position tells what there was behind it."""
        return all(
            recent.entries[bucket][:1] and recent.entries[bucket][0].id == id_ for bucket, id_ in self._ids.items()
        )

    def _enter(self, generation: Generation, deadline: float) -> Steps[None]:
        """Goes back in the streams of a generation to the last entries that the position covers."""
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
            self._after = _least(generation, buckets, after)
        self._generation, self._ids = generation, ids

    def _changes(self, generation: Generation, recent: Recent) -> Steps[list[Change[Row, K]]]:
        """What the entries come to, with the rows as they are now; none when the generation was left meanwhile."""
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
        return self._told(places, rows, before, self._after)

    def _leave(self, generation: Generation) -> Steps[None]:
        """The generation is not live any more: the next round enters the one that is."""
        self._generation = None
        yield from self._live.moved(generation, time.monotonic() + _PATIENCE_SECONDS)

    def _places(self, generation: Generation, recent: Recent, before: Position) -> tuple[tuple[int, str], ...]:
        """Whose rows changed, each once, in the order of their last changes; what `before` covers was told."""
        places: dict[tuple[int, str], None] = {}
        for bucket, entries in recent.entries.items():
            for entry in entries[1:]:
                for key in () if _covers(generation, bucket, before, entry.position) else entry.keys:
                    if self._keys is None or key in self._keys:
                        places.pop((bucket, key), None)
                        places[bucket, key] = None
        return tuple(places)

    def _consumed(self, generation: Generation, recent: Recent) -> Position:
        """Up to where nothing is left: a bucket's checkpoint, or its last entry where there are more behind it."""
        reached = {
            bucket: entries[-1].position if _is_full(entries := recent.entries[bucket]) else position
            for bucket, position in recent.positions.items()
        }
        return _least(generation, tuple(self._ids), reached)

    def _told(
        self,
        places: Sequence[tuple[int, str]],
        rows: Sequence[Mapping[bytes, bytes] | None],
        before: Position,
        after: Position,
    ) -> list[Change[Row, K]]:
        """Changes found together: only behind the last of them is everything up to `after` told."""
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
    """What was read, without the entries of buckets that have not reached `before`: their rows would be older.

    A generation may be behind the one that went before it; its entries wait until it has caught up.
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
    """Whether a position covers another as far as a bucket is concerned."""
    return one.covers(other.only(generation.topics, bucket if generation.stream_keyed else None))


def _least(generation: Generation, buckets: tuple[int, ...], positions: Mapping[int, Position]) -> Position:
    """What all of these buckets have reached, per partition that concerns them."""
    offsets: dict[str, dict[int, int]] = {}
    for topic, count in generation.topics.items():
        partitions = [b for b in buckets if b < count] if generation.stream_keyed else range(count)
        for partition in partitions:
            concerned = (partition,) if generation.stream_keyed else buckets
            least = min(positions[bucket].next_offset(topic, partition) for bucket in concerned)
            offsets.setdefault(topic, {})[partition] = least
    return Position(offsets)
