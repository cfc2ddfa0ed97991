"""The client that sends commands and waits for their answers, the same in memory and in production."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, repeat
from typing import Any, NamedTuple

from leftfold.errors import LeftfoldError
from leftfold.model.messages import Command
from leftfold.model.position import Receipt

__all__ = ["Client", "CommandRequest"]

_MISSING = object()


class CommandRequest(NamedTuple):
    """A command with the arguments of `send`."""

    command: Command
    id: str | None
    expected_version: int | None
    at: datetime | None
    principal: str = ""


def _asked(
    commands: Iterable[Command],
    ids: Iterable[str | None] | None,
    expected_versions: Iterable[int | None] | None,
    times: Iterable[datetime | None] | None,
    principal: str,
) -> Iterator[CommandRequest]:
    """Each command with its id, expected version and time.

    Raises:
        ValueError: there are fewer ids, expected versions or times than commands.
    """
    columns: list[Iterable[Any]] = [
        repeat(None) if column is None else chain(column, repeat(_MISSING))
        for column in (ids, expected_versions, times)
    ]
    for number, row in enumerate(zip(commands, *columns, strict=False)):
        if _MISSING in row[1:]:
            raise ValueError(f"there are more commands than ids, expected_versions or times: {number}")
        command, id_, version, at = row
        yield CommandRequest(command, id_, version, at, principal)


class Client(ABC):
    """A client that sends commands and waits for their answers; threads and tasks may share it.

    A command with an `id` that was decided before is not decided again: it gets the same answer as then. A command that
    raised OutcomeUnknown is therefore safely sent again with the same id.
    """

    def send(
        self,
        command: Command,
        /,
        *,
        id: str | None = None,
        expected_version: int | None = None,
        at: datetime | None = None,
        principal: str = "",
        timeout: float = 10.0,
    ) -> Receipt:
        """Sends one command and waits for its answer.

        Args:
            id: an idempotency key; a fresh one is made when absent.
            expected_version: the stream's version that this command presumes; 0 = it does not exist yet.
            at: when the command was requested, aware; absent = now. It becomes the events' time.
            principal: on whose behalf; events and what follows from them carry it.
            timeout: seconds to wait for the answer.

        Raises:
            DomainError: a business rule rejected it; one of those that the command declares.
            ConflictError: the stream is at another version.
            OutcomeUnknown: no answer in time; the command may have happened, or may yet.
            ContractError: the command cannot be sent, or no worker can read it.
            InfrastructureError: there is no broker or no such topic, and nothing was sent.
        """
        (outcome,) = self._send_requests((CommandRequest(command, id, expected_version, at, principal),), timeout)
        return _receipt(outcome)

    async def asend(
        self,
        command: Command,
        /,
        *,
        id: str | None = None,
        expected_version: int | None = None,
        at: datetime | None = None,
        principal: str = "",
        timeout: float = 10.0,
    ) -> Receipt:
        """`send` for asyncio; a cancelled one stops waiting, but the command may happen."""
        request = CommandRequest(command, id, expected_version, at, principal)
        return _receipt(await self._asend_request(request, timeout))

    def send_many(
        self,
        commands: Iterable[Command],
        /,
        *,
        ids: Iterable[str | None] | None = None,
        expected_versions: Iterable[int | None] | None = None,
        times: Iterable[datetime | None] | None = None,
        principal: str = "",
        timeout: float = 10.0,
    ) -> list[Receipt | LeftfoldError]:
        """Sends commands one after another without waiting in between; those of one stream stay in order.

        Args:
            ids, expected_versions, times: one for each command, see `send`. principal: of all of them.
            timeout: seconds to wait for each answer.

        Returns:
            What `send` would have returned or raised for each command, in their order.

        Raises:
            InfrastructureError: there is no broker or no such topic.
        """
        return list(self._send_requests(_asked(commands, ids, expected_versions, times, principal), timeout))

    def send_each(
        self,
        commands: Iterable[Command],
        /,
        *,
        window: int = 1000,
        ids: Iterable[str | None] | None = None,
        expected_versions: Iterable[int | None] | None = None,
        times: Iterable[datetime | None] | None = None,
        principal: str = "",
        timeout: float = 10.0,
    ) -> Iterator[Receipt | LeftfoldError]:
        """`send_many` for any number of commands: reads them as needed, and yields the results in their order.

        It sends nothing before the first result is requested. An iterator that is closed early waits for no more
        answers; commands that were sent may happen.

        Args:
            window: how many commands may be unanswered at once. ids, expected_versions, times, principal, timeout: see
                `send_many`.

        Raises:
            InfrastructureError: there is no broker or no such topic.
        """
        if window < 1:
            raise ValueError(f"window={window}: at least one command must be under way")
        return self._send_requests(_asked(commands, ids, expected_versions, times, principal), timeout, window)

    @abstractmethod
    def _send_requests(
        self, requests: Iterable[CommandRequest], timeout: float, window: int | None = None
    ) -> Iterator[Receipt | LeftfoldError]:
        """Sends commands with at most `window` in flight, None = as many as possible; yields the outcomes in order."""

    @abstractmethod
    async def _asend_request(self, request: CommandRequest, timeout: float) -> Receipt | LeftfoldError:
        """Sends one command and awaits its outcome."""


def _receipt(outcome: Receipt | LeftfoldError) -> Receipt:
    if isinstance(outcome, LeftfoldError):
        raise outcome
    return outcome
