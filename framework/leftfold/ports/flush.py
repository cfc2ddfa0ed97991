"""The values of the bucket protocol: generations, registries, checkpoints and flushes of views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from leftfold.model.position import Position, RecordAddress
from leftfold.model.row_codec import CHECKSUM_MODULUS, Fields

__all__ = [
    "BucketFlush", "Checkpoint", "Generation", "Parked", "Phase", "Registry", "RowChange", "Snapshot", "While",
    "checksum_of", "covered", "stored_fields",
]  # fmt: skip


class Phase(StrEnum):
    """The phase of a generation: bulk → sealed → live → kept.

    A held generation is followed by projectors and waits for its promotion. A pinned one stays as it is: a view as of a
    position.
    """

    BULK = "bulk"
    SEALED = "sealed"
    HELD = "held"
    LIVE = "live"
    KEPT = "kept"
    PINNED = "pinned"


@dataclass(frozen=True)
class Parked:
    """A parked row key, or stream with an unreadable key: the event that it could not fold, and the error."""

    topic: str
    partition: int
    offset: int
    error: str
    waiting: int = 1

    @property
    def address(self) -> RecordAddress:
        """Where the event stands in the log."""
        return RecordAddress(self.topic, self.partition, self.offset)

    def with_another_event(self) -> Parked:
        """The same key, behind which one more event waits."""
        return replace(self, waiting=self.waiting + 1)


_BUILDING = (Phase.BULK, Phase.SEALED)
_REMEMBERED = 100
"""How many superseded fold hashes a generation records."""


def pointer(hash_: str, name: str = "") -> str:
    """The registry's pointer name for the live generation of a schema hash, or for its pinned one of a name."""
    return f"{hash_}~{name}" if name else hash_


@dataclass(frozen=True)
class Generation:
    """A generation: one complete copy of a view in the store.

    `buckets` is fixed for its life, `topics` are the physical topics it reads with the number of partitions of each.
    `since` is when it entered its phase, `name` is the name of a pinned one for readers, `ends` where its bulk load
    stops. `folds` are the fold hashes of the code that folded it, in order; the last one folds it now, and no other
    code writes to it (none = unknown). `superseded` are fold hashes of the generations that it replaced: such code
    never claims it. `until` is when a kept one ends (RFC 3339; '' = with a later rebuild). `ids` are the topic ids it
    was folded from, as their cluster gives them (none = unknown). `attempt` names the rebuild that fills it or filled
    it last ('' = none, or a version that did not record it). `cut` says where a topic of the same id ended before what
    the generation had folded ('' = none did): it is not folded any further, as if that were another topic.
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
    cut: str = ""

    @property
    def fold(self) -> str:
        """The hash of the code that folds it; '' = unknown."""
        return self.folds[-1] if self.folds else ""

    @property
    def pointer(self) -> str:
        """The registry's pointer by which readers find it: the schema hash, and the name if it is pinned."""
        return pointer(self.hash, self.name)

    def in_phase(self, phase: Phase, since: str = "", until: str = "") -> Generation:
        """The same generation in another phase."""
        return replace(self, phase=phase, since=since, until=until)

    def claimed(self, fold: str) -> Generation:
        """The same generation, folded by this code from now on."""
        return replace(self, folds=(*(other for other in self.folds if other != fold), fold))

    def after(self, before: Generation) -> Generation:
        """The same generation as the replacement of another one, whose code does not claim it."""
        codes = dict.fromkeys((*self.superseded, *before.superseded, *before.folds))
        return replace(self, superseded=tuple(code for code in codes if code not in self.folds)[-_REMEMBERED:])


@dataclass(frozen=True)
class Registry:
    """The registry of a view: every generation by id, and the live one of each schema hash."""

    generations: Mapping[str, Generation] = field(default_factory=dict)
    live: Mapping[str, str] = field(default_factory=dict)

    def with_generation(self, generation: Generation) -> Registry:
        """The registry with this generation added or replaced."""
        return replace(self, generations={**self.generations, generation.id: generation})

    def changed(self, generation_id: str, how: Callable[[Generation], Generation]) -> Registry:
        """The registry with a generation changed, if it is registered."""
        now = self.generations.get(generation_id)
        return self if now is None else self.with_generation(how(now))

    def without(self, generation_id: str) -> Registry:
        """The registry without a generation and without a live pointer to it."""
        return Registry(
            {i: g for i, g in self.generations.items() if i != generation_id},
            {h: i for h, i in self.live.items() if i != generation_id},
        )

    def pointed(self, generation: Generation, since: str = "", until: str = "") -> Registry:
        """The registry with this generation live and its predecessor kept, `since` and `until` as RFC 3339."""
        now = self.generations.get(generation.id, generation)
        before = self.generations.get(self.live.get(generation.pointer, ""))
        generations = dict(self.generations)
        if before is not None and before.id != now.id:
            generations[before.id] = before.in_phase(Phase.KEPT, since, until)
            now = now.after(before)
        generations[now.id] = now.in_phase(Phase.LIVE, since)
        return Registry(generations, {**self.live, generation.pointer: generation.id})

    def known_by(self, generation_id: str, ids: Mapping[str, str]) -> Registry:
        """The registry with the topic ids of a generation, unless it has some or is not registered."""
        return self.changed(generation_id, lambda now: now if now.ids else replace(now, ids=ids))

    def pinned(self, generation: Generation) -> Registry:
        """The registry with this generation under its pinned name, and without its predecessor of that name."""
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
    """The condition of a registry change: `holds()`, and no flush of `unmoved` since that was evaluated."""

    unmoved: Generation
    holds: Callable[[], bool]


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint of a bucket, written in the same transaction as the bucket's rows.

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
    """The result of one read: the live generation of the schema hash, checkpoints by bucket, and the rows.

    `live` is '' when there is none. Each row is at or after its bucket's checkpoint here. A row's hash holds its
    columns and, when stream-keyed, `@version`.
    """

    live: str
    checkpoints: Mapping[int, Checkpoint]
    rows: tuple[Mapping[bytes, bytes] | None, ...]


class RowChange(NamedTuple):
    """A change of a row: new fields (None = deleted), index entries before and after (None = no row)."""

    key: str
    fields: Fields | None
    version: int | None
    before: tuple[str, ...] | None
    after: tuple[str, ...] | None


@dataclass(frozen=True)
class BucketFlush:
    """The writes of one flush to one bucket, and the token that the bucket's checkpoint must have.

    Changes that do not move the checkpoint's position (`moves`) follow an entry without keys in the change stream, so
    that a watch that continues from this position begins before them.
    """

    generation: Generation
    bucket: int
    expected: str
    checkpoint: Checkpoint
    columns: Fields
    indexes: tuple[str, ...]
    changes: tuple[RowChange, ...] = ()
    moves: bool = True


@dataclass(frozen=True)
class Landed:
    """A flush whose outcome is known as soon as it began."""

    written: bool

    def landed(self) -> bool:
        """Whether the flush was written."""
        return self.written


NOTHING_TO_FLUSH = Landed(written=True)


def stored_fields(columns: Fields, fields: Fields, version: int | None) -> dict[bytes, bytes]:
    """A row as it is stored: its columns and, where it has a version, `@version`."""
    row = dict(zip(columns, fields, strict=True))
    return row if version is None else row | {b"@version": b"%d" % version}


def checksum_of(checkpoints: Iterable[Checkpoint]) -> int:
    """The checksum of the rows of some buckets."""
    return sum(checkpoint.checksum for checkpoint in checkpoints) % CHECKSUM_MODULUS


def covered(generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> Position:
    """The position that every bucket has folded in.

    Args:
        checkpoints: of all buckets, or of those of one projector; partitions that none of them reads are left out.
    """
    return least(generation, {bucket: checkpoint.position for bucket, checkpoint in checkpoints.items()})


def least(generation: Generation, positions: Mapping[int, Position]) -> Position:
    """The position that some buckets have all reached: per partition the lowest of those that read it."""
    offsets: dict[tuple[str, int], int] = {}
    for topic, count in generation.topics.items():
        for partition in range(count):
            readers = (partition,) if generation.stream_keyed else positions.keys()
            reached = [positions[b].next_offset(topic, partition) for b in readers if b in positions]
            if reached:
                offsets[topic, partition] = min(reached)
    return Position.of(offsets)
