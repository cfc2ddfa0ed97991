"""The live generation of a view as a reader last saw it, and where its keys are."""

from __future__ import annotations

import time
from typing import Any, Generic

from typing_extensions import TypeVar

from leftfold.errors import ViewNotBuilt
from leftfold.flush import Generation, Phase, Registry, covered
from leftfold.position import Position
from leftfold.questions import Registered, Rows
from leftfold.reading.steps import Pause, Steps, ask
from leftfold.view import View

__all__ = ["Live", "way_in"]

Row = TypeVar("Row")
K = TypeVar("K", default=str)
_PAUSE_SECONDS = 0.01


class Live(Generic[Row, K]):
    """Remembers which generation is live, so that a read need not ask first; every answer says whether it still is.

    `known` is the one that was live when somebody looked last.

    Args:
        name: of a pinned generation, which is then the one that counts; '' = the live one.
    """

    def __init__(self, view: View[Row, K], name: str = "") -> None:
        self.view, self._name = view, name
        self.known: Generation | None = None

    def generation(self, *, fresh: bool = False) -> Steps[Generation]:
        """The live generation of this code's schema hash.

        Raises:
            ViewNotBuilt: there is none.
        """
        registry = Registry()
        if fresh or self.known is None:
            registry = yield from ask(Registered(self.view.name))
            self.known = registry.live_of(self.view.hash, self._name)
            if self.known is None and self._name:
                raise _no_such(self.view, self._name, registry)
        if self.known is None:
            if self.view.streamed:
                raise ViewNotBuilt(
                    f"view {self.view.name} has no live generation for this code; start its stream, as "
                    f"leftfold run {self.view.name} does if the App names it"
                )
            if (begun := registry.begun_of(self.view.hash)) is not None:
                raise ViewNotBuilt((yield from self._so_far(begun)))
            raise ViewNotBuilt(
                f"view {self.view.name} has no live generation for this code (schema {self.view.hash}); "
                f"{way_in(self.view)}, or build it: leftfold rebuild {self.view.name}"
            )
        return self.known

    def _so_far(self, begun: Generation) -> Steps[str]:
        """What is being built, and how far it is."""
        what = f"view {self.view.name} is being built for this code: generation {begun.id}"
        if begun.phase is Phase.BULK:
            return f"{what} is filled by a rebuild; leftfold status says what runs"
        read = yield from ask(Rows(begun, (), tuple(range(begun.buckets))))
        done = covered(begun, read.marks).ahead_of(Position()) if len(read.marks) == begun.buckets else 0
        rows = sum(mark.rows for mark in read.marks.values())
        return (
            f"{what} holds {rows:,} rows of the first {done:,} offsets; leftfold status says how many there are. "
            f"If it does not move on: leftfold run {self.view.name}"
        )

    def moved(self, generation: Generation, deadline: float) -> Steps[None]:
        """Forgets a generation that turned out not to be live, or to lack marks, and gives the next one a moment.

        Raises:
            ViewNotBuilt: it is past the deadline.
        """
        again, self.known = self.known, None
        if time.monotonic() >= deadline:
            raise ViewNotBuilt(
                f"generation {generation.id} of view {self.view.name} is not whole or not live any more; is a tail "
                f"running? leftfold run {self.view.name}"
            )
        if (yield from self.generation()) == again:
            yield Pause(_PAUSE_SECONDS)


def way_in(view: View[Any, Any]) -> str:
    """What starts the process that keeps a view which no stream of the user's keeps."""
    return f"{'start a tail' if view.folded else 'let Spark keep it'}: leftfold run {view.name}"


def _no_such(view: View[Any, Any], name: str, registry: Registry) -> ViewNotBuilt:
    """The error for a name that no pinned generation has; held and kept ones are no names, and are read otherwise."""
    if name in (Phase.HELD.value, Phase.KEPT.value):
        step = f"leftfold explain {view.name}@{name} KEY" if view.folded else f"leftfold diff {view.name}"
        return ViewNotBuilt(
            f"view {view.name}: rows are read from the live generation and from those that rebuild --as-of named; "
            f"look at a {name} one with {step}"
        )
    there = ", ".join(sorted({g.name for g in registry.generations.values() if g.name})) or "none"
    return ViewNotBuilt(
        f"view {view.name} has nothing called {name!r} for this code (schema {view.hash}); names there are: {there}; "
        f"build it: leftfold rebuild {view.name} --as-of PLACE --name {name}"
    )
