"""Making another generation live: one that was held back, or the one that was live before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from leftfold.engine.bulk_log import OpenBulkLog
from leftfold.engine.generations import resolve
from leftfold.engine.rebuild import RebuildOptions
from leftfold.engine.rebuild_progress import Report, Stopwatch
from leftfold.engine.rebuild_result import RebuildResult
from leftfold.engine.rebuild_swap import Swap
from leftfold.errors import ConfigurationError
from leftfold.flush import Phase
from leftfold.ports import LogReader, ViewStore
from leftfold.view import View

__all__ = ["Promotion"]


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

        Args:
            named: `held`, `kept` (the newest), or an id.

        Raises:
            ViewNotBuilt: there is no such generation.
            ConfigurationError: it is live already, or not to go live.
            Fenced: it was removed, or others went live too often meanwhile.
            InfrastructureError: the log or the store is not there, or catching up took too long.
        """
        generation = resolve(self._store.registry(self.view.name), self.view, named)
        if self._store.registry(self.view.name).live_of(self.view.hash) == generation:
            raise ConfigurationError(f"generation {generation.id} of view {self.view.name} is what readers see already")
        if generation.phase not in (Phase.HELD, Phase.KEPT, Phase.SEALED) or generation.hash != self.view.hash:
            raise ConfigurationError(
                f"generation {generation.id} of view {self.view.name} is {generation.phase.value}"
                f"{'' if generation.hash == self.view.hash else ' and made by other code'}; only one that is held or "
                f"kept can go live: leftfold status lists them"
            )
        log = self._open_log()
        try:
            ends = log.stable_ends(generation.topics)
        finally:
            log.close()
        watch = Stopwatch(self._report)
        return Swap(self.view, generation, self._store, self._open_reader, self._options, watch).run(ends, 0)
