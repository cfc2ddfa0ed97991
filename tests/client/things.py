"""A view with an index of every kind, and a way to put rows into it in any store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from uuid import UUID

from hypothesis import strategies as st

from leftfold import Event, FoldView
from leftfold.engine.views.folded_rows import bucket_of
from leftfold.engine.views.generations import change, open_generation
from leftfold.model.position import Position
from leftfold.ports.flush import BucketFlush, Checkpoint, Generation, Phase, RowChange
from leftfold.ports.protocols import ViewStore

__all__ = ["FIELDS", "Kind", "Thing", "filled", "rows_of", "things", "values"]

TOPIC = "things.events"
BUCKETS = 3


class Kind(Enum):
    SMALL = "small"
    LARGE = "large"
    OTHER = "other"


@dataclass(frozen=True)
class Thing:
    size: int
    price: Decimal
    at: datetime
    day: date
    ok: bool
    kind: Kind
    color: str
    id: UUID
    weight: Decimal | None = None
    nick: str | None = None
    seen: datetime | None = None


class Seen(Event, category="things", key="thing_id"):
    thing_id: str


def never(row: Thing | None, event: Seen) -> Thing | None:
    """No event is folded here: rows are written as they are."""
    return row


FIELDS = ("size", "price", "at", "day", "ok", "kind", "color", "id", "weight", "nick", "seen")
things = FoldView("things", events=Seen, row=Thing, key=lambda e: e.thing_id, evolve=never, indexes=FIELDS)

_few = st.sampled_from
FIRST, LAST = datetime(1, 1, 3), datetime(9999, 12, 29)  # noqa: DTZ001  # hypothesis adds the zones
values: Mapping[str, st.SearchStrategy[object]] = {
    "size": st.integers() | st.integers(-3, 3),
    "price": st.decimals(allow_nan=False, allow_infinity=False) | _few([Decimal(n) / 4 for n in range(-9, 9)]),
    "at": st.datetimes(FIRST, LAST, timezones=_few([UTC, timezone(timedelta(hours=-7))])),
    "day": st.dates(),
    "ok": st.booleans(),
    "kind": _few(Kind),
    "color": st.text(_few("ab\0\x01\x7fé\U0010ffff"), max_size=3) | st.text(st.characters(codec="utf-8"), max_size=5),
    "id": st.uuids(),
    "weight": st.none() | _few([Decimal(n) for n in range(-3, 3)]),
    "nick": st.none() | _few(["", "a", "b", "-"]),
    "seen": st.none() | st.datetimes(FIRST, LAST, timezones=st.just(UTC)),
}


def rows_of(count: int = 8) -> st.SearchStrategy[dict[str, Thing]]:
    """Some rows by key."""
    rows = st.builds(lambda fields: Thing(**fields), st.fixed_dictionaries(dict(values)))
    return st.dictionaries(st.text("abcxyz", min_size=1, max_size=3), rows, max_size=count)


@contextmanager
def filled(store: ViewStore, rows: Mapping[str, Thing]) -> Iterator[Generation]:
    """A live generation with these rows, until the block ends."""
    generation = open_generation(store, things, {TOPIC: BUCKETS}, Phase.SEALED, BUCKETS)
    change(store, things.name, lambda registry: registry.pointed(generation))
    try:
        assert write(store, generation, rows.items())
        yield generation
    finally:
        change(store, things.name, lambda registry: registry.without(generation.id))
        store.unlink(generation)


def write(store: ViewStore, generation: Generation, rows: Iterable[tuple[str, Thing]]) -> bool:
    """Flushes new rows into every bucket."""
    codec, checkpoints = things.rows, store.checkpoints(generation)
    changes: dict[int, list[RowChange]] = {number: [] for number in range(BUCKETS)}
    for key, row in rows:
        changes[bucket_of(generation, key, 0)].append(
            RowChange(key, codec.encode(row), None, None, codec.index_entries(row))
        )
    position = Position({TOPIC: dict.fromkeys(range(BUCKETS), 1)})
    return store.flush(
        [
            BucketFlush(
                generation,
                number,
                checkpoints[number].token,
                Checkpoint(position, token="filled", rows=len(some)),
                codec.columns,
                codec.indexes,
                tuple(some),
            )
            for number, some in changes.items()
        ]
    )
