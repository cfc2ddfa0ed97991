"""The swap at the end of a rebuild: catch up with the live generation, compare with it, replace it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from leftfold.engine.progress import Stopwatch
from leftfold.engine.rebuild.result import Agreement, Comparison, RebuildResult
from leftfold.engine.views.cleanup import remove
from leftfold.engine.views.code_claims import may_fold
from leftfold.engine.views.generations import (
    change,
    current_time,
    format_time,
    log_mismatch,
    note_cut,
    why_unusable,
)
from leftfold.engine.views.leases import check_attempt, members
from leftfold.engine.views.projection_writer import MAX_PARKED, ProjectionWriter
from leftfold.engine.views.shared_subscription import SharedSubscription
from leftfold.errors import ContractError, Fenced, InfrastructureError, ViewNotBuilt
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.flush import Checkpoint, Generation, Phase, Registry, While, checksum_of, covered
from leftfold.ports.protocols import LogReader, ViewStore

if TYPE_CHECKING:
    from leftfold.engine.rebuild.rebuilder import RebuildOptions

__all__ = ["CatchUp", "Swap"]


_BATCH = 4000
_LOOK_SECONDS = 0.03
"""Seconds between two looks at what the projectors have folded: each reads all checkpoints."""


class CatchUp:
    """Keeps sealed generations up to date until a condition holds.

    Projectors are detected by the tokens they write. A projector that starts later takes over: its flush makes the
    flush of this process fail.

    Args:
        generations: the new one first. The others are folded too if that is possible.
        fold: the hash of the fold code; generations that another code has claimed are left to its projectors.
        patience: seconds to wait for a projector. max_parked: how many keys may be parked before the view stops.
        tell: called with the number of events that were folded here.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generations: Sequence[Generation],
        store: ViewStore,
        open_reader: Callable[[], LogReader],
        *,
        fold: str = "",
        patience: float = 1.5,
        max_parked: int = MAX_PARKED,
        tell: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._max_parked = max_parked
        self._view, self._generations, self._store, self._open = view, list(generations), store, open_reader
        self._patience, self._tell, self._fold_hash = patience, tell, fold
        self._group: SharedSubscription | None = None
        self._tokens: list[str] = []
        self._moved = time.monotonic()

    def wait(self, reached: Callable[[], bool], *, timeout: float, awaited: str) -> None:
        """Folds until `reached` returns true.

        Raises:
            InfrastructureError: it did not within `timeout` seconds; `awaited` describes the condition.
            ContractError: the view stopped at an event.
        """
        deadline = time.monotonic() + timeout
        while not reached():
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"view {self._view.name}: waited {timeout:g} s for {awaited}; is a projector of it stuck? "
                    f"See how far each is: leftfold status"
                )
            self.step()

    @property
    def alone(self) -> bool:
        """Whether this rebuild folds, and folds the new generation only."""
        return self._group is not None and all(
            writer.stopped or writer.generation is not self._generations[-1] for writer in self._group.writers
        )

    def step(self) -> None:
        """Folds new events, or waits a moment for the projectors that do."""
        if self._group is not None:
            self._fold(self._group)
        elif time.monotonic() - self._moved > self._patience and self._is_mine(self._generations[0]):
            self._group = SharedSubscription(self._open, list(self._writers()), self._store)
        else:
            self._watch()
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Closes the subscription to the log."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _watch(self) -> None:
        tokens = [checkpoint.token for _, checkpoint in sorted(self._store.checkpoints(self._generations[0]).items())]
        if self._tokens and tokens != self._tokens:
            self._moved = time.monotonic()
        self._tokens = tokens

    def _writers(self) -> Iterator[ProjectionWriter]:
        yield self._writer(self._generations[0])
        for generation in self._generations[1:]:
            with suppress(ViewNotBuilt):
                writer = self._writer(generation)
                if self._is_mine(generation):
                    yield writer

    def _writer(self, generation: Generation) -> ProjectionWriter:
        return ProjectionWriter(self._view, generation, self._store, max_parked=self._max_parked)

    def _is_mine(self, generation: Generation) -> bool:
        """Whether this code may fold it, as the registry says now; asked after each look at its checkpoints."""
        registered = self._store.registry(self._view.name).generations.get(generation.id, generation)
        return may_fold(registered, self._fold_hash)

    def _fold(self, group: SharedSubscription) -> None:
        count, left = group.step(_BATCH, 0.05)
        self._tell(count)
        for writer in group.writers:
            if writer.stopped and writer.generation is self._generations[0]:
                raise ContractError(f"view {self._view.name} stops: {writer.stopped}")
        if left:
            self.close()
            self._tokens, self._moved = [], time.monotonic()


_NEAR = 200_000
"""How many offsets a live generation without projectors may be behind for this rebuild to bring it up to date."""
_COMPARE_SECONDS = _LEVEL_SECONDS = 15.0
_ATTEMPTS = 5
_NOWHERE = Position()


class Swap:
    """The swap: makes a sealed generation live."""

    def __init__(
        self,
        view: View[Any, Any],
        generation: Generation,
        store: ViewStore,
        open_reader: Callable[[], LogReader],
        options: RebuildOptions,
        watch: Stopwatch,
    ) -> None:
        self._view, self._new, self._store = view, generation, store
        self._open, self._options, self._watch = open_reader, options, watch

    def run(self, ends: Position, events: int) -> RebuildResult:
        """Waits until no reader could go back in time, compares and swaps.

        A generation that may not go live is removed.

        Args:
            ends: what must be reached when there is no previous generation of the same hash.

        Raises:
            Fenced: the generation was removed, or others went live too often meanwhile.
        """
        for _ in range(_ATTEMPTS):
            old = self._store.registry(self._view.name).live_of(self._new.hash)
            if old is not None and old.id == self._new.id:  # a projector has made it live, since none was
                return self._result(None, events, Agreement.ALONE, (0, 0), "", True)
            apart = self._apart(old, ends) if old is not None else ""
            with self._level(None if apart else old, ends) as (near, catch_up):
                agreement, sums, why = self._compare(old, near, catch_up, apart)
                if self._options.hold:
                    return self._result(old, events, agreement, sums, why, not self._hold())
                refused = agreement in (Agreement.DIFFERENT, Agreement.WORSE)
                agreed = not refused or self._options.swap_anyway
                swapped = agreed and self._pointed(old, near, catch_up)
            if swapped or not agreed:
                return self._result(old, events, agreement, sums, why, swapped)
        raise Fenced(
            f"view {self._view.name}: other generations went live {_ATTEMPTS} times; are two rebuilds running?"
        )

    def pin(self, events: int) -> RebuildResult:
        """Pins the generation under its name, as it is; readers of the view keep the live one."""
        self._watch.begin("pin")
        before = self._store.registry(self._view.name).live_of(self._new.hash, self._new.name)
        change(self._store, self._view.name, lambda r: self._checked(r).pinned(self._new))
        if before is not None:
            self._store.unlink(before)
        return self._result(None, events, Agreement.ALONE, (0, 0), "", True)

    def _checkpoints(self) -> dict[int, Checkpoint]:
        checkpoints = self._store.checkpoints(self._new)
        if len(checkpoints) < self._new.buckets:
            raise Fenced(f"generation {self._new.id} of view {self._view.name} was removed by another process")
        return checkpoints

    def _apart(self, old: Generation, ends: Position) -> str:
        """Why the new generation can never be level with a live one: its checkpoints, or events not in this log."""
        if why := why_unusable(self._store, old):
            return why
        cut = old.cut
        if not cut and log_mismatch(old, self._new.ids):
            return f"{old.id} was folded from other topics"
        if not cut and not ends.covers(self._position(old)):
            with closing(self._open()) as log:
                cut = note_cut(self._store, old, self._store.checkpoints(old), log)
        return f"{old.id} is ahead of the log: {cut}" if cut else ""

    @contextmanager
    def _level(self, old: Generation | None, ends: Position) -> Iterator[tuple[Generation | None, CatchUp]]:
        """Keeps the new generation level with readers within the block, and the old one too if it is near."""
        self._watch.begin("catch up")
        pair = [self._new] if old is None or ends.ahead_of(self._position(old)) > _NEAR else [self._new, old]
        options, tell = self._options, self._watch.tell
        limits: dict[str, Any] = {"patience": options.patience, "max_parked": options.max_parked}
        catch_up = CatchUp(self._view, pair, self._store, self._open, fold=options.fold, tell=tell, **limits)
        try:
            catch_up.wait(lambda: self._past(old, ends), timeout=self._options.timeout, awaited=_AWAITED[old is None])
            yield pair[1] if len(pair) > 1 else None, catch_up
        finally:
            catch_up.close()

    def _past(self, old: Generation | None, ends: Position = _NOWHERE) -> bool:
        # The old checkpoints are read first: their positions can only be behind those when the new ones are read.
        target = ends if old is None else self._position(old)
        return covered(self._new, self._checkpoints()).covers(target)

    def _position(self, old: Generation) -> Position:
        """The smallest position that covers everything that readers of a generation may have seen."""
        return Position.union(checkpoint.position for checkpoint in self._store.checkpoints(old).values())

    def _compare(
        self, old: Generation | None, near: Generation | None, catch_up: CatchUp, apart: str
    ) -> tuple[Agreement, tuple[int, int], str]:
        if old is None:
            return Agreement.ALONE, (0, 0), ""
        if apart:
            return Agreement.UNKNOWN, (0, 0), apart
        if near is None:
            return Agreement.UNKNOWN, (0, 0), f"{old.id} is far behind and no projector follows it"
        self._watch.begin("compare")
        comparison, deadline = Comparison(self._view, old, self._new, self._store), time.monotonic() + _COMPARE_SECONDS
        while not comparison.look(self._store.checkpoints(old), self._checkpoints()):
            if catch_up.alone:
                return Agreement.UNKNOWN, comparison.sums, f"{old.id} does not move on"
            if time.monotonic() > deadline:
                return Agreement.UNKNOWN, comparison.sums, f"never at one place within {_COMPARE_SECONDS:g} s"
            catch_up.step()
        return comparison.agreement, comparison.sums, comparison.why

    def _pointed(self, old: Generation | None, near: Generation | None, catch_up: CatchUp) -> bool:
        """Makes the new generation live; False when another one is live than the one just compared with.

        Where the old one is near, the new one is not behind it at that moment: no reader goes back in time.
        """
        self._watch.begin("swap")
        deadline = time.monotonic() + _LEVEL_SECONDS
        while True:
            registry = self._store.registry(self._view.name)
            live = self._checked(registry).live_of(self._new.hash)
            if (live and live.id) != (old and old.id):
                return False
            # A live generation that keeps moving must not prevent the swap for ever.
            level = None if near is None or time.monotonic() > deadline else While(near, partial(self._past, near))
            after = registry.pointed(self._new, current_time(), format_time(self._options.keep))
            if self._store.change_registry(self._view.name, registry, after, level):
                return True
            catch_up.step()

    def _checked(self, registry: Registry) -> Registry:
        """The registry, if the new generation still belongs to this rebuild in it."""
        check_attempt(registry, self._new)
        return registry

    def _hold(self) -> bool:
        """Holds the new generation, and then removes the one held before, if any.

        False where none was live, and a projector has made the new one live meanwhile: it must not seem to be held,
        since the next one that is held would replace what readers see.
        """
        self._watch.begin("hold")

        def held(now: Generation) -> Generation:
            return now if now.phase is Phase.LIVE else now.in_phase(Phase.HELD)

        registry = change(self._store, self._view.name, lambda r: self._checked(r).changed(self._new.id, held))
        if registry.generations[self._new.id].phase is not Phase.HELD:
            return False
        for other in registry.generations.values():
            if other.phase is Phase.HELD and other.hash == self._new.hash and other.id != self._new.id:
                remove(self._store, other)
        return True

    def _result(
        self, old: Generation | None, events: int, agreement: Agreement, sums: tuple[int, int], why: str, swapped: bool
    ) -> RebuildResult:
        checkpoints = self._checkpoints()
        kept = self._tidied(old) if swapped else ""
        if not swapped and not self._options.hold:
            remove(self._store, self._new)
        self._watch.end()
        return RebuildResult.of(
            self._new,
            checkpoints,
            predecessor=old.id if old is not None else "",
            events=events,
            checksum=sums[1] or checksum_of(checkpoints.values()),
            old_checksum=sums[0],
            agreement=agreement,
            why=why,
            swapped=swapped,
            seconds=dict(self._watch.seconds),
            kept=kept,
            held=self._options.hold and not swapped,
        )

    def _tidied(self, old: Generation | None) -> str:
        """Removes generations that are no longer needed; returns the id of the previous one if it stays."""
        registry = self._store.registry(self._view.name)
        at_work = members(self._store, names.rebuilds(self._view.name)) - {self._new.attempt}
        for other in registry.generations.values():
            mine = other.hash == self._new.hash and other.created <= self._new.created and other.id != self._new.id
            # A projector may have created one of its own while there was none to follow, and a rebuild may have failed
            # between holding the one that is now promoted and removing the one held before.
            is_over = other.phase is Phase.SEALED or other.phase is self._new.phase is Phase.HELD
            if mine and is_over and other.attempt not in at_work:
                remove(self._store, other)
        if old is not None and self._options.keep <= 0:
            remove(self._store, old)
            return ""
        return old.id if old is not None else ""


_AWAITED = {True: "the new generation to reach the end of the log", False: "it to reach the live generation"}
