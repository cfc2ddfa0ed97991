"""From the seal to the log's end: by tails that follow the generation or, while none does, by the rebuild itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from leftfold.engine.claims import may_fold
from leftfold.engine.follower import Follower
from leftfold.engine.group import Group
from leftfold.errors import ContractError, InfrastructureError, ViewNotBuilt
from leftfold.flush import Generation
from leftfold.ports import LogReader, ViewStore
from leftfold.view import View

__all__ = ["CatchUp"]

_BATCH = 4000
_LOOK_SECONDS = 0.03
"""Between two looks at what the tails have folded: each reads all marks."""


class CatchUp:
    """Keeps sealed generations moving until a condition holds.

    Tails are seen by the tokens they leave. A tail that starts later takes over: its flush makes ours fail.

    Args:
        generations: the new one first. The others come along if they can.
        fold: which code folds; what another code has claimed is left to the tails of that.
        patience: seconds for a tail to show up.
        tell: told how many events were folded here.
    """

    def __init__(
        self,
        view: View[Any, Any],
        generations: Sequence[Generation],
        store: ViewStore,
        open_reader: Callable[[], LogReader],
        *,
        fold: str = "",
        patience: float = 1.5,
        tell: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._view, self._generations, self._store, self._open = view, list(generations), store, open_reader
        self._patience, self._tell, self._fold_hash = patience, tell, fold
        self._group: Group | None = None
        self._tokens: list[str] = []
        self._moved = time.monotonic()

    def wait(self, reached: Callable[[], bool], *, timeout: float, awaited: str) -> None:
        """Goes on until `reached`.

        Raises:
            InfrastructureError: it was not within `timeout` seconds; `awaited` says what.
            ContractError: the view stopped at an event.
        """
        deadline = time.monotonic() + timeout
        while not reached():
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"view {self._view.name}: waited {timeout:g} s for {awaited}; is a tail of it stuck? "
                    f"leftfold status tells how far each is"
                )
            self.step()

    @property
    def alone(self) -> bool:
        """Whether this rebuild folds and nothing but the new generation comes along."""
        return self._group is not None and all(
            follower.stopped or follower.generation is not self._generations[-1] for follower in self._group.followers
        )

    def step(self) -> None:
        """Folds what is there, or waits a moment for the tails that do."""
        if self._group is not None:
            self._fold(self._group)
        elif time.monotonic() - self._moved > self._patience and self._is_mine(self._generations[0]):
            self._group = Group(self._open, list(self._followers()), self._store)
        else:
            self._watch()
            time.sleep(_LOOK_SECONDS)

    def close(self) -> None:
        """Lets go of the log."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _watch(self) -> None:
        tokens = [mark.token for _, mark in sorted(self._store.marks(self._generations[0]).items())]
        if self._tokens and tokens != self._tokens:
            self._moved = time.monotonic()
        self._tokens = tokens

    def _followers(self) -> Iterator[Follower]:
        yield Follower(self._view, self._generations[0], self._store)
        for generation in self._generations[1:]:
            with suppress(ViewNotBuilt):
                follower = Follower(self._view, generation, self._store)
                if self._is_mine(generation):
                    yield follower

    def _is_mine(self, generation: Generation) -> bool:
        """Whether this code may fold it, as the registry says now; asked behind each look at its marks."""
        now = self._store.registry(self._view.name).generations.get(generation.id, generation)
        return may_fold(now, self._fold_hash)

    def _fold(self, group: Group) -> None:
        count, left = group.step(_BATCH, 0.05)
        self._tell(count)
        for follower in group.followers:
            if follower.stopped and follower.generation is self._generations[0]:
                raise ContractError(f"view {self._view.name} stops: {follower.stopped}")
        if left:
            self.close()
            self._tokens, self._moved = [], time.monotonic()
