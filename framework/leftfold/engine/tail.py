"""The live tail: keeps every generation of the App's views at the end of the log, milliseconds behind it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Any

from leftfold.engine.follower import Follower
from leftfold.engine.generations import change, followed, open_generation, topics_of
from leftfold.engine.group import Group
from leftfold.errors import ViewNotBuilt
from leftfold.flush import Generation, Phase
from leftfold.ports import LogReader, ViewStore
from leftfold.position import Position
from leftfold.view import View

__all__ = ["Tail"]

Report = Callable[[str, dict[str, Any]], None]


class Tail:
    """Follows the generations of some views; catching up and following are the same loop.

    A follower that is new, or that lost its place to another writer or to a store that went back in time, reads in
    a group of its own and joins the main group when it has caught up with it.

    Args:
        open_log: makes a reader; one per group. batch: how many events one flush holds at most.
        report: told what an operator should know: (what, details).
    """

    def __init__(
        self,
        views: Iterable[View[Any, Any]],
        open_log: Callable[[], LogReader],
        store: ViewStore,
        *,
        batch: int = 2000,
        look: float = 0.25,
        report: Report = lambda what, details: None,
    ) -> None:
        self.views = tuple(views)
        self._open, self._store, self._batch, self._look, self._report = open_log, store, batch, look, report
        self._groups: list[Group] = []
        self._targets: dict[tuple[str, str], Position] = {}
        self._known: dict[tuple[str, str], Follower] = {}
        self._parked: dict[tuple[str, str], set[str]] = {}
        self._looked = float("-inf")
        self._waiting: list[tuple[float, Follower]] = []
        self._admin = open_log()

    def step(self, timeout: float = 0.1) -> int:
        """Looks for new generations now and then, reads and folds one batch per group; returns how many events."""
        now = time.monotonic()
        if now - self._looked >= self._look:
            self._looked = now
            self._look_around()
        self._return_waiting(now)
        count = 0
        for index, group in enumerate(list(self._groups)):
            patience = timeout if index == 0 and len(self._groups) == 1 else 0.0
            events, left = group.step(self._batch * (1 if index == 0 else 4), patience)
            count += events
            for follower in left:
                self._report("out of step", {"view": follower.view.name, "generation": follower.generation.id})
                self._waiting.append((now + random.uniform(0.0, 0.2), follower))  # spreads two tails
        self._settle()
        if not self._groups:
            time.sleep(min(timeout, 0.02))
        return count

    def caught_up(self) -> bool:
        """Whether every view of this code has a live generation and every follower that goes on is in one group."""
        return (
            len(self._groups) <= 1
            and not self._waiting
            and all(self._store.registry(view.name).live_of(view.hash) for view in self.views)
        )

    def followers(self) -> list[Follower]:
        """Everything that is followed now."""
        return list(self._known.values())

    def close(self) -> None:
        """Closes every reader."""
        for group in self._groups:
            group.close()
        self._admin.close()

    def _look_around(self) -> None:
        for view in self.views:
            registry = self._store.registry(view.name)
            mine = followed(registry, view)
            if not mine and registry.live_of(view.hash) is None:
                generation = self._begin(view)
                mine = {generation.id: generation}
            for name, id_ in [k for k in self._known if k[0] == view.name and k[1] not in mine]:
                self._forget(self._known.pop((name, id_)))
            for id_, generation in mine.items():
                if (view.name, id_) not in self._known:
                    self._adopt(view, generation)
        for follower in self._known.values():
            self._tell_parked(follower)

    def _tell_parked(self, follower: Follower) -> None:
        name, id_ = follower.view.name, follower.generation.id
        parked = {key: why for mark in follower.marks.values() for key, why in mark.parked.items()}
        told = self._parked.get((name, id_), set())
        for key in parked.keys() - told:
            why, place = parked[key], f"{parked[key].topic}[{parked[key].partition}]@{parked[key].offset}"
            self._report("parked", {"view": name, "generation": id_, "key": key, "at": place, "why": why.error})
        self._parked[name, id_] = set(parked)

    def _begin(self, view: View[Any, Any]) -> Generation:
        topics = topics_of(view, self._admin.partitions)
        generation = open_generation(self._store, view, topics, Phase.SEALED)
        self._targets[view.name, generation.id] = self._admin.ends(topics)
        self._report("generation begun", {"view": view.name, "generation": generation.id})
        return generation

    def _adopt(self, view: View[Any, Any], generation: Generation) -> None:
        try:
            follower = Follower(view, generation, self._store)
        except ViewNotBuilt as error:
            self._discard(generation, error)
            return
        self._known[view.name, generation.id] = follower
        if self._store.registry(view.name).live_of(view.hash) is None:
            self._targets.setdefault((view.name, generation.id), self._admin.ends(generation.topics))
        follower.fold((), follower.position())
        self._groups.append(Group(self._open, [follower]))

    def _discard(self, generation: Generation, error: ViewNotBuilt) -> None:
        self._report("generation lost", {"view": generation.view, "generation": generation.id, "why": str(error)})
        change(self._store, generation.view, lambda r: r.without(generation.id))
        self._store.unlink(generation)

    def _forget(self, follower: Follower) -> None:
        for group in self._groups:
            if follower in group.followers:
                group.followers.remove(follower)
        self._waiting = [(at, f) for at, f in self._waiting if f is not follower]

    def _return_waiting(self, now: float) -> None:
        for waiting in [w for w in self._waiting if w[0] <= now]:
            follower = waiting[1]
            try:
                follower.reread()  # may raise that the store is not there: then it goes on waiting
            except ViewNotBuilt as error:
                self._known.pop((follower.view.name, follower.generation.id), None)
                self._discard(follower.generation, error)
            else:
                self._groups.append(Group(self._open, [follower]))
            self._waiting.remove(waiting)

    def _settle(self) -> None:
        """Points at generations that reached their target, stops stopped ones and joins groups that caught up."""
        for group in self._groups:
            for follower in [f for f in group.followers if f.stopped]:
                group.followers.remove(follower)
                self._report("view stopped", {"view": follower.view.name, "why": follower.stopped})
        for key, target in list(self._targets.items()):
            known = self._known.get(key)
            if known is None:
                del self._targets[key]
            elif known.position().covers(target):
                del self._targets[key]
                self._point(known)
        for group in [g for g in self._groups if not g.followers]:
            group.close()
            self._groups.remove(group)
        self._join()

    def _point(self, follower: Follower) -> None:
        generation = follower.generation
        change(
            self._store,
            generation.view,
            lambda r: r if r.live_of(generation.hash) or generation.id not in r.generations else r.pointed(generation),
        )
        self._report("generation live", {"view": generation.view, "generation": generation.id})

    def _join(self) -> None:
        if len(self._groups) < 2:
            return
        main, *others = self._groups
        ready = [g for g in others if g.position().covers(main.position().only(g.position().offsets))]
        if ready:
            followers = [f for g in (main, *ready) for f in g.followers]
            for group in ready:
                group.close()
                self._groups.remove(group)
            main.seek(followers)
