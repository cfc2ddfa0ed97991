"""Watches of a view: its buckets' change streams, read from a position and across generations."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
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
_PAGE, _FIRST_PAGE = 100, 10
_KEYS = 2000
"""About how many keys the entries of one round name, unless flushes are larger; so many rows are read at once."""
_PATIENCE_SECONDS = 10.0
_EAR_SECONDS = 60.0


class Watch(Generic[Row, K]):
    """A watch of the changes of a view; `next_changes` returns the steps to the next ones.

    It keeps the id of the last stream entry seen in each bucket, and over all buckets the position up to which every
    change was returned. It enters a new live generation at that position. Rows are read after the entries that name
    them, so a change holds the newest row and never an older one. Rows may change again at a position that was
    reached before, as after `leftfold retry`.
    """

    def __init__(self, live: Live[Row, K], keys: Iterable[K] | None, after: Position | None) -> None:
        self._live, self._view = live, live.view
        wanted = None if keys is None else checked_keys(live.view, keys)
        self._keys = None if wanted is None else {live.view.keys.encode(key) for key in wanted}
        self._after = None if after is None else checked_position(live.view, after)
        self._listener = FlushListener()
        self._generation: Generation | None = None
        self._ids: dict[int, str] = {}
        self._page, self._shown = _FIRST_PAGE, self._after or Position()
        self._entered, self._before = "", self._shown
        """The generation that was entered last, and what had been shown before: it may be behind that."""

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
        """The next changes, at least one; none when the deadline passes before and all entries were read."""
        patience: float | None = None
        while True:
            generation = yield from self.begin()
            recent = yield from ask(Changes(generation, self._ids, self._page + 1))
            changes: list[Change[Row, K]] | None = None
            if recent.live == generation.id and recent.positions.keys() >= self._ids.keys():
                if not self._is_unbroken(recent):
                    self._generation = None
                    continue
                recent = _caught_up(generation, recent, self._before)
                changes = yield from self._changes(generation, recent)
            if changes is None:  # the generation is not live any more; the next round enters the one that is
                self._generation = None
                patience = patience or time.monotonic() + _PATIENCE_SECONDS
                yield from self._live.moved(generation, patience)
                continue
            has_more, patience = self._has_more(recent), None
            if changes:
                return changes
            left = _EAR_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0 and not has_more:
                return []
            if not has_more:
                yield from self._listener.wait(generation, None, left)

    def _has_more(self, recent: Recent) -> bool:
        """Whether more entries may follow in the stream of a bucket; chooses how many the next round reads."""
        keys = sum(len(entry.keys) for entries in recent.entries.values() for entry in entries[1:])
        is_full = any(len(entries) > self._page for entries in recent.entries.values())
        self._page = max(1, self._page // 2) if keys > _KEYS else min(_PAGE, self._page * (2 if is_full else 1))
        return is_full

    def _is_unbroken(self, recent: Recent) -> bool:
        """Whether every stream still has the entry seen last; else only the position shows what came after it."""
        return all(
            recent.entries[bucket][:1] and recent.entries[bucket][0].id == id_ for bucket, id_ in self._ids.items()
        )

    def _enter(self, generation: Generation, deadline: float) -> Steps[None]:
        """Reads the streams of a generation backwards to the last position that is covered, and its first entry."""
        buckets = self._buckets(generation)
        seen, open_ = dict[int, Changed](), dict.fromkeys(buckets, "")
        after = None if self._after is None else dict.fromkeys(buckets, self._after)
        while open_:
            recent = yield from ask(Changes(generation, open_, _PAGE, backwards=True))
            if recent.live != generation.id or not recent.positions.keys() >= open_.keys():
                yield from self._live.moved(generation, deadline)
                return
            after = after or dict(recent.positions)
            for bucket in list(open_):
                entries = recent.entries[bucket]
                covered = [e for e in entries if _covers(generation, bucket, after[bucket], e.position)]
                for entry in covered[:1] if self._after is None else covered:
                    if seen.setdefault(bucket, entry).position == entry.position:
                        seen[bucket] = entry
                if covered and (self._after is None or covered[-1] != seen[bucket]):
                    del open_[bucket]
                elif entries:
                    open_[bucket] = entries[-1].id
                elif bucket in seen and seen[bucket].begins:
                    del open_[bucket]
                else:  # the entry before the first one that is left may have been trimmed
                    raise self._too_old(generation, bucket, after[bucket])
        if self._after is None and after is not None:
            self._after = least(generation, {bucket: after[bucket] for bucket in buckets})
        if self._entered != generation.id:
            self._entered, self._before = generation.id, self._shown
        self._generation, self._ids = generation, {bucket: entry.id for bucket, entry in seen.items()}

    def _changes(self, generation: Generation, recent: Recent) -> Steps[list[Change[Row, K]] | None]:
        """The changes in the entries, with the newest rows; None when the generation is not live any more."""
        before = self._after or Position()
        places, rows = self._places(generation, recent), list[Mapping[bytes, bytes] | None]()
        shown = Position()
        for start in range(0, len(places), _KEYS):
            part = places[start : start + _KEYS]
            snapshot = yield from ask(Rows(generation, part))
            if snapshot.live != generation.id or not snapshot.checkpoints.keys() >= {bucket for bucket, _ in part}:
                return None
            rows += snapshot.rows
            shown = Position.union([shown, *(checkpoint.position for checkpoint in snapshot.checkpoints.values())])
        reached = {
            bucket: (entries[-1].position if len(entries) > self._page else recent.positions.get(bucket, before))
            for bucket, entries in recent.entries.items()
        }
        self._after, self._shown = before | least(generation, reached), self._shown | shown
        self._ids.update((bucket, entries[-1].id) for bucket, entries in recent.entries.items())
        return self._returned(places, rows, before, self._after)

    def _was_returned(self, generation: Generation, bucket: int, previous: Changed, entry: Changed) -> bool:
        """Whether the position covers an entry; one at the position of the entry before it may be newer."""
        after, reached = self._after or Position(), entry.position
        if not _covers(generation, bucket, after, reached):
            return False
        return previous.position != reached or not _covers(generation, bucket, reached, after)

    def _places(self, generation: Generation, recent: Recent) -> tuple[tuple[int, str], ...]:
        """The changed rows that were not returned yet, each once, in the order of their last changes."""
        places: dict[tuple[int, str], None] = {}
        for bucket, entries in recent.entries.items():
            for previous, entry in pairwise(entries):
                for key in () if self._was_returned(generation, bucket, previous, entry) else entry.keys:
                    if self._keys is None or key in self._keys:
                        places.pop((bucket, key), None)
                        places[bucket, key] = None
        return tuple(places)

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
            f"bucket {bucket}); read all rows again, and watch without a position: in Python take describe().position, "
            f"then read items(), and watch from there"
        )


def _caught_up(generation: Generation, recent: Recent, shown: Position) -> Recent:
    """What was read, without the buckets that have not reached what was shown before: their rows would be older.

    A generation may be behind the one that it replaced; its entries wait until it has caught up. Within a generation
    a bucket may trail the others for as long as it likes, since its rows are in no other one.
    """
    behind = {b for b, position in recent.positions.items() if not _covers(generation, b, position, shown)}
    return Recent(
        recent.live,
        {bucket: position for bucket, position in recent.positions.items() if bucket not in behind},
        {bucket: entries[:1] if bucket in behind else entries for bucket, entries in recent.entries.items()},
    )


def _covers(generation: Generation, bucket: int, one: Position, other: Position) -> bool:
    """Whether a position covers another in the partitions that a bucket reads."""
    return one.covers(other.only(generation.topics, bucket if generation.stream_keyed else None))
