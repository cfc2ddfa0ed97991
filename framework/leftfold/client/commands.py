"""The client that sends commands and waits for their answers, the same in memory and in production."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain, repeat
from typing import Any, NamedTuple

from leftfold.errors import LeftfoldError
from leftfold.model import keys as names
from leftfold.model.messages import Command, Event
from leftfold.model.position import Receipt
from leftfold.ports.instruments import (
    COMMAND_SECONDS,
    OPERATION_SECONDS,
    SEND,
    SENT,
    Span,
    by_principal,
    clock,
    member,
    outcome_of,
)

__all__ = ["Client", "CommandRequest"]

_MISSING = object()


class CommandRequest(NamedTuple):
    """A command with the arguments of `send`, and the trace that it belongs to ('' = none)."""

    command: Command
    id: str | None
    expected_version: int | None
    at: datetime | None
    principal: str = ""
    traceparent: str = ""


def _checked(command: Command) -> Command:
    """The command.

    Raises:
        TypeError: it is none; mypy finds that in typed code.
    """
    if isinstance(command, Command):
        return command
    if isinstance(command, Event):
        raise TypeError(f"{type(command).__name__} is an event; send the command that leads to it")
    if isinstance(command, type):
        raise TypeError(f"{command.__name__} is the class itself; send {command.__name__}(...)")
    raise TypeError(f"a client sends commands, one or a list of them with send_many, and not {type(command).__name__}")


def _asked(
    commands: Iterable[Command],
    ids: Iterable[str | None] | None,
    expected_versions: Iterable[int | None] | None,
    times: Iterable[datetime | None] | None,
    principal: str,
) -> Iterator[CommandRequest]:
    """Each command with its id, expected version and time.

    Raises:
        ValueError: there are fewer ids, expected versions or times than commands, or one text instead of ids.
    """
    if isinstance(ids, (str, bytes)):
        raise ValueError(f"ids={ids!r} is one id; say a list of ids: [{ids!r}]")
    columns: list[Iterable[Any]] = [
        repeat(None) if column is None else chain(column, repeat(_MISSING))
        for column in (ids, expected_versions, times)
    ]
    for number, row in enumerate(zip(commands, *columns, strict=False)):
        if _MISSING in row[1:]:
            raise ValueError(f"there are more commands than ids, expected_versions or times: {number}")
        command, id_, version, at = row
        _checked(command)
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
        began, topic, span = _begun(command, principal)
        with span:
            request = CommandRequest(command, id, expected_version, at, principal, span.traceparent)
            (outcome,) = self._send_requests((request,), timeout)
            _ended(span, topic, outcome, began)
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
        began, topic, span = _begun(command, principal)
        with span:
            request = CommandRequest(command, id, expected_version, at, principal, span.traceparent)
            outcome = await self._asend_request(request, timeout)
            _ended(span, topic, outcome, began)
        return _receipt(outcome)

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
            InfrastructureError: there is no broker or no such topic, and nothing was sent.
        """
        return list(self._send_traced(_asked(commands, ids, expected_versions, times, principal), principal, timeout))

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
            window: how many commands may be unanswered at once; 1 if the iterator waits for each result before it gives
                the next command. ids, expected_versions, times, principal, timeout: see `send_many`.

        Raises:
            InfrastructureError: there is no broker or no such topic, and nothing was sent.
        """
        if window < 1:
            raise ValueError(f"window={window}: at least one command must be under way")
        return self._send_traced(_asked(commands, ids, expected_versions, times, principal), principal, timeout, window)

    def _send_traced(
        self, requests: Iterable[CommandRequest], principal: str, timeout: float, window: int | None = None
    ) -> Iterator[Receipt | LeftfoldError]:
        """Sends commands within one span, to which all of them belong; they are counted together."""
        began, count, span = clock(), 0, SEND.span("commands", by_principal(principal))
        try:
            context = span.traceparent
            if context:
                requests = (request._replace(traceparent=context) for request in requests)
            for outcome in self._send_requests(requests, timeout, window):
                count += 1
                yield outcome
        finally:
            span.note({"messaging.batch.message_count": count})
            span.end()
            SENT.record(count, _SENDING)
            OPERATION_SECONDS.record(clock() - began, _SENDING)

    @abstractmethod
    def _send_requests(
        self, requests: Iterable[CommandRequest], timeout: float, window: int | None = None
    ) -> Iterator[Receipt | LeftfoldError]:
        """Sends commands with at most `window` in flight, None = as many as possible; yields the outcomes in order."""

    @abstractmethod
    async def _asend_request(self, request: CommandRequest, timeout: float) -> Receipt | LeftfoldError:
        """Sends one command and awaits its outcome."""


_SENDING = {"messaging.system": "kafka", "messaging.operation.name": "send", "messaging.operation.type": "send"}


def _begun(command: Command, principal: str) -> tuple[float, str, Span]:
    """When the sending of one command began, its topic and its span."""
    spec = _checked(command).__leftfold__
    topic = names.commands(spec.category)
    return clock(), topic, SEND.span(topic, {"leftfold.command": spec.name, **by_principal(principal)})


def _ended(span: Span, topic: str, outcome: Receipt | LeftfoldError, began: float) -> None:
    """Records the outcome of one command and the time to its answer."""
    word = outcome_of(outcome)
    span.note({"leftfold.outcome": word})
    if word in ("unknown", "failed"):
        span.fail(type(outcome).__name__)
    COMMAND_SECONDS.record(clock() - began, member("decider", topic.removesuffix(names.commands("")), outcome=word))


def _receipt(outcome: Receipt | LeftfoldError) -> Receipt:
    if isinstance(outcome, LeftfoldError):
        raise outcome
    return outcome
