"""Listening for what a reader waits for."""

from __future__ import annotations

from leftfold.flush import Generation
from leftfold.position import Position
from leftfold.reading.steps import Held, Steps, Wait, listen

__all__ = ["Ear"]


class Ear:
    """Holds the bell of one waiting reader; `close` it in the end."""

    def __init__(self) -> None:
        self._bell: Held | None = None
        self._generation = ""

    def wait(self, generation: Generation, wanted: Position | None, seconds: float) -> Steps[None]:
        """Waits for a flush of a generation, `seconds` at most.

        The first call does not wait but begins to listen: what happened before that went unheard, so the caller looks
        again and comes back.
        """
        if self._bell is not None and self._generation == generation.id:
            yield Wait(self._bell, seconds)
            return
        self.close()
        self._bell = yield from listen(generation, wanted)
        self._generation = generation.id

    def close(self) -> None:
        """Listens no more."""
        if self._bell is not None:
            self._bell.close()
            self._bell = None
