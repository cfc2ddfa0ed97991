"""Promotes an existing generation: held, previous, or live and claimed again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

from leftfold.engine.progress import ProgressReport, Stopwatch
from leftfold.engine.rebuild.rebuilder import RebuildOptions
from leftfold.engine.rebuild.result import Agreement, RebuildResult
from leftfold.engine.rebuild.swap import Swap
from leftfold.engine.views.code_claims import check_claim, check_projectors, may_fold
from leftfold.engine.views.generations import age_key, change, check_log, format_time, resolve, topic_ids
from leftfold.errors import ConfigurationError, ViewNotBuilt
from leftfold.model.view import View
from leftfold.ports.bulk import OpenBulkLog
from leftfold.ports.flush import Generation, Phase, checksum_of
from leftfold.ports.protocols import LogReader, ViewStore

__all__ = ["Promotion"]


_MORE = 60.0
"""Seconds beyond the catch-up timeout for which a previous generation stays while it is promoted."""


class Promotion:
    """The promotion of an existing generation: swaps it in when no reader can go back in time.

    Args:
        open_log: for the end of the log.
        open_reader: for catching up while no projector runs.
    """

    def __init__(
        self,
        view: View[Any, Any],
        store: ViewStore,
        *,
        open_log: OpenBulkLog,
        open_reader: Callable[[], LogReader],
        options: RebuildOptions,
        report: ProgressReport = lambda progress: None,
    ) -> None:
        self.view, self._store = view, store
        self._open_log, self._open_reader, self._report = open_log, open_reader, report
        self._options = replace(options, swap_anyway=True, hold=False)

    def run(self, named: str, only: str = "") -> RebuildResult:
        """Makes a generation live and retains the one it replaces.

        If it is live already, it is only claimed again for the projectors of this code.

        Args:
            named: `held`, `kept` (the one this code folded, else the newest), `live`, or an id.
            only: the id that it must have, as an operator has seen it; '' = any.

        Raises:
            ViewNotBuilt: there is no such generation.
            ConfigurationError: it is live already, or must not go live, or no projector of the code that folds it is at
                work, or it is another one than `only`.
            Fenced: it was removed, or others went live too often meanwhile.
            InfrastructureError: the log or the store is not reachable, or catching up took too long.
        """
        generation = self.meant(named)
        if only not in ("", generation.id):
            raise ConfigurationError(
                f"the {named} generation of view {self.view.name} is {generation.id} by now, and {only} was confirmed; "
                f"nothing was changed. See what readers see: leftfold status"
            )
        if self._store.registry(self.view.name).live_of(self.view.hash) == generation:
            if not may_fold(generation, self._options.fold):
                return self._taken_back(generation, self._options.fold)
            raise ConfigurationError(f"generation {generation.id} of view {self.view.name} is what readers see already")
        if generation.phase not in (Phase.HELD, Phase.KEPT, Phase.SEALED) or generation.hash != self.view.hash:
            raise ConfigurationError(
                f"generation {generation.id} of view {self.view.name} is {generation.phase.value}"
                f"{'' if generation.hash == self.view.hash else ' and made by other code'}; only one that is held or "
                f"kept can go live; see which there are: leftfold status"
            )
        if named == "kept" and self._options.fold in generation.folds:
            generation = generation.claimed(self._options.fold)
        check_projectors(self._store, generation, self._options.fold, self._options.patience)
        generation = self._prolonged(generation)
        with closing(self._open_log()) as log:
            check_log(generation, topic_ids(log, generation.topics))
            ends = log.stable_ends(generation.topics)
        watch = Stopwatch(self._report)
        return Swap(self.view, generation, self._store, self._open_reader, self._options, watch).run(ends, 0)

    def meant(self, named: str) -> Generation:
        """The generation of a name; of previous ones first one that this code folded, even the live one.

        Raises:
            ViewNotBuilt: there is no such generation.
        """
        registry, fold = self._store.registry(self.view.name), self._options.fold
        live = registry.live_of(self.view.hash)
        if named != "kept" or live is None or may_fold(live, fold):
            return resolve(registry, self.view, named)
        kept = [g for g in registry.generations.values() if g.phase is Phase.KEPT and g.hash == self.view.hash]
        mine = [g for g in kept if g.fold == fold] or [g for g in kept if fold in g.folds]
        mine = mine or [g for g in (live,) if fold in g.folds]
        return max(mine, key=age_key) if mine else resolve(registry, self.view, named)

    def _prolonged(self, generation: Generation) -> Generation:
        """The generation with an extended retention time, folded by the code that it was read with."""
        until = max(generation.until, format_time(self._options.timeout + _MORE)) if generation.until else ""

        def prolonged(now: Generation) -> Generation:
            longer = replace(now, until=max(now.until, until) if now.until else "")
            return longer if may_fold(now, generation.fold) else longer.claimed(generation.fold)

        left = change(self._store, self.view.name, lambda registry: registry.changed(generation.id, prolonged))
        if generation.id not in left.generations:
            raise ViewNotBuilt(
                f"generation {generation.id} of view {self.view.name} has been removed: its time was over"
            )
        return replace(generation, until=until)

    def _taken_back(self, live: Generation, fold: str) -> RebuildResult:
        """Claims the live generation again for the projectors of this code, which folded it or its predecessor."""
        if fold not in (*live.folds, *live.superseded):
            check_claim(live, fold)
        check_projectors(self._store, live.claimed(fold), fold, self._options.patience)

        left = change(self._store, self.view.name, lambda r: r.changed(live.id, lambda now: now.claimed(fold)))
        if live.id not in left.generations:
            raise ViewNotBuilt(f"generation {live.id} of view {self.view.name} was removed meanwhile")
        checkpoints = self._store.checkpoints(live)
        same, alone = checksum_of(checkpoints.values()), Agreement.ALONE
        return RebuildResult.of(live, checkpoints, old_checksum=same, agreement=alone, swapped=True, parked={})
