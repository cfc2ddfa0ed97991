"""The lifecycle of the generations that a process folds: claimed, created, made live once whole, dropped when lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from leftfold.engine.views.cleanup import remove_ended
from leftfold.engine.views.code_claims import active_projectors, claimed, is_claimable, names_fold
from leftfold.engine.views.generations import (
    BUCKETS,
    GenerationReporter,
    Identities,
    change,
    followed,
    has_ended,
    note_cut,
    open_generation,
    promote_first,
    topics_of,
    whole_checkpoints,
)
from leftfold.errors import InfrastructureError, LogGap, ViewNotBuilt
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.flush import Checkpoint, Generation, Phase, Registry, covered
from leftfold.ports.protocols import LogReader, Report, ViewStore

__all__ = ["GenerationLifecycle"]

_GAP_SECONDS = 5.0
_KEPT_SECONDS = 3.0
"""How long a view stays without a live generation until a previous one is made live, unless a newer one comes."""


class GenerationLifecycle:
    """Finds the generations of a view that this process must fold, for an engine that follows them.

    Args:
        log: asked for the ends of topics; no record is read from it. ids: of its topics.
        report: called with (what, details) for the operator.
        check: called with the topics before a generation is created; raises LogGap when their first events are lost.
        buckets: of generations that it creates, unless the view is stream-keyed.
        fold: the hash of the fold code. A generation is folded by the code that claimed it last: a rebuild, or a
            process that starts with code unknown so far. Processes of other code stand by for it.
        takes_back: at its start it also claims what readers see if its code was superseded before.
        absence: seconds without any projector of the code that folds a generation until waiting code claims it.
        started: the names of the views that this process has looked at before: only the first look counts as a start.
    """

    def __init__(
        self,
        view: View[Any, Any],
        store: ViewStore,
        log: LogReader,
        report: Report,
        *,
        ids: Identities | None = None,
        check: Callable[[Mapping[str, int]], None] = lambda topics: None,
        buckets: int = BUCKETS,
        fold: str = "",
        takes_back: bool = False,
        absence: float = float("inf"),
        started: set[str] | None = None,
    ) -> None:
        self.view, self._store, self._log, self._report, self._check = view, store, log, report, check
        self._ids, self.reporter = ids or Identities(log), GenerationReporter(report)
        self._buckets, self._fold, self._takes_back, self._absence = buckets, fold, takes_back, absence
        self._started = set[str]() if started is None else started
        self._missed: dict[str, float] = {}
        self._targets: dict[str, Position] = {}
        self._without_live: float | None = None
        self._gap, self._checked = "", float("-inf")

    def look(self) -> dict[str, Generation]:
        """The generations to fold now; creates the first one where there is none.

        Raises:
            LogGap: there is none, and the log has lost the first events of the view: it waits for a rebuild.
        """
        registry = self._claim(self._store.registry(self.view.name))
        for generation in filter(has_ended, registry.generations.values()):
            remove_ended(self._store, generation)
        self.reporter.standing_by(self.view, registry, self._fold)
        found, has_live = followed(registry, self.view, self._fold), registry.live_of(self.view.hash) is not None
        if not found and not has_live:
            begun = self._create()
            found = {begun.id: begun}
        found = {i: g for i, g in found.items() if self.reporter.is_of_log(g, self._ids.of(g.topics))}
        self._targets = (
            {} if has_live else {i: self._target(g) for i, g in found.items() if self._may_go_live(g, registry)}
        )
        if has_live:
            self._without_live = None
        return found

    def note_topics(self, generation: Generation) -> None:
        """Writes the ids of its topics into a generation of an older version, which has none."""
        if not generation.ids and (ids := self._ids.of(generation.topics)):
            change(self._store, self.view.name, lambda registry: registry.known_by(generation.id, ids))

    def is_followed(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> bool:
        """Whether a generation exists, is folded by this code and not ahead of the log; asked with its new checkpoints.

        A claim made before they were read is seen, and a later one changes their tokens.
        """
        is_mine = generation.id in followed(self._store.registry(self.view.name), self.view, self._fold)
        return is_mine and not note_cut(self._store, generation, checkpoints, self._log)

    def checkpoints(self, generation: Generation) -> dict[int, Checkpoint] | None:
        """The checkpoints of a generation; None = it is not followed, or some are lost and it is dropped."""
        try:
            checkpoints = whole_checkpoints(self._store, generation)
        except ViewNotBuilt as error:
            self.drop(generation, error)
            return None
        return checkpoints if self.is_followed(generation, checkpoints) else None

    def drop(self, generation: Generation, error: ViewNotBuilt) -> None:
        """Removes a generation that has lost checkpoints."""
        if generation.id not in self._store.registry(self.view.name).generations:
            return
        self._report("generation lost", {"view": self.view.name, "generation": generation.id, "why": str(error)})
        change(self._store, self.view.name, lambda r: r.without(generation.id))
        self._store.unlink(generation)

    def target(self, generation: Generation) -> Position | None:
        """The position behind which a generation goes live; None = it does not, or has already."""
        return self._targets.get(generation.id)

    def reached(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Makes a generation live once all its buckets have reached its target."""
        target = self._targets.get(generation.id)
        whole = target is not None and len(checkpoints) == generation.buckets
        if target is None or not whole or not covered(generation, checkpoints).covers(target):
            return
        self._targets.pop(generation.id, None)  # `look` of another thread may have been faster
        if promote_first(self._store, generation):
            self._report("generation live", {"view": self.view.name, "generation": generation.id})

    def forget_absence(self) -> None:
        """Counts the absence of other code from now on."""
        self._missed.clear()

    def _create(self) -> Generation:
        self._check_beginning()
        topics = topics_of(self.view, self._log.partitions)
        begun = open_generation(
            self._store,
            self.view,
            topics,
            Phase.SEALED,
            self._buckets,
            unless_followed=True,
            ids=self._ids.of(topics),
            folds=(self._fold,) if self._fold else (),
        )
        self._report("generation begun", {"view": self.view.name, "generation": begun.id})
        return begun

    def _check_beginning(self) -> None:
        """Raises LogGap while the log lacks the first events, asking again after some seconds."""
        is_due = time.monotonic() - self._checked >= _GAP_SECONDS
        try:
            if is_due:
                self._check(topics_of(self.view, self._log.partitions))
                self._gap = ""
        except LogGap as error:
            self._gap, self._checked = str(error), time.monotonic()
        except InfrastructureError:
            if not self._gap:
                raise
            self._checked = time.monotonic()
        if self._gap:
            raise LogGap(self._gap)

    def _may_go_live(self, generation: Generation, registry: Registry) -> bool:
        """Whether a generation goes live at its target: a previous one only if no newer one comes instead."""
        if generation.phase is not Phase.KEPT:
            return True
        current_time = time.monotonic()
        if self._without_live is None:
            self._without_live = current_time
        mine = (other for other in registry.generations.values() if other.hash == generation.hash)
        newer = any(other.phase in (Phase.SEALED, Phase.HELD) for other in mine)
        return not newer and current_time - self._without_live >= _KEPT_SECONDS

    def _target(self, generation: Generation) -> Position:
        known = self._targets.get(generation.id)
        return self._log.ends(generation.topics) if known is None else known

    def _claim(self, registry: Registry) -> Registry:
        """Claims the generations that this code may fold.

        New code claims at once; other code claims when no projector of the code that folds them is left. The flush that
        follows changes every token. So a process of the earlier code writes no more, unless it reads the checkpoints
        again, and then it looks at the registry after that.
        """
        view, fold, name = self.view, self._fold, self.view.name
        is_first = name not in self._started
        is_new, again = is_first and not names_fold(registry, view, fold), is_first and self._takes_back
        for generation in list(registry.generations.values()):
            if generation.hash != view.hash or not is_claimable(generation, fold, again=again):
                continue
            if is_new or again or not generation.fold or self._is_missed(generation.fold):
                registry = change(self._store, name, lambda r, g=generation: claimed(r, g, fold, again=again))  # type: ignore[misc]
        self._started.add(name)  # only now: if the store fails, the next look is the first one still
        return registry

    def _is_missed(self, code: str) -> bool:
        """Whether no projector of this code has sent a heartbeat for as long as a restart or outage may take."""
        store, view = self._store, self.view
        if self._absence == float("inf") or active_projectors(store, view.name, view.hash, [code]).of(code):
            self._missed.pop(code, None)
            return False
        current_time = time.monotonic()
        return current_time - self._missed.setdefault(code, current_time) >= self._absence
