"""Commands that were sent and not yet answered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from leftfold.errors import ContractError, LeftfoldError, OutcomeUnknown

__all__ = ["Answer", "Pending", "Resolve"]

Answer: TypeAlias = bytes | LeftfoldError
Resolve: TypeAlias = Callable[[Answer], None]


class _Waiting(NamedTuple):
    body: tuple[object, ...]
    resolve: Resolve


class Pending:
    """Who waits for the answer to which command id; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[_Waiting]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, id_: bytes, body: tuple[object, ...], resolve: Resolve) -> None:
        """Waits for an answer; `resolve` is called in the thread that reads it, and must not block.

        Raises:
            ContractError: another command with this id is still waiting, and answers could not be told apart.
        """
        with self._lock:
            waiting = self._waiting.setdefault(id_, [])
            if waiting and waiting[0].body != body:
                raise ContractError(f"command id {id_.decode()!r} is in use by another command; every command needs its own")
            waiting.append(_Waiting(body, resolve))

    def remove(self, id_: bytes, resolve: Resolve) -> None:
        """Stops waiting, if it has not been resolved already."""
        with self._lock:
            left = [w for w in self._waiting.pop(id_, ()) if w.resolve is not resolve]
            if left:
                self._waiting[id_] = left

    def resolve(self, id_: bytes, answer: Answer) -> None:
        """Hands an answer to everyone who waits for it; one that nobody waits for is ignored."""
        with self._lock:
            waiting = self._waiting.pop(id_, ())
        for one in waiting:
            one.resolve(answer)

    def give_up(self, why: str) -> None:
        """Tells everyone that no answer will come."""
        with self._lock:
            ids = list(self._waiting)
        for id_ in ids:
            self.resolve(id_, OutcomeUnknown(id_.decode(), why))
