"""Commands over HTTP: one route for each class, batches, and what became of a command."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote
from uuid import uuid4

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from leftfold.client.commands import Client
from leftfold.errors import InfrastructureError, LeftfoldError, OutcomeUnknown
from leftfold.http.access import Access, Permission, Principal
from leftfold.http.first_connection import FirstConnection
from leftfold.http.problems import ProblemError, error_responses, problem_of, refusal
from leftfold.http.shortcuts import PlainRequest, Shortcut
from leftfold.http.tokens import POSITION_HEADER, token_of
from leftfold.model.messages import Command
from leftfold.model.position import Receipt

__all__ = ["CommandRoutes"]

_NDJSON = "application/x-ndjson"
_MOST_KNOWN, _MOST_KNOWN_BYTES = 10_000, 67_108_864
_ANSWERED_SECONDS = 60.0
"""How long a stream is sure to keep an answer, so that a command may be sent again to ask for it."""
_MOST_BYTES = 1_048_576
"""The longest line of a batch."""
_CHUNK = 200
"""Commands of a batch that are sent at once."""
_TIMEOUT = Query(gt=0, le=60, description="Seconds to wait for the answer.")
_WAIT_SECONDS = 10.0
_ID = re.compile(rb"[!-~]{1,200}")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_BATCH_LINE = "Each line of the body is a command; each line of the answer is its receipt or its problem."


class AcceptedCommand(BaseModel):
    """The receipt of an accepted command; `position` is the token for `after=` of a read."""

    id: str
    version: int
    events: int
    position: str


class UnknownOutcome(BaseModel):
    """A command whose outcome is not known yet; ask at `status`, or send it again with the same Idempotency-Key."""

    id: str
    status: str
    why: str


class _Sent(NamedTuple):
    """A command that was sent, so that its outcome can be asked for again.

    Args:
        size: of its JSON, in bytes. at: when it was sent first, by the clock of the routes.
    """

    command: Command
    expected: int | None
    principal: str
    size: int
    at: float
    task: asyncio.Task[Receipt] | None = None


class CommandRoutes:
    """The routes of an App's commands.

    A command is decided once for each Idempotency-Key, however often it is sent. The last 10,000 commands without a
    known outcome, or 64 MiB of them, are remembered, so that their status link tells what became of them. It sends them
    again for that, but only while their first answer is sure to be known: a GET must not make a command happen twice.

    Args:
        clock: the present, in seconds.
    """

    def __init__(
        self, connect: Callable[[], Client], access: Access, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connection, self._access, self._clock = FirstConnection(connect), access, clock
        self.shortcuts: dict[str, Shortcut] = {}
        """The shortcuts of commands, by path."""
        self._unknown: OrderedDict[tuple[str, str], _Sent] = OrderedDict()
        """By route and id: the right to send one command is no right to learn of another."""
        self._bytes = 0

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
            timeout: Annotated[float, _TIMEOUT] = _WAIT_SECONDS,
        ) -> Response:
            principal = await self._access.check_command(request, command, body)
            text = await request.body()
            _check_text(text, command)
            id_ = idempotency_key or str(uuid4())
            link = f"{quote(request.scope['path'])}/{quote(id_)}"
            sent = _Sent(body, _version_in(if_match), principal.name, len(text), self._clock())
            if prefer is not None and "respond-async" in prefer:
                return await self._respond_later((path, id_), link, sent, timeout)
            return await self._answer((path, id_), link, sent, timeout)

        async def status(
            request: Request,
            id_: Annotated[str, Path(alias="id", max_length=200)],
            timeout: Annotated[float, _TIMEOUT] = _WAIT_SECONDS,
        ) -> Response:
            await self._access.check_command(request, command)
            sent = self._unknown.get((path, id_))
            if sent is None:
                advice = f"send it again with Idempotency-Key {id_}: it is decided once"
                raise refusal(404, f"command {id_[:80]!r} is not waited for here; {advice}")
            if sent.task is None and self._clock() - sent.at > _ANSWERED_SECONDS:
                advice = "read its stream, or send it again with If-Match"
                raise refusal(404, f"command {id_[:80]!r} was sent too long ago to ask for its answer; {advice}")
            return await self._answer((path, id_), quote(request.scope["path"]), sent, timeout)

        async def batch(
            request: Request,
            idempotency_key: Annotated[
                str | None, Header(min_length=1, max_length=180, description="Line n has this key with /n behind it.")
            ] = None,
            timeout: Annotated[float, _TIMEOUT] = _WAIT_SECONDS,
        ) -> StreamingResponse:
            principal = await self._access.check_command(request, command)
            # As with one command: without this type, a page of another site may send lines unasked (no CORS preflight).
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _NDJSON:
                raise refusal(415, f"send one command per line, with the header Content-Type: {_NDJSON}")
            client = await self._connection.client()
            ids = (f"{idempotency_key}/{number}" if idempotency_key else str(uuid4()) for number in count())
            sender = _BatchSender(client, command, principal, self._access, ids, timeout)
            return _BatchLines(sender.send(_lines(request)), media_type=_NDJSON)

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
            link = f"{quote(plain.request.scope['path'])}/{quote(name)}"
            sent = _Sent(body, None, principal.name, len(plain.body), self._clock())
            return await self._answer((path, name), link, sent, _WAIT_SECONDS)

        self.shortcuts[path] = send_plainly
        send.__annotations__["body"] = command
        answers: dict[int | str, dict[str, Any]] = {
            200: {"headers": _headers(POSITION_HEADER, "ETag")},
            202: {
                "model": UnknownOutcome,
                "description": "The outcome is not known yet.",
                "headers": _headers("Location"),
            },
        }
        common: dict[str, Any] = {"tags": [tag], "response_model": AcceptedCommand}
        router.post(
            path, summary=summary, operation_id=f"send_{operation}", name=f"send {spec.name}",
            responses={**answers, **error_responses(*common_errors, 408, 413, 415)}, **common,
        )(send)  # fmt: skip
        router.get(
            f"{path}/{{id:path}}", summary=f"What became of a {spec.name}", operation_id=f"get_outcome_of_{operation}",
            name=f"outcome of {spec.name}", responses={**answers, **error_responses(*common_errors, 404)}, **common,
        )(status)  # fmt: skip
        lines = {"schema": {"type": "string", "description": _BATCH_LINE}}
        router.post(
            f"{path}:batch", summary=f"Send many {spec.name}, in order", operation_id=f"send_many_{operation}",
            name=f"batch of {spec.name}", tags=[tag], response_class=StreamingResponse,
            responses={200: {"content": {_NDJSON: lines}}, **error_responses(400, 401, 403, 415, 431, 500, 503)},
            openapi_extra={"requestBody": {"content": {_NDJSON: lines}}},
        )(batch)  # fmt: skip

    async def close(self) -> None:
        """Cancels waiting for commands without a request for their outcome; they may happen."""
        for sent in list(self._unknown.values()):
            if sent.task is not None:
                sent.task.cancel()
                with suppress(asyncio.CancelledError, LeftfoldError):
                    await sent.task

    async def _respond_later(self, place: tuple[str, str], link: str, sent: _Sent, timeout: float) -> Response:
        task = asyncio.ensure_future(self._send(await self._connection.client(), place[1], sent, timeout))
        self._remember(place, sent._replace(task=task))
        return _not_known(link, place[1], "it was sent, and is not waited for")

    async def _answer(self, place: tuple[str, str], link: str, sent: _Sent, timeout: float) -> Response:
        """Waits for the outcome; a command without a waiting task is sent, again if it was before."""
        _, id_ = place
        try:
            if sent.task is not None:
                receipt = await asyncio.wait_for(asyncio.shield(sent.task), timeout)
            else:
                receipt = await self._send(await self._connection.client(), id_, sent, timeout)
        except OutcomeUnknown as error:
            self._remember(place, sent._replace(task=None))
            return _not_known(link, id_, error.why)
        except asyncio.CancelledError:
            # The server ends, and its time for running requests is over.
            self._remember(place, sent._replace(task=None))
            return _not_known(link, id_, "the gateway ends; send it again with the same Idempotency-Key")
        except TimeoutError:
            return _not_known(link, id_, f"no answer within {timeout:g} s")
        except LeftfoldError as error:
            if not isinstance(error, InfrastructureError):
                self._forget(place)
            raise ProblemError(problem_of(error, has_precondition=sent.expected is not None)) from error
        self._forget(place)
        return _accepted(id_, receipt)

    @staticmethod
    async def _send(client: Client, id_: str, sent: _Sent, timeout: float) -> Receipt:
        return await client.asend(
            sent.command, id=id_, expected_version=sent.expected, principal=sent.principal, timeout=timeout
        )

    def _remember(self, place: tuple[str, str], sent: _Sent) -> None:
        self._forget(place)
        self._unknown[place] = sent
        self._bytes += sent.size
        while len(self._unknown) > _MOST_KNOWN or self._bytes > _MOST_KNOWN_BYTES:
            self._forget(next(iter(self._unknown)))

    def _forget(self, place: tuple[str, str]) -> None:
        if (sent := self._unknown.pop(place, None)) is not None:
            self._bytes -= sent.size


class _BatchSender:
    """Sends the lines of a batch while they are read, some hundred at once."""

    def __init__(
        self,
        client: Client,
        command: type[Command],
        principal: Principal,
        access: Access,
        ids: Iterator[str],
        timeout: float,
    ) -> None:
        self._client, self._command, self._ids, self._timeout = client, command, ids, timeout
        self._principal, self._access = principal, access

    async def send(self, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The answers, in the order of the lines."""
        chunk, last = list[bytes](), b""
        try:
            async for line in lines:
                chunk.append(line)
                if len(chunk) == _CHUNK:
                    for answer in await self._send_chunk(chunk):
                        yield answer
                    chunk = []
        except ProblemError as error:
            last = error.problem.model_dump_json().encode() + b"\n"
        for answer in await self._send_chunk(chunk):
            yield answer
        if last:
            yield last

    async def _send_chunk(self, lines: list[bytes]) -> list[bytes]:
        """The answers to some lines; those that are no command of the class, or not allowed, are not sent."""
        spec = self._command.__leftfold__
        found: list[tuple[str, Command | ValidationError | ProblemError]] = []
        for line in lines:
            id_ = next(self._ids)
            try:
                one = self._command.model_validate_json(line)
                await self._access.check(self._principal, Permission("command", f"{spec.category}.{spec.name}", one))
                found.append((id_, one))
            except (ValidationError, ProblemError) as error:
                found.append(("", error))
        valid = [(id_, one) for id_, one in found if isinstance(one, Command)]
        commands, used = [one for _, one in valid], [id_ for id_, _ in valid]
        send_many = partial(self._client.send_many, principal=self._principal.name, timeout=self._timeout)
        try:
            receipts = await run_in_threadpool(send_many, commands, ids=used)
        except LeftfoldError as error:
            receipts = [error] * len(valid)
        answers = iter(receipts)
        return [_line(id_, next(answers) if isinstance(one, Command) else one) for id_, one in found]


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"schema": {"type": "string"}} for name in names}


def _check_text(body: bytes, command: type[Command]) -> None:
    """Refuses half of a surrogate pair, which Python's JSON reads and UTF-8 cannot hold; pydantic's refuses it."""
    if _SURROGATE.search(body):
        try:
            command.model_validate_json(body)
        except ValidationError as error:
            raise RequestValidationError(error.errors(include_url=False, include_context=False)) from error


def _version_in(if_match: str | None) -> int | None:
    """The expected version in an If-Match header: the ETag of a command's answer, or of a row."""
    if if_match is None:
        return None
    text = if_match.strip().removeprefix("W/").strip('"').partition("-")[0]
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise refusal(400, f'If-Match is {if_match[:80]!r}; it names the version that a stream must have: "7"')
    return int(text)


def _accepted(id_: str, receipt: Receipt) -> Response:
    token = token_of(receipt.position)
    body = AcceptedCommand(id=id_, version=receipt.version, events=receipt.events, position=token)
    return JSONResponse(body.model_dump(), headers={POSITION_HEADER: token, "ETag": f'"{receipt.version}"'})


def _not_known(link: str, id_: str, why: str) -> Response:
    body = UnknownOutcome(id=id_, status=link, why=why)
    return JSONResponse(body.model_dump(), 202, headers={"Location": link, "Retry-After": "1"})


def _line(id_: str, answer: Receipt | LeftfoldError | ValidationError | ProblemError) -> bytes:
    if isinstance(answer, Receipt):
        token = token_of(answer.position)
        fields = AcceptedCommand(id=id_, version=answer.version, events=answer.events, position=token).model_dump()
    elif isinstance(answer, ValidationError):
        wrong = answer.errors(include_url=False, include_context=False, include_input=False)
        fields = refusal(400, "the line is no such command", errors=wrong).problem.model_dump()
    else:
        fields = {**({"id": id_} if id_ else {}), **problem_of(answer).model_dump()}
    return json.dumps(fields, separators=(",", ":"), default=str).encode() + b"\n"


class _BatchLines(StreamingResponse):
    """An answer that is written while the body is read: nothing else may take messages from the body."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


async def _lines(request: Request) -> AsyncIterator[bytes]:
    """The lines of a body that are not empty.

    Raises:
        ProblemError: a line is longer than a command may be; nothing behind it is read.
    """
    rest = b""
    async for part in request.stream():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > _MOST_BYTES:
            raise refusal(413, f"a line has more than {_MOST_BYTES:,} bytes; nothing from it on was sent")
    if rest.strip():
        yield rest
