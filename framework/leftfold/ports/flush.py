"""The values of the bucket protocol: generations, checkpoints and flushes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from leftfold.model.position import Position
from leftfold.model.rows import Fields

__all__ = [
    "BucketFlush",
    "Checkpoint",
    "Generation",
    "Parked",
    "Phase",
    "Registry",
    "RowChange",
    "Snapshot",
    "While",
    "covered",
]


class Phase(StrEnum):
    """Where a generation is in its life: bulk → sealed → live → kept.

    A held one is followed by projectors and waits for its promotion; a pinned one stays as it is: a view as of some
    place.
    """

    BULK = "bulk"
    SEALED = "sealed"
    HELD = "held"
    LIVE = "live"
    KEPT = "kept"
    PINNED = "pinned"


@dataclass(frozen=True)
class Parked:
    """Why a row key (or a stream whose key cannot be told) does not move on: the first event it could not digest."""

    topic: str
    partition: int
    offset: int
    error: str
    waiting: int = 1


_BUILDING = (Phase.BULK, Phase.SEALED)
_REMEMBERED = 100
"""How many superseded codes a generation names."""


def pointer(hash_: str, name: str = "") -> str:
    """What the registry calls the live generation of a hash, or its pinned one of a name."""
    return f"{hash_}~{name}" if name else hash_


@dataclass(frozen=True)
class Generation:
    """One complete copy of a view in the store.

    `buckets` is fixed for its life, `topics` are the physical topics it reads with the number of partitions of each.
    `since` is when it came into its phase, `name` what readers of a pinned one call it, `ends` where its bulk load
    stops. `folds` are the hashes of the codes that folded it, in order; the last one folds it now, and no other code
    writes to it (none = unknown). `superseded` are codes of the generations that it replaced: they never claim it.
    `until` is when a kept one ends (RFC 3339; '' = with a later rebuild). `ids` are those of the topics it was folded
    from, as their cluster gives them (none = unknown). `attempt` names the rebuild that fills it or filled it last
    ('' = none, or a version that did not say).
    """

    view: str
    id: str
    hash: str
    stream_keyed: bool
    buckets: int
    topics: Mapping[str, int]
    phase: Phase = Phase.SEALED
    created: str = ""
    since: str = ""
    name: str = ""
    folds: tuple[str, ...] = ()
    ends: Position = field(default_factory=Position)
    superseded: tuple[str, ...] = ()
    until: str = ""
    ids: Mapping[str, str] = field(default_factory=dict)
    attempt: str = ""

    @property
    def fold(self) -> str:
        """The code that folds it; '' = unknown."""
        return self.folds[-1] if self.folds else ""

    @property
    def pointer(self) -> str:
        """What readers look up to find it: the hash of their code, and the name if it is a pinned one's."""
        return pointer(self.hash, self.name)

    def in_phase(self, phase: Phase, since: str = "", until: str = "") -> Generation:
        """The same generation in another phase."""
        return replace(self, phase=phase, since=since, until=until)

    def claimed(self, fold: str) -> Generation:
        """The same generation, folded by this code from here on."""
        return replace(self, folds=(*(other for other in self.folds if other != fold), fold))

    def after(self, before: Generation) -> Generation:
        """The same generation in the place of another one, whose codes do not claim it."""
        codes = dict.fromkeys((*self.superseded, *before.superseded, *before.folds))
        return replace(self, superseded=tuple(code for code in codes if code not in self.folds)[-_REMEMBERED:])


@dataclass(frozen=True)
class Registry:
    """Every generation of a view by id, and the live one of each schema hash."""

    generations: Mapping[str, Generation] = field(default_factory=dict)
    live: Mapping[str, str] = field(default_factory=dict)

    def with_generation(self, generation: Generation) -> Registry:
        """The registry with one more or one changed generation."""
        return replace(self, generations={**self.generations, generation.id: generation})

    def without(self, generation_id: str) -> Registry:
        """The registry without a generation; a live pointer to it goes too."""
        return Registry(
            {i: g for i, g in self.generations.items() if i != generation_id},
            {h: i for h, i in self.live.items() if i != generation_id},
        )

    def pointed(self, generation: Generation, since: str = "", until: str = "") -> Registry:
        """The registry with this generation live and its predecessor kept, from one moment until another (RFC 3339)."""
        now = self.generations.get(generation.id, generation)
        before = self.generations.get(self.live.get(generation.pointer, ""))
        generations = dict(self.generations)
        if before is not None and before.id != now.id:
            generations[before.id] = before.in_phase(Phase.KEPT, since, until)
            now = now.after(before)
        generations[now.id] = now.in_phase(Phase.LIVE, since)
        return Registry(generations, {**self.live, generation.pointer: generation.id})

    def known_by(self, generation_id: str, ids: Mapping[str, str]) -> Registry:
        """The registry with the ids of a generation's topics, unless it has some or is not there."""
        now = self.generations.get(generation_id)
        return self if now is None or now.ids else self.with_generation(replace(now, ids=ids))

    def pinned(self, generation: Generation) -> Registry:
        """The registry with this generation behind its name, and without the one that was."""
        pinned = generation.in_phase(Phase.PINNED)
        rest = self.without(self.live.get(generation.pointer, ""))
        return Registry({**rest.generations, pinned.id: pinned}, {**rest.live, pinned.pointer: pinned.id})

    def begun_of(self, hash_: str) -> Generation | None:
        """The newest generation of a schema hash that is being built and has no name, if any."""
        found = [g for g in self.generations.values() if (g.hash, g.name) == (hash_, "") and g.phase in _BUILDING]
        return max(found, key=lambda generation: generation.created, default=None)

    def live_of(self, hash_: str, name: str = "") -> Generation | None:
        """The live generation of a schema hash, or its pinned one of a name."""
        return self.generations.get(self.live.get(pointer(hash_, name), ""))


@dataclass(frozen=True)
class While:
    """What a change of a registry depends on: `holds`, and no flush of `unmoved` from when that is asked."""

    unmoved: Generation
    holds: Callable[[], bool]


@dataclass(frozen=True)
class Checkpoint:
    """What a bucket knows of itself; written in the same transaction as its rows.

    `checksum` is the sum of its rows' digests mod 2^128, `rows` how many there are, `token` names the last flush,
    `time` is the latest event time folded in (RFC 3339, '' = none).
    """

    position: Position
    checksum: int = 0
    token: str = ""
    phase: Phase = Phase.SEALED
    rows: int = 0
    parked: Mapping[str, Parked] = field(default_factory=dict)
    time: str = ""


@dataclass(frozen=True)
class Snapshot:
    """What one read saw: which generation was live for the hash ('' = none), checkpoints by bucket, and rows as asked.

    Each row is at or after its bucket's checkpoint here. A row's hash holds its columns and, when stream-keyed,
    `@version`.
    """

    live: str
    checkpoints: Mapping[int, Checkpoint]
    rows: tuple[Mapping[bytes, bytes] | None, ...]


class RowChange(NamedTuple):
    """A row's new fields (None = deleted) with its index entries before and after (None = no row)."""

    key: str
    fields: Fields | None
    version: int | None
    before: tuple[str, ...] | None
    after: tuple[str, ...] | None


@dataclass(frozen=True)
class BucketFlush:
    """Everything one flush does to one bucket, and the token it must find there."""

    generation: Generation
    bucket: int
    expected: str
    checkpoint: Checkpoint
    columns: Fields
    indexes: tuple[str, ...]
    changes: tuple[RowChange, ...] = ()


@dataclass(frozen=True)
class Landed:
    """A flush whose outcome was known as soon as it began."""

    written: bool

    def landed(self) -> bool:
        """The outcome."""
        return self.written


NOTHING_TO_FLUSH = Landed(written=True)


def covered(generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> Position:
    """What every bucket here has folded in: per partition the least of the checkpoints concerned.

    Args:
        checkpoints: of all buckets, or of those that somebody folds; partitions that concern none of them are left out.
    """
    offsets: dict[str, dict[int, int]] = {}
    for topic, count in generation.topics.items():
        for partition in range(count):
            concerned = (
                [m for b, m in checkpoints.items() if b == partition]
                if generation.stream_keyed
                else checkpoints.values()
            )
            if not concerned:
                continue
            least = min(checkpoint.position.next_offset(topic, partition) for checkpoint in concerned)
            offsets.setdefault(topic, {})[partition] = least
    return Position(offsets)
