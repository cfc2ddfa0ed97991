"""The refresh of a view that is computed as a whole: a new generation up to a cut of the log, then the swap."""

from __future__ import annotations

from functools import reduce
from operator import or_

from leftfold.engine.generations import change, now
from leftfold.engine.plan import RebuildPlan
from leftfold.engine.rebuild import Rebuild
from leftfold.engine.rebuild_attempt import check_attempt
from leftfold.engine.rebuild_progress import Stopwatch
from leftfold.engine.rebuild_removal import remove
from leftfold.engine.rebuild_result import Agreement, RebuildResult
from leftfold.engine.same_log import other_log
from leftfold.errors import Fenced
from leftfold.flush import Generation, Mark, Phase, Registry, covered
from leftfold.position import Position
from leftfold.query import TableView
from leftfold.rows import CHECKSUM_MODULUS

__all__ = ["Refresh"]


class Refresh(Rebuild):
    """Computes a view again and shows it; nothing follows it afterwards, so it stays at its cut until the next one.

    Readers see the old rows or the new ones, never both. A predecessor at the very same cut must have the same rows,
    unless the view joins reference files, which may have changed.
    """

    def stands_at(self, plan: RebuildPlan) -> bool:
        """Whether the live generation is whole and at the plan's cut already."""
        live = self._store.registry(self.view.name).live_of(self.view.hash)
        marks = self._store.marks(live) if live is not None else {}
        if live is None or len(marks) < live.buckets or dict(live.topics) != plan.topics or self.foreign():
            return False
        return covered(live, marks).covers(plan.ends.only(plan.topics))

    def foreign(self) -> str:
        """Why the live generation does not belong to the topics that are there, and what to type; '' when it does."""
        live = self._store.registry(self.view.name).live_of(self.view.hash)
        return other_log(live, self._ids()) if live is not None else ""

    def _go_live(self, sealed: Generation, plan: RebuildPlan, events: int, watch: Stopwatch) -> RebuildResult:
        watch.begin("swap")
        marks = self._store.marks(sealed)
        old = self._predecessor()
        agreement, sums, why = self._compared(old, sealed, marks)
        swapped = agreement is not Agreement.DIFFERENT or self.options.swap_anyway
        if swapped:
            self._point(sealed, old)
        else:
            remove(self._store, sealed)
        kept = self._tidied(old) if swapped else ""
        watch.end()
        return RebuildResult(
            view=self.view.name,
            generation=sealed.id,
            predecessor=old.id if old is not None else "",
            events=events,
            rows=sum(mark.rows for mark in marks.values()),
            checksum=_checksum(marks),
            old_checksum=sums,
            agreement=agreement,
            why=why,
            swapped=swapped,
            seconds=dict(watch.seconds),
            parked={},
            kept=kept,
        )

    def _predecessor(self) -> Generation | None:
        """The live generation; one that has lost marks is of no use to anybody and is removed."""
        live = self._store.registry(self.view.name).live_of(self.view.hash)
        if live is None or len(self._store.marks(live)) == live.buckets:
            return live
        remove(self._store, live)
        return None

    def _compared(self, old: Generation | None, sealed: Generation, new: dict[int, Mark]) -> tuple[Agreement, int, str]:
        if old is None:
            return Agreement.ALONE, 0, ""
        if other_log(old, sealed.ids):
            return Agreement.UNKNOWN, 0, f"{old.id} was computed from other topics"
        before = self._store.marks(old)
        one, other = _reached(before), _reached(new)
        if not other.covers(one):
            raise Fenced(f"view {self.view.name}: generation {old.id} at {one} is ahead of {other}; another was faster")
        if not one.covers(other):
            return Agreement.UNKNOWN, 0, f"{old.id} holds fewer events"
        if _checksum(before) == _checksum(new):
            return Agreement.EQUAL, _checksum(before), ""
        if isinstance(self.view, TableView) and self.view.references:
            return (
                Agreement.UNKNOWN,
                _checksum(before),
                "its rows differ at the same events; so may its reference files",
            )
        if self.view.approximate:
            return Agreement.UNKNOWN, _checksum(before), "the view is approximate"
        return Agreement.DIFFERENT, _checksum(before), ""

    def _point(self, sealed: Generation, old: Generation | None) -> None:
        def point(registry: Registry) -> Registry:
            check_attempt(registry, sealed)
            live = registry.live_of(sealed.hash)
            if (live and live.id) != (old and old.id):
                raise Fenced(
                    f"view {self.view.name}: another generation went live meanwhile; are two refreshes running?"
                )
            return registry.pointed(sealed, now())

        change(self._store, self.view.name, point)

    def _tidied(self, old: Generation | None) -> str:
        """Removes the predecessor unless it is kept; returns its id if it stays, for readers in the middle of it."""
        if old is None or old.phase is Phase.BULK:
            return ""
        if self.options.keep > 0:
            return old.id
        remove(self._store, old)
        return ""


def _reached(marks: dict[int, Mark]) -> Position:
    return reduce(or_, (mark.position for mark in marks.values()), Position())


def _checksum(marks: dict[int, Mark]) -> int:
    return sum(mark.checksum for mark in marks.values()) % CHECKSUM_MODULUS
