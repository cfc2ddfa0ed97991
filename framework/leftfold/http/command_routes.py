"""Commands over HTTP: one route for each class, and what became of a command."""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

from fastapi import APIRouter, Header, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError, WrapValidator

from leftfold.client.commands import Client
from leftfold.engine.processing.command_wire import DELIVERY_SECONDS
from leftfold.errors import InfrastructureError, LeftfoldError, OutcomeUnknown
from leftfold.http.access import Access
from leftfold.http.batches import MOST_BATCHES, MOST_SENDING, BatchRoutes
from leftfold.http.problems import ProblemError, error_responses, problem_of, refusal
from leftfold.http.routes import POSITION_HEADER, TIMEOUT, WAIT_SECONDS, AcceptedCommand, FirstConnection
from leftfold.http.shortcuts import PlainRequest, Shortcut
from leftfold.model.messages import Command
from leftfold.model.position import Receipt

__all__ = ["CommandRoutes"]

_MOST_KNOWN, _MOST_KNOWN_BYTES = 10_000, 67_108_864
_ANSWERED_SECONDS = 60.0 - DELIVERY_SECONDS
"""How long after a command was sent it may be sent again to ask for its answer.

A stream keeps an answer for 60 seconds, and the copy may take as long to reach the log as any command.
"""
_MOST_UNDER_WAY = 1000
"""Commands that are sent without a request that waits for them."""
_ID = re.compile(rb"[!-~]{1,200}")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"?')


class UnknownOutcome(BaseModel):
    """A command whose outcome is not known yet; ask at `status`, or send it again with the same Idempotency-Key."""

    id: str
    status: str
    why: str


class _Sent(NamedTuple):
    """A command that was sent, so that its outcome can be asked for again.

    Args:
        path: of its route. size: of its JSON, in bytes. at: when it was sent first, by the clock of the routes.
    """

    path: str
    id: str
    command: Command
    expected: int | None
    principal: str
    size: int
    at: float
    task: asyncio.Task[Receipt] | None = None

    @property
    def place(self) -> tuple[str, str, str]:
        """Where it is remembered: the right to send one command is no right to learn of another."""
        return self.path, self.principal, self.id

    async def send(self, client: Client, timeout: float) -> Receipt:
        """Sends it, once more if it was before."""
        return await client.asend(
            self.command, id=self.id, expected_version=self.expected, principal=self.principal, timeout=timeout
        )


class CommandRoutes:
    """The routes of an App's commands.

    A command is decided once for each Idempotency-Key, however often it is sent. The last 10,000 that had no outcome in
    their answer, or 64 MiB of them, are remembered for their status link. It sends one again when its outcome is not
    known, but only while its first answer is sure to be: a GET must not make a command happen twice.

    Args:
        clock: the present, in seconds. most: commands at once that no request waits for. most_bytes: of these, and of
            those that are remembered. batches: at once. sending: how many of these send at once.
    """

    def __init__(
        self,
        client: FirstConnection[Client],
        access: Access,
        *,
        clock: Callable[[], float] = time.monotonic,
        most: int = _MOST_UNDER_WAY,
        most_bytes: int = _MOST_KNOWN_BYTES,
        batches: int = MOST_BATCHES,
        sending: int = MOST_SENDING,
    ) -> None:
        self._client, self._access, self._clock = client, access, clock
        self._most, self._most_bytes = most, most_bytes
        self.shortcuts: dict[str, Shortcut] = {}
        """The shortcuts of commands, by path."""
        self._remembered: OrderedDict[tuple[str, str, str], _Sent] = OrderedDict()
        self._bytes = 0
        self._under_way: dict[asyncio.Task[Receipt], int] = {}
        self._batches = BatchRoutes(client, access, most=batches, sending=sending)

    def add(self, router: APIRouter, command: type[Command], operation: str) -> None:
        """Adds the routes of a command class.

        Args:
            operation: its name in the ids of operations.
        """
        spec = command.__leftfold__
        path, tag = f"/commands/{spec.category}/{spec.name}", f"commands of {spec.category}"
        common_errors = (400, 401, 403, 409, 412, 422, 431, 500, 503)
        summary = (command.__doc__ or spec.name).strip().splitlines()[0]

        async def send(
            request: Request,
            body: Any,
            idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
            if_match: Annotated[str | None, Header(description='The expected version: "7"; "0" = no stream.')] = None,
            prefer: Annotated[str | None, Header(description="respond-async answers before the decision.")] = None,
            timeout: Annotated[float, TIMEOUT] = WAIT_SECONDS,
        ) -> Response:
            text = await request.body()
            body = _read(command, body, text)
            principal = await self._access.check_command(request, command, body)
            id_ = idempotency_key or str(uuid4())
            sent = _Sent(path, id_, body, _version_in(if_match), principal.name, len(text), self._clock())
            before = self._remembered.get(sent.place, sent)
            if (before.command, before.expected) != (sent.command, sent.expected):
                why = f"{id_[:80]!r} is the Idempotency-Key of another command, or of this one with another If-Match"
                raise refusal(409, f"{why}; give each its own")
            if prefer is not None and _is_async(request.headers.getlist("prefer")):
                await self._send_later(sent, timeout)
                return _not_known(request, id_, "it was sent, and is not waited for")
            return await self._answer(request, sent, timeout)

        async def status(
            request: Request,
            id_: Annotated[str, Path(alias="id", max_length=200)],
            timeout: Annotated[float, TIMEOUT] = WAIT_SECONDS,
        ) -> Response:
            principal = await self._access.check_command(request, command)
            if (sent := self._remembered.get((path, principal.name, id_))) is None:
                advice = f"send it again with Idempotency-Key {id_}: it is decided once"
                raise refusal(404, f"command {id_[:80]!r} is not waited for here; {advice}")
            if sent.task is None:
                if self._clock() - sent.at > _ANSWERED_SECONDS:
                    advice = "read its stream, or send it again with If-Match and another Idempotency-Key"
                    raise refusal(404, f"command {id_[:80]!r} was sent too long ago to ask for its answer; {advice}")
                sent = await self._send_later(sent, timeout)
            return await self._answer(request, sent, timeout)

        async def send_plainly(plain: PlainRequest) -> Response | None:
            """The answer to a command with no more than an Idempotency-Key."""
            id_ = plain.headers.get(b"idempotency-key")
            kind = plain.headers.get(b"content-type", b"").partition(b";")[0]
            if plain.query or kind != b"application/json" or (id_ is not None and not _ID.fullmatch(id_)):
                return None
            try:
                body = command.model_validate_json(plain.body)
            except ValidationError:
                return None
            principal = await self._access.check_command(plain.request, command, body)
            name = str(uuid4()) if id_ is None else id_.decode()
            sent = _Sent(path, name, body, None, principal.name, len(plain.body), self._clock())
            if sent.place in self._remembered:
                return None
            return await self._answer(plain.request, sent, WAIT_SECONDS)

        self.shortcuts[path] = send_plainly
        # FastAPI describes the body and parses it; `_read` reads it.
        send.__annotations__["body"] = Annotated[command, WrapValidator(lambda value, _: value)]
        unknown = {"model": UnknownOutcome, "description": "The outcome is not known yet."}
        answers: dict[int | str, dict[str, Any]] = {
            200: {"headers": _headers(POSITION_HEADER, "ETag")},
            202: {"headers": _headers("Location"), **unknown},
        }
        common: dict[str, Any] = {"tags": [tag], "response_model": AcceptedCommand}
        router.post(
            path, summary=summary, operation_id=f"send_{operation}", name=f"send {spec.name}",
            responses={**answers, **error_responses(*common_errors, 408, 413, 415)}, **common,
        )(send)  # fmt: skip
        router.get(
            f"{path}/{{id:text}}", summary=f"What became of a {spec.name}", operation_id=f"get_outcome_of_{operation}",
            name=f"outcome of {spec.name}", responses={**answers, **error_responses(*common_errors, 404)}, **common,
        )(status)  # fmt: skip
        self._batches.add(router, command, operation)

    async def close(self) -> None:
        """Cancels waiting for commands without a request for their outcome; they may happen."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _send_later(self, sent: _Sent, timeout: float) -> _Sent:
        """Sends a command in a task, which its status link waits for."""
        client = await self._client.client()
        if len(self._under_way) >= self._most or sum(self._under_way.values()) + sent.size > self._most_bytes:
            most = f"{self._most:,} commands or {self._most_bytes:,} bytes of them"
            raise refusal(503, f"{most} are under way that no request waits for; try it in a second")
        task = asyncio.create_task(sent.send(client, timeout))
        self._under_way[task] = sent.size
        task.add_done_callback(self._end)
        self._remember(sent := sent._replace(task=task))
        return sent

    def _end(self, task: asyncio.Task[Receipt]) -> None:
        del self._under_way[task]
        if not task.cancelled():
            task.exception()  # it is shown to the next request for it, which may never come

    async def _answer(self, request: Request, sent: _Sent, timeout: float) -> Response:
        """Waits for the outcome of a command that is sent now, or by a task."""
        try:
            if sent.task is not None:
                receipt = await asyncio.wait_for(asyncio.shield(sent.task), timeout)
            else:
                receipt = await sent.send(await self._client.client(), timeout)
        except OutcomeUnknown as error:
            self._remember(sent._replace(task=None))
            return _not_known(request, sent.id, error.why)
        except asyncio.CancelledError:  # the server ends, and its time for running requests is over
            return _not_known(request, sent.id, "the gateway ends; send it again with the same Idempotency-Key")
        except TimeoutError:
            return _not_known(request, sent.id, f"no answer within {timeout:g} s")
        except LeftfoldError as error:
            if isinstance(error, InfrastructureError) and sent.task is not None:
                self._remember(sent._replace(task=None))
            raise ProblemError(problem_of(error, has_precondition=sent.expected is not None)) from error
        body = AcceptedCommand.of(sent.id, receipt)
        headers = {POSITION_HEADER: body.position, "ETag": f'"{body.version}"'}
        return JSONResponse(body.model_dump(), headers=headers)

    def _remember(self, sent: _Sent) -> None:
        before = self._remembered.pop(sent.place, sent._replace(size=0))
        self._remembered[sent.place] = sent._replace(at=min(before.at, sent.at))
        self._bytes += sent.size - before.size
        while len(self._remembered) > _MOST_KNOWN or self._bytes > self._most_bytes:
            ended = (place for place, one in self._remembered.items() if one.task is None or one.task.done())
            if (oldest := next(ended, None)) is None:
                break
            self._bytes -= self._remembered.pop(oldest).size


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"schema": {"type": "string"}} for name in names}


def _read(command: type[Command], body: Any, text: bytes) -> Command:
    """The command in a body, read as the worker will: pydantic reads JSON and what Python parsed of it differently.

    Raises:
        RequestValidationError: it is none of the class, or not sent as JSON: FastAPI has then not parsed it.
    """
    if isinstance(body, bytes):
        raise RequestValidationError([], body=body)
    try:
        return command.model_validate_json(text)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in found]) from error


def _version_in(if_match: str | None) -> int | None:
    """The expected version in an If-Match header: the ETag of a command's answer, or of a row."""
    if if_match is None:
        return None
    text = if_match.strip().removeprefix("W/").strip('"').partition("-")[0]
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise refusal(400, f'If-Match is {if_match[:80]!r}; it names the version that a stream must have: "7"')
    return int(text)


def _is_async(headers: Iterable[str]) -> bool:
    """Whether lines of Prefer name respond-async, in any case; text in quotes is none of its tokens (RFC 7240, 2)."""
    preferences = (one for header in headers for one in _QUOTED.sub("", header).split(","))
    return any(one.partition(";")[0].strip().lower() == "respond-async" for one in preferences)


def _not_known(request: Request, id_: str, why: str) -> Response:
    path: str = request.scope["path"]
    link = quote(path if request.method == "GET" else f"{path}/{id_}")
    body = UnknownOutcome(id=id_, status=link, why=why)
    return JSONResponse(body.model_dump(), 202, headers={"Location": link, "Retry-After": "1"})
