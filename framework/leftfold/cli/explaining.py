"""What `leftfold explain` puts together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from leftfold.cli.progress import shown
from leftfold.cli.workbench import Servers, check_broker, workbench
from leftfold.engine.explain import explain as steps_of
from leftfold.engine.generations import resolve
from leftfold.engine.history import History
from leftfold.engine.places import place_of
from leftfold.engine.rebuild_progress import Stopwatch
from leftfold.engine.refolded import Step
from leftfold.engine.verify_rows import Fields, fields_of, row_and_place
from leftfold.flush import Generation
from leftfold.ports import ViewStore
from leftfold.position import Position
from leftfold.view import View

__all__ = ["Explaining"]

_NEAR = 3


class Explaining:
    """Folds one row step by step and compares it with what is stored.

    Args:
        servers: Kafka, Redis and the archive, as options name them. generation: live, held, kept, a name or an id.
    """

    def __init__(self, view: View[Any, Any], servers: Servers, generation: str) -> None:
        self.view, self._servers, self._generation = view, servers, generation
        self.position, self.stored, self.equal, self.parked = Position(), dict[str, str](), True, ""
        self.near = list[str]()

    def steps(self, key: str) -> Iterator[Step]:
        """The steps of an encoded key; afterwards the other attributes say how it stands."""
        check_broker(self._servers[0])
        with workbench(*self._servers) as bench, shown(self.view.name) as report:
            generation = resolve(bench.store.registry(self.view.name), self.view, self._generation)
            stored, self.position = row_and_place(generation, key, bench.store)
            mark = bench.store.read(generation, [place_of(generation, key)]).marks[place_of(generation, key)[0]]
            watch = Stopwatch(report)
            watch.begin("read", History(self.view, generation, {key: self.position}).events)
            step = None
            for step in steps_of(self.view, generation, key, self.position, bench.open_log, tell=watch.tell):
                yield step
            watch.end()
            if step is None:
                self.near = _some_keys(bench.store, generation)
        folded = self._fields(step)
        self.stored, self.parked = dict(stored or {}), mark.parked[key].error if key in mark.parked else ""
        self.equal = (stored or None) == folded

    def _fields(self, step: Step | None) -> Fields | None:
        if step is None:
            return None
        version = step.touch.decoded.version if self.view.stream_keyed else None
        return fields_of(self.view, step.after, version)


def _some_keys(store: ViewStore, generation: Generation) -> list[str]:
    """A few keys of rows as they are typed, from the first buckets that have any."""
    found: list[str] = []
    for bucket in range(generation.buckets):
        found += [unquote(key) for key in store.keys(generation, bucket, "", _NEAR - len(found))]
        if len(found) >= _NEAR:
            break
    return found
