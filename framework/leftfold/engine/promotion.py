"""Making another generation live: one that was held back, or the one that was live before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.engine.claims import check_claim, check_tails, may_fold
from leftfold.engine.generations import birth, change, moment, resolve
from leftfold.engine.rebuild import RebuildOptions
from leftfold.engine.rebuild_progress import Report, Stopwatch
from leftfold.engine.rebuild_result import Agreement, RebuildResult
from leftfold.engine.rebuild_swap import Swap
from leftfold.engine.same_log import check_log, known_ids
from leftfold.errors import ConfigurationError, ViewNotBuilt
from leftfold.flush import Generation, Phase, Registry
from leftfold.ports import LogReader, ViewStore
from leftfold.rows import CHECKSUM_MODULUS
from leftfold.view import View

__all__ = ["Promotion"]

_MORE = 60.0
"""Seconds beyond the time for catching up for which a kept generation stays that is being promoted."""


class Promotion:
    """Swaps a generation in that is there already; it waits until no reader can go back in time.

    Args:
        open_log: says where the log ends. open_reader: for catching up while no tail runs.
    """

    def __init__(
        self,
        view: View[Any, Any],
        store: ViewStore,
        *,
        open_log: OpenBulkLog,
        open_reader: Callable[[], LogReader],
        options: RebuildOptions,
        report: Report = lambda progress: None,
    ) -> None:
        self.view, self._store = view, store
        self._open_log, self._open_reader, self._report = open_log, open_reader, report
        self._options = replace(options, swap_anyway=True, hold=False)

    def run(self, named: str) -> RebuildResult:
        """Makes a generation live and keeps the one it replaces.

        Of the live one it only takes the folding back, for the tails of this code.

        Args:
            named: `held`, `kept` (what this code folded, else the newest), `live`, or an id.

        Raises:
            ViewNotBuilt: there is no such generation.
            ConfigurationError: it is live already, or not to go live, or no tail of the code that folds it is at work.
            Fenced: it was removed, or others went live too often meanwhile.
            InfrastructureError: the log or the store is not there, or catching up took too long.
        """
        generation = self._meant(named)
        if self._store.registry(self.view.name).live_of(self.view.hash) == generation:
            if not may_fold(generation, self._options.fold):
                return self._taken_back(generation, self._options.fold)
            raise ConfigurationError(f"generation {generation.id} of view {self.view.name} is what readers see already")
        if generation.phase not in (Phase.HELD, Phase.KEPT, Phase.SEALED) or generation.hash != self.view.hash:
            raise ConfigurationError(
                f"generation {generation.id} of view {self.view.name} is {generation.phase.value}"
                f"{'' if generation.hash == self.view.hash else ' and made by other code'}; only one that is held or "
                f"kept can go live: leftfold status lists them"
            )
        if named == "kept" and self._options.fold in generation.folds:
            generation = generation.claimed(self._options.fold)
        check_tails(self._store, generation, self._options.fold, self._options.patience)
        generation = self._prolonged(generation)
        log = self._open_log()
        try:
            check_log(generation, known_ids(log, generation.topics))
            ends = log.stable_ends(generation.topics)
        finally:
            log.close()
        watch = Stopwatch(self._report)
        return Swap(self.view, generation, self._store, self._open_reader, self._options, watch).run(ends, 0)

    def _meant(self, named: str) -> Generation:
        """The generation of a name; of kept ones first what this code folds, and be it the live one, once before."""
        registry, fold = self._store.registry(self.view.name), self._options.fold
        live = registry.live_of(self.view.hash)
        if named != "kept" or live is None or may_fold(live, fold):
            return resolve(registry, self.view, named)
        kept = [g for g in registry.generations.values() if g.phase is Phase.KEPT and g.hash == self.view.hash]
        mine = [g for g in kept if g.fold == fold] or [g for g in kept if fold in g.folds]
        mine = mine or [g for g in (live,) if fold in g.folds]
        return max(mine, key=birth) if mine else resolve(registry, self.view, named)

    def _prolonged(self, generation: Generation) -> Generation:
        """The generation, which does not end while it is being promoted, and is folded by the code it was read with."""
        until = max(generation.until, moment(self._options.timeout + _MORE)) if generation.until else ""

        def prolonged(registry: Registry) -> Registry:
            now = registry.generations.get(generation.id)
            if now is None:
                return registry
            longer = replace(now, until=max(now.until, until) if now.until else "")
            return registry.with_generation(
                longer if may_fold(now, generation.fold) else longer.claimed(generation.fold)
            )

        if generation.id not in change(self._store, self.view.name, prolonged).generations:
            raise ViewNotBuilt(
                f"generation {generation.id} of view {self.view.name} has been removed: its time was over"
            )
        return replace(generation, until=until)

    def _taken_back(self, live: Generation, fold: str) -> RebuildResult:
        """Gives the live generation back to the tails of this code, which folded it or one that it replaced."""
        if fold not in (*live.folds, *live.superseded):
            check_claim(live, fold)
        check_tails(self._store, live.claimed(fold), fold, self._options.patience)

        def claim(registry: Registry) -> Registry:
            now = registry.generations.get(live.id)
            return registry.with_generation(now.claimed(fold)) if now is not None else registry

        if live.id not in change(self._store, self.view.name, claim).generations:
            raise ViewNotBuilt(f"generation {live.id} of view {self.view.name} was removed meanwhile")
        marks = self._store.marks(live).values()
        checksum = sum(mark.checksum for mark in marks) % CHECKSUM_MODULUS
        return RebuildResult(
            view=self.view.name,
            generation=live.id,
            predecessor="",
            events=0,
            rows=sum(mark.rows for mark in marks),
            checksum=checksum,
            old_checksum=checksum,
            agreement=Agreement.ALONE,
            why="",
            swapped=True,
            seconds={},
            parked={},
        )
