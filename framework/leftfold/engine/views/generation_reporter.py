"""Reports of a view's generations to the operator, each once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from leftfold.engine.views.code_claims import may_fold, takeover_command
from leftfold.engine.views.generations import followed, log_mismatch
from leftfold.model.view import View
from leftfold.ports.flush import Checkpoint, Generation, Phase, Registry

__all__ = ["GenerationReporter"]


class GenerationReporter:
    """Reports generations of other topics or other code, and parked keys, of a process that folds views.

    Args:
        report: called with (what, details) for the operator.
    """

    def __init__(self, report: Callable[[str, dict[str, Any]], None]) -> None:
        self._report = report
        self._reported: set[tuple[str, ...]] = set()
        self._parked: dict[tuple[str, str], set[str]] = {}

    def is_of_log(self, generation: Generation, ids: Mapping[str, str]) -> bool:
        """Whether a generation was folded from topics of these ids; reports one that was not."""
        why = log_mismatch(generation, ids)
        if why and generation.phase is not Phase.KEPT:
            self._once("view stopped", (generation.view, generation.id), {"view": generation.view, "why": why})
        return not why

    def standing_by(self, view: View[Any, Any], registry: Registry, fold: str) -> None:
        """Reports the generations that other code than this folds."""
        for generation in followed(registry, view).values():
            if generation.phase is not Phase.KEPT and not may_fold(generation, fold):
                details = {"view": view.name, "generation": generation.id, "folded by": generation.fold}
                details["do"] = takeover_command(generation, fold)
                self._once("standing by", (view.name, generation.id, generation.fold), details)

    def parked(self, generation: Generation, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Reports the keys that have been parked since the last call."""
        name = generation.view, generation.id
        parked = {key: why for checkpoint in checkpoints.values() for key, why in checkpoint.parked.items()}
        for key in parked.keys() - self._parked.get(name, set()):
            why, place = parked[key], f"{parked[key].topic}[{parked[key].partition}]@{parked[key].offset}"
            details = {"view": generation.view, "generation": generation.id, "key": key, "at": place, "why": why.error}
            self._report("parked", details)
        self._parked[name] = set(parked)

    def _once(self, what: str, name: tuple[str, ...], details: dict[str, Any]) -> None:
        if (what, *name) not in self._reported:
            self._reported.add((what, *name))
            self._report(what, details)
