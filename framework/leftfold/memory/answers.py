"""How a store in memory answers each question of a reader."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, TypeVar

from leftfold.flush import Generation, Registry, Snapshot
from leftfold.questions import (
    Changed,
    Changes,
    Counting,
    Counts,
    Entries,
    Glance,
    Inspection,
    Listed,
    Matches,
    Matching,
    Question,
    Recent,
    Registered,
    Rows,
    Seen,
    Standing,
)

if TYPE_CHECKING:
    from leftfold.memory.views import MemoryViewStore

__all__ = ["answered"]

A = TypeVar("A")


def answered(store: MemoryViewStore, question: Question[A]) -> A:
    """The answer to a question."""
    answer: Any = _ANSWERS[type(question)](store, question)
    typed: A = answer
    return typed


def _registered(store: MemoryViewStore, asked: Registered) -> Registry:
    return store.registry(asked.view)


def _rows(store: MemoryViewStore, asked: Rows) -> Snapshot:
    numbers = [*asked.buckets, *(number for number, _ in asked.keys)]
    buckets = {number: store.bucket(asked.generation, number) for number in numbers}
    return Snapshot(
        _live(store, asked.generation),
        {n: bucket.mark for n, bucket in buckets.items() if bucket is not None and bucket.counts_in(asked.generation)},
        tuple(bucket.rows.get(key) if (bucket := buckets[number]) else None for number, key in asked.keys),
    )


def _glance(store: MemoryViewStore, asked: Glance) -> Seen:
    bucket = store.bucket(asked.generation, asked.bucket)
    whole = bucket is not None and bucket.counts_in(asked.generation)
    return Seen(_live(store, asked.generation), whole, bucket.rows.get(asked.key) if bucket else None)


def _listed(store: MemoryViewStore, asked: Listed) -> list[str]:
    found = store.bucket(asked.generation, asked.bucket)
    ordered = sorted(found.rows, key=str.encode) if found else []
    start = bisect_right(ordered, asked.after) if asked.after else 0
    return ordered[start : start + asked.limit]


def _matching(store: MemoryViewStore, asked: Matching) -> Matches:
    numbers = range(asked.generation.buckets) if asked.buckets is None else asked.buckets
    buckets = {number: store.bucket(asked.generation, number) for number in numbers}
    found = []
    for range_ in asked.ranges:
        entries = {number: bucket.within(range_) if bucket else [] for number, bucket in buckets.items()}
        found.append({n: tuple(e[::-1] if asked.backwards else e)[: asked.limit] for n, e in entries.items()})
    return Matches(_live(store, asked.generation), tuple(found))


def _counting(store: MemoryViewStore, asked: Counting) -> Counts:
    buckets = [store.bucket(asked.generation, number) for number in range(asked.generation.buckets)]
    totals = (sum(len(bucket.within(range_)) for bucket in buckets if bucket) for range_ in asked.ranges)
    return Counts(_live(store, asked.generation), tuple(totals))


def _entries_from(store: MemoryViewStore, asked: Entries) -> list[tuple[str, str]]:
    bucket = store.bucket(asked.generation, asked.bucket)
    indexed = bucket.indexed.items() if bucket else ()
    found = sorted((entries[asked.index], key) for key, entries in indexed if asked.index in entries)
    return [entry for entry in found if entry >= asked.first][: asked.limit]


def _inspection(store: MemoryViewStore, asked: Inspection) -> Standing:
    bucket = store.bucket(asked.generation, asked.bucket)
    if bucket is None:
        return Standing(None, None, False, frozenset(), False)
    indexed = bucket.indexed.get(asked.key, {}).items()
    fields, whole = bucket.rows.get(asked.key), bucket.counts_in(asked.generation)
    there = frozenset(entry for entry in asked.entries if entry in indexed)
    return Standing(bucket.mark if whole else None, fields, fields is not None, there, whole)


def _changes(store: MemoryViewStore, asked: Changes) -> Recent:
    buckets = {number: store.bucket(asked.generation, number) for number in asked.ids}
    return Recent(
        _live(store, asked.generation),
        {number: bucket.mark.position for number, bucket in buckets.items() if bucket},
        {n: _entries(tuple(bucket.changes), asked, asked.ids[n]) if bucket else () for n, bucket in buckets.items()},
    )


def _entries(changes: tuple[Changed, ...], asked: Changes, id_: str) -> tuple[Changed, ...]:
    if asked.backwards:
        found = tuple(change for change in reversed(changes) if not id_ or int(change.id) < int(id_))
    else:
        found = tuple(change for change in changes if int(change.id) >= int(id_))
    return found[: asked.limit]


def _live(store: MemoryViewStore, generation: Generation) -> str:
    return store.registry(generation.view).live.get(generation.pointer, "")


_ANSWERS: dict[type, Any] = {
    Registered: _registered,
    Glance: _glance,
    Rows: _rows,
    Listed: _listed,
    Matching: _matching,
    Counting: _counting,
    Entries: _entries_from,
    Inspection: _inspection,
    Changes: _changes,
}
