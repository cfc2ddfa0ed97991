"""Reads by key, and waits until a view has folded a position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic

from typing_extensions import TypeVar

from leftfold.client.results import Description, Entry, described
from leftfold.client.steps import FlushListener, Pause, Steps, ask
from leftfold.engine.views.folded_rows import place_of
from leftfold.errors import ConfigurationError, StaleViewError, ViewNotBuilt
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.flush import Generation, Phase, Registry, Snapshot, covered
from leftfold.ports.queries import GetRow, Registered, RowResult, Rows

__all__ = [
    "Live",
    "Lookup",
    "awaited",
    "check_number",
    "checked_keys",
    "checked_position",
    "checked_view",
    "start_command",
    "version_of",
]


Row = TypeVar("Row")
K = TypeVar("K", default=str)
TIMEOUT = 2.0
"""The default number of seconds to wait for a position."""


def check_number(number: int | None, name: str) -> None:
    """Checks the number of wanted rows; None = all.

    Raises:
        ConfigurationError: it is no whole number above 0.
    """
    if number is not None and (not isinstance(number, int) or number < 1):
        raise ConfigurationError(f"{name}={number!r} must be a whole number from 1 on")


def checked_keys(view: View[Any, K], keys: Iterable[K]) -> list[K]:
    """The given keys, checked: a single str is an iterable of str, so no type checker refuses it.

    Raises:
        ConfigurationError: it is one text.
    """
    if isinstance(keys, (str, bytes)):
        raise ConfigurationError(f"view {view.name}: {keys!r} is one key; say a list of keys: [{keys!r}]")
    return list(keys)


def checked_position(view: View[Any, Any], after: Position) -> Position:
    """The position to wait for or to continue from, checked.

    Raises:
        ConfigurationError: it is something else, such as a receipt.
    """
    if isinstance(after, Position):
        return after
    hint = "say receipt.position" if hasattr(after, "position") else "take it from a receipt, a change or describe()"
    raise ConfigurationError(f"view {view.name}: {after!r} is {type(after).__name__} and no Position; {hint}")


def awaited(view: View[Any, Any], asked: Mapping[str, Any]) -> tuple[dict[str, Any], Position | None, float]:
    """The fields of a `find` or `count`, and from `after=` and `timeout=` the position to wait for, and how long.

    Both are fields where the view has an index of that name, unless `after` is a Position, which no field is.

    Raises:
        ConfigurationError: `after` is something else, such as a receipt.
    """
    fields, indexes = dict(asked), view.rows.indexes
    waits = isinstance(fields.get("after"), Position)
    after = fields.pop("after", None) if waits or "after" not in indexes else None
    timeout = fields.pop("timeout", TIMEOUT) if waits or "timeout" not in indexes else TIMEOUT
    return fields, None if after is None else checked_position(view, after), timeout


def checked_view(view: View[Row, K]) -> View[Row, K]:
    """The view, checked.

    Raises:
        ConfigurationError: it is something else, such as its name.
    """
    if isinstance(view, View):
        return view
    raise ConfigurationError(
        f"views[{view!r}]: a reader is found by the view itself, not by {type(view).__name__}; "
        f"import it: from shop.projections.NAME import NAME, then views[NAME]"
    )


_PAUSE_SECONDS = 0.01


class Live(Generic[Row, K]):
    """A cache of the live generation, which saves a lookup per read; every answer says whether it is still live.

    `known` is the generation that was live at the last lookup.

    Args:
        name: of a pinned generation, which is read instead; '' = the live one.
    """

    def __init__(self, view: View[Row, K], name: str = "") -> None:
        self.view, self.name = view, name
        self.known: Generation | None = None

    def generation(self, *, fresh: bool = False) -> Steps[Generation]:
        """The live generation of this code's schema hash.

        Raises:
            ViewNotBuilt: there is none.
        """
        # In a variable of its own: another thread may drop `known` at any time.
        registry, known = Registry(), self.known
        if fresh or known is None:
            registry = yield from ask(Registered(self.view.name))
            known = self.known = registry.live_of(self.view.hash, self.name)
            if known is None and self.name:
                raise _no_such(self.view, self.name, registry)
        if known is None:
            if self.view.streamed:
                raise ViewNotBuilt(
                    f"view {self.view.name} has no live generation for this code; start its stream, "
                    f"where the App names it: leftfold run {self.view.name}"
                )
            if (building := registry.begun_of(self.view.hash)) is not None:
                raise ViewNotBuilt((yield from self._so_far(building)))
            raise ViewNotBuilt(
                f"view {self.view.name} has no live generation for this code (schema {self.view.hash}); "
                f"{start_command(self.view)}, or build it: leftfold rebuild {self.view.name}"
            )
        return known

    def _so_far(self, building: Generation) -> Steps[str]:
        """The generation that is being built, and its progress."""
        what = f"view {self.view.name} is being built for this code: generation {building.id}"
        if building.phase is Phase.BULK:
            return f"{what} is filled by a rebuild; see what runs: leftfold status"
        read = yield from ask(Rows(building, (), tuple(range(building.buckets))))
        is_whole = len(read.checkpoints) == building.buckets
        done = covered(building, read.checkpoints).ahead_of(Position()) if is_whole else 0
        rows = sum(checkpoint.rows for checkpoint in read.checkpoints.values())
        return (
            f"{what} holds {rows:,} rows of the first {done:,} offsets; see how many there are: leftfold status. "
            f"If it does not move on: leftfold run {self.view.name}"
        )

    def moved(self, generation: Generation, deadline: float) -> Steps[None]:
        """Drops a generation that is not live any more, or lacks checkpoints, and waits briefly for the next one.

        Raises:
            ViewNotBuilt: no other one is live, and it is past the deadline.
        """
        self.known = None
        if (yield from self.generation()).id != generation.id:
            return
        if time.monotonic() >= deadline:
            raise ViewNotBuilt(
                f"generation {generation.id} of view {self.view.name} is not whole; is a projector running? "
                f"leftfold run {self.view.name}"
            )
        yield Pause(_PAUSE_SECONDS)


def start_command(view: View[Any, Any]) -> str:
    """The command that starts the process which writes a view, other than a user's stream processor."""
    return f"{'start a projector' if view.folded else 'let Spark keep it'}: leftfold run {view.name}"


def _no_such(view: View[Any, Any], name: str, registry: Registry) -> ViewNotBuilt:
    """The error for a name without a pinned generation; held and kept ones have no names and are read otherwise."""
    if name in (Phase.HELD.value, Phase.KEPT.value):
        compare = f"leftfold diff {view.name} --live --{name}"
        step = f"leftfold explain {view.name}@{name} KEY" if view.folded else compare
        return ViewNotBuilt(
            f"view {view.name}: rows are read from the live generation and from those that rebuild --as-of named; "
            f"look at a {name} one with {step}"
        )
    there = ", ".join(sorted({g.name for g in registry.generations.values() if g.name})) or "none"
    return ViewNotBuilt(
        f"view {view.name} has nothing called {name!r} for this code (schema {view.hash}); names there are: {there}; "
        f"build it: leftfold rebuild {view.name} --as-of PLACE --name {name}"
    )


A = TypeVar("A")


class Lookup(Generic[Row, K]):
    """Reads rows by key in the live generation; each method returns the steps of one read."""

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
        checkpoint, fields = snapshot.checkpoints[place_of(generation, encoded)[0]], snapshot.rows[0]
        row = None if fields is None else self._view.rows.decode(fields)
        return Entry(row, version_of(fields), checkpoint.position, checkpoint.parked.get(encoded), generation.id)

    def many(self, keys: Iterable[K], after: Position | None, timeout: float) -> Steps[dict[K, Row]]:
        """The rows that exist among some keys."""
        wanted = checked_keys(self._view, keys)
        if not wanted:
            return {}
        _, snapshot = yield from self._read([self._view.keys.encode(key) for key in wanted], after, timeout)
        rows = zip(wanted, snapshot.rows, strict=True)
        return {key: self._view.rows.decode(fields) for key, fields in rows if fields is not None}

    def reached(self, position: Position, timeout: float) -> Steps[None]:
        """Waits until every bucket has folded a position."""
        yield from self._read((), position, timeout, whole=True)

    def whole(self, timeout: float) -> Steps[Snapshot]:
        """The checkpoints of every bucket of the live generation."""
        _, snapshot = yield from self._read((), None, timeout, whole=True)
        return snapshot

    def behind(self, after: Position | None, timeout: float, search: Callable[[], Steps[A]]) -> Steps[A]:
        """The result of a search once every bucket has folded a position; it waits again for another generation."""
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
        """The description of the live generation."""
        yield from self._live.generation(fresh=True)
        generation, snapshot = yield from self._read((), None, TIMEOUT, whole=True)
        return described(self._view, generation, snapshot.checkpoints)

    def _glance(self, encoded: str) -> Steps[RowResult | None]:
        """One row in one query where the live generation is known; None when another one is live."""
        generation = self._live.known
        if generation is None:
            return None
        seen: RowResult = yield GetRow(generation, *place_of(generation, encoded))
        return seen if seen.live == generation.id and seen.whole else None

    def _read(
        self, encoded: Sequence[str], after: Position | None, timeout: float, *, whole: bool = False
    ) -> Steps[tuple[Generation, Snapshot]]:
        """The rows, once their buckets (or all, when `whole`) have folded the position."""
        after = None if after is None else checked_position(self._view, after)
        deadline, listener = time.monotonic() + timeout, FlushListener()
        try:
            while True:
                generation = yield from self._live.generation()
                places = tuple([place_of(generation, key) for key in encoded])
                question = Rows(generation, places, tuple(range(generation.buckets)) if whole else ())
                snapshot = yield from ask(question)
                buckets = {*question.buckets, *(bucket for bucket, _ in question.keys)}
                if snapshot.live != generation.id or not all(bucket in snapshot.checkpoints for bucket in buckets):
                    yield from self._live.moved(generation, deadline)
                    continue
                lacking = self._lacking(generation, snapshot, buckets, after)
                if not lacking:
                    return generation, snapshot
                left = deadline - time.monotonic()
                reached = snapshot.checkpoints[min(lacking)].position
                if generation.phase is Phase.PINNED:
                    raise StaleViewError(
                        f"view {self._view.name} as of {self._live.name!r} stays at {reached} and does not get to "
                        f"{after}; read the live view for that",
                        after,
                        reached,
                    )
                if left <= 0:
                    raise StaleViewError(
                        f"view {self._view.name} is at {reached}, not yet at {after}; is its projector running? "
                        f"leftfold run {self._view.name}",
                        after,
                        reached,
                    )
                yield from listener.wait(generation, Position.union(lacking.values()), left)
        finally:
            listener.close()

    def _lacking(
        self, generation: Generation, snapshot: Snapshot, buckets: Iterable[int], after: Position | None
    ) -> dict[int, Position]:
        """The part of a position that each bucket has not folded, without buckets that have folded all of it."""
        if after is None:
            return {}
        lacking = {}
        for bucket in buckets:
            wanted = after.only(generation.topics, bucket if generation.stream_keyed else None)
            missing = wanted.beyond(snapshot.checkpoints[bucket].position)
            if missing.offsets:
                lacking[bucket] = missing
        return lacking


def version_of(fields: Mapping[bytes, bytes] | None) -> int | None:
    """The stream's version in a row's fields, None when absent."""
    return int(fields[b"@version"]) if fields and b"@version" in fields else None
