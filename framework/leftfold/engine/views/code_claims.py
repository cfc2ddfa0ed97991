"""Claims of generations by fold code: the last code to claim one folds it; projectors of other code stand by."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leftfold.errors import ConfigurationError
from leftfold.model import keys as names
from leftfold.model.view import View
from leftfold.ports.flush import Generation, Phase, Registry
from leftfold.ports.protocols import ViewStore

__all__ = [
    "ActiveProjectors", "active_projectors", "check_claim", "check_projectors", "claimed", "folded_by", "is_claimable",
    "may_fold", "member_names", "member_of", "mixture", "name_of", "names_fold", "next_steps", "takeover_command",
]  # fmt: skip

_SAYS_CODE = "+"
"""The suffix of a projector's member name that also publishes its code; an older version publishes only a name."""
_LOOK_SECONDS = 0.05
_NOT_FOLDED = (Phase.BULK, Phase.PINNED)


def may_fold(generation: Generation, fold: str) -> bool:
    """Whether this code may write to a generation; the code of either may be unknown ('')."""
    return not fold or not generation.fold or generation.fold == fold


def is_claimable(generation: Generation, fold: str, *, again: bool = False) -> bool:
    """Whether a projector may claim a generation by itself.

    It may claim one that readers see, or that a projector created, never one that a rebuild made for its own code.

    Args:
        again: also one that this code has folded before, or that replaced one of its own.
    """
    is_open = generation.phase is Phase.LIVE or (generation.phase is Phase.SEALED and not generation.ends.offsets)
    past = (generation.fold,) if again else (*generation.folds, *generation.superseded)
    return bool(fold) and is_open and fold not in past


def claimed(registry: Registry, generation: Generation, fold: str, *, again: bool = False) -> Registry:
    """The registry with a generation claimed, if it is still open to this code."""
    now = registry.generations.get(generation.id)
    return registry.with_generation(now.claimed(fold)) if now and is_claimable(now, fold, again=again) else registry


def names_fold(registry: Registry, view: View[Any, Any], fold: str) -> bool:
    """Whether some generation of this schema names the code."""
    mine = [generation for generation in registry.generations.values() if generation.hash == view.hash]
    return any(fold in (*generation.folds, *generation.superseded) for generation in mine)


def member_of(name: str) -> str:
    """The member name of a projector that publishes its code."""
    return name + _SAYS_CODE


def name_of(member: str) -> str:
    """The name of a projector, with or without published code."""
    return member.removesuffix(_SAYS_CODE)


@dataclass(frozen=True)
class ActiveProjectors:
    """The projectors of a view of one schema hash: all of them, and by code those that publish one."""

    members: tuple[str, ...]
    coders: Mapping[str, tuple[str, ...]]

    def of(self, fold: str) -> tuple[str, ...]:
        """The projectors of this code, or of a version that publishes none; all of them for ''."""
        mine = self.coders.get(fold, ())
        return tuple(m for m in self.members if not fold or not m.endswith(_SAYS_CODE) or m in mine)


def active_projectors(store: ViewStore, view: str, hash_: str, folds: Iterable[str]) -> ActiveProjectors:
    """The projectors at work on the generations of a hash, by these codes."""
    group, codes = names.projectors(view, hash_), tuple(dict.fromkeys(filter(None, folds)))
    by_code = {code: names.coders(view, hash_, code) for code in codes}
    found = store.heartbeat([group, *by_code.values()], "", 0.0)
    return ActiveProjectors(found[group], {code: found[of_code] for code, of_code in by_code.items()})


def check_claim(generation: Generation, fold: str) -> None:
    """Checks that this code may write to a generation.

    Raises:
        ConfigurationError: another code folds it.
    """
    if not may_fold(generation, fold):
        raise ConfigurationError(
            f"generation {generation.id} of view {generation.view} is folded by code {generation.fold}, and this code "
            f"is {fold}; use that code, or build one with this code: leftfold rebuild {generation.view} --hold"
        )


def check_projectors(store: ViewStore, generation: Generation, fold: str, patience: float) -> None:
    """Checks that a projector will keep a generation up to date once readers see it.

    A projector of its code must be at work, or none at all is and this code may bring it up to date.

    Args:
        patience: seconds to wait for a heartbeat of a projector of its code, while others send theirs.

    Raises:
        ConfigurationError: no projector would fold it; the message names the command to type.
    """
    deadline = time.monotonic() + patience
    while True:
        found = active_projectors(store, generation.view, generation.hash, [generation.fold])
        if found.of(generation.fold):
            return
        if not found.members or time.monotonic() > deadline:
            break
        time.sleep(_LOOK_SECONDS)
    if found.members:
        whose = "this code" if generation.fold == fold else f"code {generation.fold}"
        raise ConfigurationError(
            f"generation {generation.id} of view {generation.view} is for projectors of {whose}, and only projectors "
            f"of other code run ({member_names(found.members)}); start one of that code first: "
            f"leftfold run {generation.view}"
        )
    check_claim(generation, fold)


def member_names(members: Sequence[str]) -> str:
    """The names of projectors as text."""
    return ", ".join(map(name_of, members))


def mixture(store: ViewStore, registry: Registry, view: View[Any, Any], fold: str) -> list[str]:
    """Messages for the operator about which codes fold the live and held generations of this schema."""
    mine = [g for g in registry.generations.values() if g.hash == view.hash and g.phase not in _NOT_FOLDED]
    found = active_projectors(store, view.name, view.hash, [fold, *(code for g in mine for code in g.folds)])
    messages = [_of_one(g, found, fold) for g in mine if g.phase is not Phase.KEPT]
    return [text for text in messages if text]


def folded_by(generation: Generation, fold: str) -> str:
    """A message about which codes folded a generation, when this code alone did not; '' otherwise."""
    others = [code for code in generation.folds if code != fold]
    if not fold or not others:
        return ""
    also = " and by this code" if fold in generation.folds else ""
    return (
        f"generation {generation.id} of view {generation.view} was folded by other code ({', '.join(others)}){also}; "
        f"it is compared with this code ({fold})"
    )


def _of_one(generation: Generation, found: ActiveProjectors, fold: str) -> str:
    view, code, right = generation.view, generation.fold, found.of(generation.fold)
    idle = [member for member in found.members if member not in right]
    at_work = f"projectors of code {code} at work on {generation.id} ({generation.phase.value}): {len(right)}"
    waiting = f"; of other code, standing by: {member_names(idle)}" if idle else ""
    if not may_fold(generation, fold) or (len(generation.folds) > 1 and generation.phase is Phase.LIVE):
        before = f"first by {', '.join(generation.folds[:-1])}, now by {code}; " if len(generation.folds) > 1 else ""
        mine = f"; this code is {fold}" if fold and fold != code else ""
        mine += f", and gets it back by: {_way_back(view)}" if mine and fold in generation.folds else ""
        return (
            f"view {view} was folded by other code of the same version: {before}{at_work}{waiting}{mine}; "
            f"{next_steps(view)}"
        )
    if not idle:
        return ""
    start = f"; start one of this code: leftfold run {view}" if not right else ""
    return f"view {view}: {at_work}{waiting}{start}"


def takeover_command(generation: Generation, fold: str) -> str:
    """What the operator can do when a generation that another code folds is meant for this code."""
    if fold in (*generation.folds, *generation.superseded):
        return _way_back(generation.view)
    return f"leftfold rebuild {generation.view} --hold, diff and promote"


def _way_back(view: str) -> str:
    return f"leftfold rollback {view}"


def next_steps(view: str) -> str:
    """What the operator can do about a fold that has changed under one version."""
    return (
        f"see what it changes: leftfold rebuild {view} --sample 1%; then leftfold rebuild {view} --hold, diff and "
        f"promote; or raise version= if old and new rows must not be mixed"
    )
