"""Commands that were sent and not yet answered."""

from __future__ import annotations

import threading
from typing import NamedTuple, Protocol, TypeAlias

from leftfold.errors import ContractError, LeftfoldError, OutcomeUnknown

__all__ = ["Answer", "Pending", "Waiter"]

Answer: TypeAlias = bytes | LeftfoldError


class Waiter(Protocol):
    """Somebody who waits for an answer."""

    def resolve(self, answer: Answer) -> None:
        """Takes the answer, in the thread that has read it; it must not block."""


class _Waiting(NamedTuple):
    body: tuple[object, ...]
    waiter: Waiter


class Pending:
    """Who waits for the answer to which command id; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[_Waiting]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, id_: bytes, body: tuple[object, ...], waiter: Waiter) -> None:
        """Waits for an answer; several may wait for the answer to one command that is sent again.

        Raises:
            ContractError: another command with this id is still waiting, and answers could not be told apart.
        """
        with self._lock:
            waiting = self._waiting.get(id_)
            if waiting is None:
                self._waiting[id_] = [_Waiting(body, waiter)]
            elif waiting[0].body == body:
                waiting.append(_Waiting(body, waiter))
            else:
                raise ContractError(
                    f"command id {id_.decode()!r} belongs to another command that is still under way; "
                    f"every command needs an id of its own"
                )

    def remove(self, id_: bytes, waiter: Waiter) -> None:
        """Stops waiting, if it has not been resolved already."""
        with self._lock:
            left = [waiting for waiting in self._waiting.pop(id_, ()) if waiting.waiter is not waiter]
            if left:
                self._waiting[id_] = left

    def resolve(self, id_: bytes, answer: Answer) -> None:
        """Hands an answer to everyone who waits for it; one that nobody waits for is ignored."""
        with self._lock:
            waiting = self._waiting.pop(id_, ())
        for one in waiting:
            one.waiter.resolve(answer)

    def give_up(self, why: str) -> None:
        """Tells everyone that no answer will come."""
        with self._lock:
            ids = list(self._waiting)
        for id_ in ids:
            self.resolve(id_, OutcomeUnknown(id_.decode(), why))
