"""Batches of commands over HTTP: lines in, their answers in the same order out, while both sides go on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Header, Request
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from leftfold.client.commands import Client
from leftfold.errors import LeftfoldError, OutcomeUnknown
from leftfold.http.access import LEEWAY_SECONDS, Access, Permission, Principal
from leftfold.http.gateway_server import PART_SECONDS
from leftfold.http.problems import ProblemError, error_responses, problem_of, refusal, refusal_of
from leftfold.http.routes import TIMEOUT, WAIT_SECONDS, AcceptedCommand, FirstConnection, ResponseInParts
from leftfold.model.messages import Command
from leftfold.model.position import Receipt

__all__ = ["MOST_BATCHES", "MOST_SENDING", "BatchRoutes"]

_NDJSON = "application/x-ndjson"
_MOST_BYTES = 1_048_576
"""The longest line of a batch."""
_CHUNK = 200
"""Commands of a batch that are sent at once; fewer when they have as many bytes as the longest line may have."""
_PAUSE_SECONDS = 0.05
"""How long lines wait for further ones before they are sent."""
MOST_BATCHES, MOST_SENDING = 256, 32
"""Batches at once, and how many of them send; each of these takes one of the forty threads of all requests."""
_KEY = Header(min_length=1, max_length=180, description="Line n has this key with /n behind it.")
_LINE = "Each line of the body is a command; each line of the answer is its receipt or its problem."


class BatchRoutes:
    """The routes that take many commands of a class.

    Args:
        most: batches at once. sending: how many of them send at once; the others wait.
    """

    def __init__(
        self, client: FirstConnection[Client], access: Access, *, most: int = MOST_BATCHES, sending: int = MOST_SENDING
    ) -> None:
        self._client, self._access = client, access
        self._batches, self._sending = asyncio.Semaphore(most), asyncio.Semaphore(sending)

    def add(self, router: APIRouter, command: type[Command], operation: str) -> None:
        """Adds the route of a command class.

        Args:
            operation: its name in the ids of operations.
        """
        spec, lines = command.__leftfold__, {"schema": {"type": "string", "description": _LINE}}

        async def batch(
            request: Request,
            idempotency_key: Annotated[str | None, _KEY] = None,
            timeout: Annotated[float, TIMEOUT] = WAIT_SECONDS,
        ) -> StreamingResponse:
            principal = await self._access.check_command(request, command)
            # As with one command: without this type, a page of another site may send lines unasked (no CORS preflight).
            if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _NDJSON:
                raise refusal(415, f"send one command per line, with the header Content-Type: {_NDJSON}")
            if "if-match" in request.headers:
                raise refusal(400, "a batch has no If-Match; send commands with If-Match one by one")
            if self._batches.locked():
                raise refusal(503, "as many batches as may be are sent already; send it again in a second")
            client = await self._client.client()
            ids = (f"{idempotency_key}/{number}" if idempotency_key else str(uuid4()) for number in count())
            part: float | None = request.scope.get(PART_SECONDS)
            sender = _BatchSender(client, command, principal, self._access, ids, timeout, self._sending, part)
            return _BatchLines(sender.send(_lines(request)), self._batches)

        router.post(
            f"/commands/{spec.category}/{spec.name}:batch", summary=f"Send many {spec.name}, in order",
            operation_id=f"send_many_{operation}",
            name=f"batch of {spec.name}", tags=[f"commands of {spec.category}"], response_class=StreamingResponse,
            responses={200: {"content": {_NDJSON: lines}}, **error_responses(400, 401, 403, 415, 431, 500, 503)},
            openapi_extra={"requestBody": {"content": {_NDJSON: lines}}},
        )(batch)  # fmt: skip


@dataclass
class _BatchSender:
    """Sends the lines of a batch while they are read, some hundred at once.

    Args:
        sending: held while some are sent. part_seconds: how long it waits for a line when it has answered the last one.
        ends: why nothing behind these answers is sent; None = it is.
    """

    client: Client
    command: type[Command]
    principal: Principal
    access: Access
    ids: Iterator[str]
    timeout: float
    sending: asyncio.Semaphore
    part_seconds: float | None = None
    ends: ProblemError | None = None

    async def send(self, lines: AsyncGenerator[list[bytes], None]) -> AsyncGenerator[bytes, None]:
        """The answers, in the order of the lines."""
        async with aclosing(self._chunks(lines)) as chunks:
            async for chunk in chunks:
                until = self.principal.expires
                if chunk and until is not None and time.time() > until + LEEWAY_SECONDS:
                    self.ends = refusal(401, "the token has expired; nothing from here on was sent")
                for answer in await self._send_chunk(chunk) if self.ends is None else ():
                    yield answer
                if self.ends is not None:
                    break
        if self.ends is not None:
            yield _line("", self.ends)

    async def _chunks(self, lines: AsyncGenerator[list[bytes], None]) -> AsyncGenerator[list[bytes], None]:
        """Lines that are sent at once, also when no further one comes for a moment: their sender may wait for answers.

        `ends` is set where a line is longer than a command may be, or takes too long.
        """
        chunk, size, ends = list[bytes](), 0, None
        following = asyncio.ensure_future(anext(lines, None))
        try:
            while True:
                await asyncio.wait({following}, timeout=_PAUSE_SECONDS if chunk else self.part_seconds)
                if not following.done():
                    if not chunk:
                        raise refusal(408, f"a line took more than {self.part_seconds:g} s")
                    yield chunk
                    chunk, size = [], 0
                    continue
                if (found := await following) is None:
                    break
                following = asyncio.ensure_future(anext(lines, None))
                for line in found:
                    chunk.append(line)
                    size += len(line)
                    if len(chunk) == _CHUNK or size > _MOST_BYTES:
                        yield chunk
                        chunk, size = [], 0
        except ProblemError as error:
            ends = error
        finally:
            following.cancel()
            await asyncio.wait({following})
            if not following.cancelled():
                following.exception()  # it was seen, or comes too late
            await lines.aclose()
        if chunk:
            yield chunk
        self.ends = self.ends or ends

    async def _send_chunk(self, lines: list[bytes]) -> list[bytes]:
        """The answers to some lines; those that are no command of the class, or not allowed, are not sent."""
        spec = self.command.__leftfold__
        found: list[tuple[str, Command | ProblemError]] = []
        for line in lines:
            id_ = next(self.ids)
            try:
                one = self.command.model_validate_json(line)
                await self.access.check(self.principal, Permission("command", f"{spec.category}.{spec.name}", one))
                found.append((id_, one))
            except ValidationError as error:
                found.append(("", refusal_of(error.errors(include_url=False, include_context=False))))
            except ProblemError as error:
                found.append(("", error))
        commands, used = [one for _, one in found if isinstance(one, Command)], [id_ for id_, _ in found if id_]
        options: dict[str, Any] = {"principal": self.principal.name, "timeout": self.timeout}
        try:
            async with self.sending:
                receipts = await run_in_threadpool(self.client.send_many, commands, ids=used, **options)
        except LeftfoldError as error:
            receipts = [error] * len(commands)
        except asyncio.CancelledError:  # the server ends, and its time for running requests is over
            why = "the gateway ends; send it again with the same Idempotency-Key"
            receipts = [OutcomeUnknown(id_, why) for id_ in used]
            self.ends = refusal(503, "the gateway ends; nothing from here on was sent")
        answers = iter(receipts)
        return [_line(id_, next(answers) if isinstance(one, Command) else one) for id_, one in found]


def _line(id_: str, answer: Receipt | LeftfoldError | ProblemError) -> bytes:
    if isinstance(answer, Receipt):
        fields = AcceptedCommand.of(id_, answer).model_dump()
    else:
        fields = {**({"id": id_} if id_ else {}), **problem_of(answer).model_dump(mode="json")}
    return json.dumps(fields, separators=(",", ":"), default=str).encode() + b"\n"


class _BatchLines(ResponseInParts):
    """An answer that is written while the body is read: nothing else may take messages from the body."""

    def __init__(self, lines: AsyncGenerator[bytes, None], batches: asyncio.Semaphore) -> None:
        super().__init__(lines, _NDJSON)
        self._batches = batches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._batches:
            with suppress(ClientDisconnect):  # no fault of the gateway, which its server would log
                await self.stream_response(send)


async def _lines(request: Request) -> AsyncGenerator[list[bytes], None]:
    """The lines of a body that are not empty, as they arrive.

    Raises:
        ProblemError: a line is longer than a command may be; nothing behind it is read.
    """
    rest = b""
    async for part in request.stream():
        *lines, rest = (rest + part).split(b"\n")
        if whole := [line for line in lines if line.strip()]:
            yield whole
        if len(rest) > _MOST_BYTES:
            raise refusal(413, f"a line has more than {_MOST_BYTES:,} bytes; nothing from it on was sent")
    if rest.strip():
        yield [rest]
