"""The client of the memory world: decides at once, in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from leftfold.client import asked
from leftfold.envelope import Receipt
from leftfold.errors import LeftfoldError
from leftfold.messages import Command

__all__ = ["MemoryClient"]

Decide = Callable[[Command, str | None, int | None, datetime | None], Receipt | LeftfoldError]


class MemoryClient:
    """A Client without servers; nothing ever waits, so `timeout` has no meaning here."""

    def __init__(self, decide: Decide, settle: Callable[[], None]) -> None:
        self._decide, self._settle = decide, settle

    def send(
        self,
        command: Command,
        /,
        *,
        id: str | None = None,
        expected_version: int | None = None,
        at: datetime | None = None,
        timeout: float = 10.0,
    ) -> Receipt:
        """The receipt; a refusal raises the command's own DomainError."""
        answer = self._decide(command, id, expected_version, at)
        self._settle()
        if isinstance(answer, LeftfoldError):
            raise answer
        return answer

    async def asend(
        self,
        command: Command,
        /,
        *,
        id: str | None = None,
        expected_version: int | None = None,
        at: datetime | None = None,
        timeout: float = 10.0,
    ) -> Receipt:
        """`send` for asyncio."""
        return self.send(command, id=id, expected_version=expected_version, at=at, timeout=timeout)

    def send_many(
        self,
        commands: Iterable[Command],
        /,
        *,
        ids: Iterable[str | None] | None = None,
        expected_versions: Iterable[int | None] | None = None,
        times: Iterable[datetime | None] | None = None,
        timeout: float = 10.0,
    ) -> list[Receipt | LeftfoldError]:
        """Receipts and errors in the order of the commands."""
        rows = list(asked(commands, ids, expected_versions, times))
        answers = [self._decide(*row) for row in rows]
        self._settle()
        return answers

    def send_each(
        self,
        commands: Iterable[Command],
        /,
        *,
        window: int = 1000,
        ids: Iterable[str | None] | None = None,
        expected_versions: Iterable[int | None] | None = None,
        times: Iterable[datetime | None] | None = None,
        timeout: float = 10.0,
    ) -> Iterator[Receipt | LeftfoldError]:
        """Receipts and errors one by one; each command is decided, and folded, when its result is asked for."""
        for row in asked(commands, ids, expected_versions, times):
            answer = self._decide(*row)
            self._settle()
            yield answer
