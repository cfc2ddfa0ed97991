"""The differences of two generations of a view: which rows differ, and in which fields."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from leftfold.engine.views.folded_rows import place_of
from leftfold.engine.views.generations import whole_checkpoints
from leftfold.errors import ViewNotBuilt
from leftfold.ports.flush import Checkpoint, Generation, Phase, Snapshot
from leftfold.ports.protocols import ViewStore

__all__ = ["Diff", "RowDifference", "diff", "keys_of", "text_fields"]

_PAGE = 500
_PATIENCE, _PAUSE = 3.0, 0.002
Fields: TypeAlias = Mapping[str, str]
_Seen: TypeAlias = tuple[Fields | None, Fields | None]
_Both: TypeAlias = tuple[Snapshot, Snapshot]


@dataclass(frozen=True)
class RowDifference:
    """A row that differs between two generations; None where there is none."""

    key: str
    one: Fields | None
    other: Fields | None

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that differ, by name."""
        one, other = self.one or {}, self.other or {}
        return tuple(name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name))


@dataclass
class Diff:
    """The differences of two generations.

    Args:
        only_one, only_other, different: how many rows.
        unsettled: rows that could not be read at one position of the log in both, since both move.
        samples: the first rows that differ.
    """

    one: Generation
    other: Generation
    equal: int = 0
    only_one: int = 0
    only_other: int = 0
    different: int = 0
    unsettled: int = 0
    samples: list[RowDifference] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether every row is the same in both."""
        return not (self.only_one or self.only_other or self.different or self.unsettled)


def diff(
    one: Generation,
    other: Generation,
    store: ViewStore,
    *,
    samples: int = 5,
    moving: bool = True,
    tell: Callable[[int], None] = lambda count: None,
) -> Diff:
    """Compares all rows of two generations of one view.

    Where both follow the log, a row that seems to differ counts only if it does so with both checkpoints at one
    position.

    Args:
        samples: how many rows that differ are kept whole.
        moving: whether projectors move the generations of this view; those that are pinned never move.
        tell: called with the number of rows compared.

    Raises:
        ViewNotBuilt: one of them does not exist any more or is not complete.
    """
    found = Diff(one, other)
    moving = moving and Phase.PINNED not in (one.phase, other.phase)
    for generation in (one, other):
        whole_checkpoints(store, generation)
    for keys in keys_of(store, one, range(one.buckets)):
        _compare(found, keys, store, samples, moving=moving)
        tell(len(keys))
    for keys in keys_of(store, other, range(other.buckets)):
        there = store.read(one, [place_of(one, key) for key in keys]).rows
        new = [key for key, row in zip(keys, there, strict=True) if row is None]
        _compare(found, new, store, samples, moving=moving)
        tell(len(keys))
    return found


def keys_of(store: ViewStore, generation: Generation, buckets: Iterable[int]) -> Iterator[list[str]]:
    """The row keys of some buckets, page by page."""
    for bucket in buckets:
        last = ""
        while keys := store.keys(generation, bucket, last, _PAGE):
            yield keys
            last = keys[-1]


def _compare(found: Diff, keys: Sequence[str], store: ViewStore, samples: int, *, moving: bool) -> None:
    one, other = _both(found, keys, store)
    pairs = zip(map(text_fields, one.rows), map(text_fields, other.rows), strict=True)
    seen: dict[str, _Seen] = dict(zip(keys, pairs, strict=True))
    if moving:
        apart = [key for key, (a, b) in seen.items() if a != b]
        settled = _settled(found, apart, store) if apart else {}
        seen = {key: settled.get(key, both) for key, both in seen.items() if both[0] == both[1] or key in settled}
    for key in keys:
        a, b = seen.get(key, (None, None))
        if key not in seen:
            found.unsettled += 1
        elif a is None and b is None:
            continue  # deleted in both meanwhile
        elif a == b:
            found.equal += 1
        else:
            _count(found, RowDifference(key, a, b), samples)


def _count(found: Diff, difference: RowDifference, samples: int) -> None:
    found.only_one += difference.other is None
    found.only_other += difference.one is None
    found.different += None not in (difference.one, difference.other)
    if len(found.samples) < samples:
        found.samples.append(difference)


def _settled(found: Diff, keys: list[str], store: ViewStore) -> dict[str, _Seen]:
    """Rows of both generations read with both checkpoints at one position; others are left out.

    A row is never older than its checkpoint, and not newer where the checkpoint's token is the same before and after it
    is read.
    """
    settled: dict[str, _Seen] = {}
    deadline, before = time.monotonic() + _PATIENCE, _both(found, keys, store)
    while len(settled) < len(keys) and time.monotonic() < deadline:
        after = _both(found, keys, store)
        for index, key in enumerate(keys):
            if key not in settled and _level(found, key, before, after):
                settled[key] = text_fields(before[0].rows[index]), text_fields(before[1].rows[index])
        before = after
        time.sleep(_PAUSE)
    return settled


def _level(found: Diff, key: str, before: _Both, after: _Both) -> bool:
    """Whether both checkpoints of a row stood still between two reads, at one position of the log."""
    first = [_checkpoint_of(g, snapshot, key) for g, snapshot in zip((found.one, found.other), before, strict=True)]
    then = [_checkpoint_of(g, snapshot, key) for g, snapshot in zip((found.one, found.other), after, strict=True)]
    still = [checkpoint.token for checkpoint in first] == [checkpoint.token for checkpoint in then]
    return still and first[0].position.covers(first[1].position) and first[1].position.covers(first[0].position)


def _both(found: Diff, keys: Sequence[str], store: ViewStore) -> _Both:
    asked = [(generation, [place_of(generation, key) for key in keys]) for generation in (found.one, found.other)]
    one, other = store.read_all(asked)
    return one, other


def _checkpoint_of(generation: Generation, snapshot: Snapshot, key: str) -> Checkpoint:
    checkpoint = snapshot.checkpoints.get(place_of(generation, key)[0])
    if checkpoint is None:
        raise ViewNotBuilt(f"generation {generation.id} of view {generation.view} is not whole any more")
    return checkpoint


def text_fields(fields: Mapping[bytes, bytes] | None) -> Fields | None:
    """The fields of a stored row as text; None = no row."""
    if fields is None:
        return None
    return {k.decode(errors="replace"): v.decode(errors="replace") for k, v in fields.items()}
