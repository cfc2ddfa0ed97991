"""The generations of a view in its registry: created, sealed, promoted, checked against their topics, and reported."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from leftfold.engine.views.code_claims import may_fold, takeover_command
from leftfold.errors import ConfigurationError, ContractError, InfrastructureError, ViewNotBuilt
from leftfold.model import keys as names
from leftfold.model.position import Position
from leftfold.model.view import View
from leftfold.ports.bulk import Owner
from leftfold.ports.flush import Checkpoint, Generation, Phase, Registry
from leftfold.ports.protocols import LogReader, Report, ViewStore

__all__ = [
    "BUCKETS", "GenerationReporter", "Identities", "age_key", "change", "check_log", "current_time", "empty_marks",
    "followed", "format_time", "has_ended", "log_mismatch", "new_generation", "note_cut", "open_generation",
    "promote_first", "resolve", "topic_ids", "topics_of", "whole_checkpoints", "why_unusable",
]  # fmt: skip


BUCKETS = 16
_HOW = {
    "live": "; build it: leftfold rebuild {view}, or start a projector: leftfold run {view}",
    "held": "; make one: leftfold rebuild {view} --hold",
    "kept": "; there is one after a rebuild or a promote, for as long as --keep says",
}
"""How to get a generation of each kind."""


def topics_of(view: View[Any, Any], count: Callable[[str], int]) -> dict[str, int]:
    """The event topics a view reads, with their partition counts."""
    return {topic: count(topic) for topic in map(names.events, view.categories)}


def new_generation(
    view: View[Any, Any], registry: Registry, topics: Mapping[str, int], phase: Phase, buckets: int = BUCKETS
) -> Generation:
    """The next generation of a view; ids are 1-xxxx, 2-xxxx, …, with a random suffix so that concurrent ones differ."""
    number = 1 + max(map(_number, registry.generations), default=0)
    count = next(iter(topics.values())) if view.stream_keyed else buckets
    id_, keyed, now = f"{number}-{secrets.token_hex(2)}", view.stream_keyed, current_time()
    return Generation(view.name, id_, view.hash, keyed, count, dict(topics), phase, now)


def current_time() -> str:
    """The current time to the second, in the registry's format."""
    return datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def age_key(generation: Generation) -> tuple[str, int]:
    """The sort key of a view's generations by age."""
    return generation.created, _number(generation.id)


def empty_marks(generation: Generation) -> dict[int, Checkpoint]:
    """Checkpoints at the start of the log."""
    return {bucket: Checkpoint(Position(), phase=generation.phase) for bucket in range(generation.buckets)}


def whole_checkpoints(store: ViewStore, generation: Generation) -> dict[int, Checkpoint]:
    """The checkpoints of all buckets of a generation.

    Raises:
        ViewNotBuilt: some of them are lost.
    """
    checkpoints = store.checkpoints(generation)
    if len(checkpoints) < generation.buckets:
        raise ViewNotBuilt(f"generation {generation.id} of view {generation.view} is not whole; rebuild it")
    return checkpoints


def why_unusable(store: ViewStore, generation: Generation) -> str:
    """Why no other generation can be compared with this one: the state of its checkpoints; '' when it can.

    Readers may still see its rows, so it stays live until another one is.
    """
    try:
        whole_checkpoints(store, generation)
    except (ContractError, ViewNotBuilt):
        return f"checkpoints of {generation.id} are lost or unreadable"
    return ""


def change(store: ViewStore, view: str, how: Callable[[Registry], Registry]) -> Registry:
    """Applies a change to the registry by compare-and-set, and repeats it when another process was faster.

    Raises:
        InfrastructureError: other processes changed it a hundred times in between.
    """
    for _ in range(100):
        before = store.registry(view)
        after = how(before)
        if after == before or store.change_registry(view, before, after):
            return after
    raise InfrastructureError(f"the registry of view {view} changes too often; are two rebuilds running?")


def promote_first(store: ViewStore, generation: Generation) -> bool:
    """Makes a generation live, unless its schema has a live one or it has been removed; returns whether it did."""
    is_first = False

    def pointed(registry: Registry) -> Registry:
        nonlocal is_first
        is_first = registry.live_of(generation.hash) is None and generation.id in registry.generations
        return registry.pointed(generation, current_time()) if is_first else registry

    change(store, generation.view, pointed)
    return is_first


def open_generation(
    store: ViewStore,
    view: View[Any, Any],
    topics: Mapping[str, int],
    phase: Phase,
    buckets: int = BUCKETS,
    *,
    unless_followed: bool = False,
    **details: Any,
) -> Generation:
    """Creates and registers a new, empty generation, its checkpoints first.

    Args:
        unless_followed: returns one that projectors of this code follow already, if another process was faster.
        details: further fields of the generation: `ends`, `name`, `folds`.
    """
    while True:
        registry = store.registry(view.name)
        if unless_followed and (there := followed(registry, view, (details.get("folds") or ("",))[-1])):
            return next(iter(there.values()))
        generation = replace(new_generation(view, registry, topics, phase, buckets), **details)
        if not store.create_marks(generation, empty_marks(generation)):
            continue
        if store.change_registry(view.name, registry, registry.with_generation(generation)):
            return generation
        store.unlink(generation)


def followed(registry: Registry, view: View[Any, Any], fold: str = "") -> dict[str, Generation]:
    """The generations that a projector of this code follows, by id.

    Those of its hash that are not in the bulk phase, not pinned, not previous ones past their retention time, and not
    folded by other code.
    """
    still = (Phase.BULK, Phase.PINNED)
    mine = {i: g for i, g in registry.generations.items() if g.hash == view.hash and g.phase not in still}
    return {i: g for i, g in mine.items() if may_fold(g, fold) and not has_ended(g)}


def has_ended(generation: Generation) -> bool:
    """Whether a previous generation is past its retention time."""
    until = generation.until if generation.phase is Phase.KEPT else ""
    return bool(until) and datetime.fromisoformat(until) <= datetime.fromtimestamp(time.time(), UTC)


def format_time(seconds: float) -> str:
    """The time in so many seconds, in the registry's format."""
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def resolve(registry: Registry, view: View[Any, Any], named: str) -> Generation:
    """The generation that is called `live`, `held`, `kept`, an id, or the name of a pinned one.

    Of several held or kept ones it is the newest of this code's schema.

    Raises:
        ViewNotBuilt: there is none; the message lists the existing ones.
    """
    generations = sorted(registry.generations.values(), key=lambda g: _number(g.id), reverse=True)
    mine = [generation for generation in generations if generation.hash == view.hash]
    found = (
        [generation for generation in (registry.live_of(view.hash),) if named == "live" and generation is not None]
        or [generation for generation in mine if named in ("held", "kept") and generation.phase == named]
        or [generation for generation in generations if generation.id == named]
        or [generation for generation in mine if generation.name == named and generation.phase is Phase.PINNED]
    )
    if not found:
        there = ", ".join(f"{g.id} ({g.name or g.phase.value})" for g in reversed(generations)) or "none at all"
        how = _HOW.get(named, "").format(view=view.name)
        raise ViewNotBuilt(f"view {view.name} has no generation {named!r}; it has {there}{how}")
    return found[0]


def _number(id_: str) -> int:
    return int(id_.partition("-")[0])


_FRESH_SECONDS = 5.0
"""Seconds between the requests for topic ids of a process that follows a log."""
_AGAIN_SECONDS = 30.0
"""Seconds for which known ids are used when the log did not answer, since each request may then take seconds."""


def topic_ids(log: Owner, topics: Iterable[str]) -> dict[str, str]:
    """The ids of topics, without those that have none."""
    return {topic: id_ for topic, id_ in log.identities(topics).items() if id_}


def log_mismatch(generation: Generation, ids: Mapping[str, str]) -> str:
    """Why a generation does not belong to topics of these ids, with the command to type.

    '' when it belongs to them, or when the ids are unknown. Topics that were cut are not those that they were.
    """
    if generation.cut:
        return (
            f"generation {generation.id} of view {generation.view} is ahead of its log: {generation.cut}; the topic "
            f"was cut or restored, so these rows are of events that it has lost. Build it from what is there: "
            f"leftfold rebuild {generation.view}"
        )
    for topic, before in generation.ids.items():
        if ids.get(topic, before) != before:
            return (
                f"generation {generation.id} of view {generation.view} was folded from another {topic} (its id was "
                f"{before}, and is {ids[topic]}): the topic was deleted and created again, or is in another cluster; "
                f"build it from this one: leftfold rebuild {generation.view}"
            )
    return ""


def note_cut(store: ViewStore, generation: Generation, checkpoints: Mapping[int, Checkpoint], log: LogReader) -> str:
    """Where the log ends before what a generation has folded, which its registry then records; '' = it does not.

    That can be seen only until the topic is filled again beyond that place.

    Args:
        checkpoints: read before this call: the end of the log, which is asked for here, is never behind them by itself.
    """
    reached = Position.union([generation.ends, *(checkpoint.position for checkpoint in checkpoints.values())])
    ends = log.ends(generation.topics) if reached.offsets else reached
    lost = min(reached.beyond(ends).by_partition().items(), default=None)
    if lost is None:
        return ""
    place, offset = lost
    cut = f"{place[0]}[{place[1]}] ended at {ends.next_offset(*place)} when it was folded up to offset {offset}"
    change(store, generation.view, lambda r: r.changed(generation.id, lambda now: replace(now, cut=cut)))
    return cut


def check_log(generation: Generation, ids: Mapping[str, str]) -> None:
    """Checks that a generation belongs to topics of these ids.

    Raises:
        ConfigurationError: it was folded from other topics.
    """
    if why := log_mismatch(generation, ids):
        raise ConfigurationError(why)


class Identities:
    """The ids of a log's topics, refreshed every few seconds."""

    def __init__(self, log: Owner) -> None:
        self._log, self._found, self._due = log, dict[str, str](), float("-inf")
        self._known: set[str] = set()

    def of(self, topics: Iterable[str]) -> dict[str, str]:
        """The ids of some topics; the last known ones while the log does not answer.

        Raises:
            InfrastructureError: the log does not answer, and some of these topics were never asked for.
        """
        wanted = set(topics)
        is_known = wanted <= self._known
        if not is_known or time.monotonic() > self._due:
            try:
                self._found = topic_ids(self._log, sorted(self._known | wanted))
                self._known |= wanted
                self._due = time.monotonic() + _FRESH_SECONDS
            except InfrastructureError:
                if not is_known:
                    raise
                self._due = time.monotonic() + _AGAIN_SECONDS
        return {topic: id_ for topic, id_ in self._found.items() if topic in wanted}


class GenerationReporter:
    """Reports generations of other topics or other code, and parked keys, of a process that folds views.

    Args:
        report: called with (what, details) for the operator.
    """

    def __init__(self, report: Report) -> None:
        self._report = report
        self._reported: set[tuple[str, ...]] = set()
        self._parked: dict[tuple[str, str], set[str]] = {}

    def is_of_log(self, generation: Generation, ids: Mapping[str, str]) -> bool:
        """Whether a generation was folded from topics of these ids; reports one that was not."""
        why = log_mismatch(generation, ids)
        if why and generation.phase is not Phase.KEPT:
            self.stopped(generation, why)
        return not why

    def stopped(self, generation: Generation, why: str) -> None:
        """Reports once that a generation cannot be folded."""
        self._once("view stopped", (generation.view, generation.id), {"view": generation.view, "why": why})

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
            why = parked[key]
            details = {"view": generation.view, "generation": generation.id, "key": key, "at": str(why.address)}
            self._report("parked", {**details, "why": why.error})
        self._parked[name] = set(parked)

    def _once(self, what: str, name: tuple[str, ...], details: dict[str, Any]) -> None:
        if (what, *name) not in self._reported:
            self._reported.add((what, *name))
            self._report(what, details)
