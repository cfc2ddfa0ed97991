"""What routes share: names, tokens of positions, receipts, problems as answers, HEAD, parts, reads, connections."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import Message, Receive, Scope, Send

from leftfold.client.reader import Reader
from leftfold.errors import ContractError, LeftfoldError
from leftfold.http.problems import problem_response, refusal
from leftfold.model.position import Position, Receipt

__all__ = [
    "CACHE_CONTROL",
    "POSITION_HEADER",
    "TIMEOUT",
    "WAIT_SECONDS",
    "AcceptedCommand",
    "FirstConnection",
    "ProblemRoute",
    "ResponseInParts",
    "is_known",
    "operation_name",
    "position_in",
    "query_schema",
    "read_by_values",
    "read_in_thread",
    "schema_name",
    "token_of",
]

POSITION_HEADER = "Leftfold-Position"
CACHE_CONTROL = "private, no-cache"
"""Answers are for their caller alone, and asked for again: caches between do not know an API key as a secret."""
TIMEOUT = Query(gt=0, le=60, description="Seconds to wait for the answer.")
WAIT_SECONDS = 10.0
_NO_OFFSET = 1 << 63
_THREADS = ThreadPoolExecutor(8, "long-reads")
"""Of their own: reads of long partitions and of whole indexes take a while, and must not keep batches from theirs."""
_MOST_READS = 64
_reads: set[asyncio.Future[Any]] = set()
"""Reads that run or wait for a thread, also those whose callers are away by now."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")
C = TypeVar("C")
T = TypeVar("T")


class _TextConvertor(PathConvertor):
    """The rest of a path, also with newlines, before which Starlette's own ends: it would name another key."""

    regex = r"[\s\S]*"


register_url_convertor("text", _TextConvertor())


def operation_name(name: str) -> str:
    """The name of a command class or view in the ids of operations: `OpenBasket` is open_basket."""
    return "_".join(word.lower() for word in _WORD.findall(name))


def schema_name(name: str) -> str:
    """The name of a view or category in the names of schemas: `basket_summary` is BasketSummary."""
    return "".join(word[:1].upper() + word[1:] for word in _WORD.findall(name))


def query_schema(type_: Any) -> dict[str, Any]:
    """The schema of an indexed field as text of a query parameter, whole and without null."""
    schema = TypeAdapter(type_).json_schema(mode="serialization")
    named = schema.pop("$defs", {})
    kinds = [named[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in schema.get("anyOf", [schema])]
    kinds = [one for one in kinds if one.get("type") != "null"]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def is_known(etag: str, headers: Iterable[str]) -> bool:
    """Whether If-None-Match names the ETag; it compares weakly (RFC 9110, 13.1.2)."""
    known = [one.strip() for header in headers for one in header.split(",")]
    return "*" in known or etag in [one.removeprefix("W/") for one in known]


def token_of(position: Position) -> str:
    """The token of a position: the base64url form of its JSON."""
    return base64.urlsafe_b64encode(position.to_json().encode()).decode().rstrip("=")


def position_in(token: str) -> Position:
    """The position in a token.

    Raises:
        ProblemError: it is no token of a position.
    """
    try:
        found = Position.from_json(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
        if any(offset >= _NO_OFFSET for offset in found.by_partition().values()):
            raise ValueError("an offset that no broker has")
    except (binascii.Error, ValueError, ContractError) as error:
        raise refusal(400, f"{token[:80]!r} is no position; use the {POSITION_HEADER} of an answer") from error
    return found


class AcceptedCommand(BaseModel):
    """The receipt of an accepted command; `position` is the token for `after=` of a read."""

    id: str
    version: int
    events: int
    position: str

    @classmethod
    def of(cls, id_: str, receipt: Receipt) -> AcceptedCommand:
        """The answer to a command with this id."""
        position = token_of(receipt.position)
        return cls(id=id_, version=receipt.version, events=receipt.events, position=position)


class ProblemRoute(APIRoute):
    """A route whose errors are problem details in any application, and that answers HEAD where it answers GET."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of the endpoint, with its errors as answers."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                answer = await handler(request)
            except (HTTPException, LeftfoldError, RequestValidationError) as error:
                answer = problem_response(error, request.scope)
            answer.headers.setdefault("Cache-Control", CACHE_CONTROL)
            return answer

        return handle

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for this route."""
        match, found = super().matches(self._as_get(scope))
        # Starlette's patterns also end before a last newline: rules of a proxy for the path would not see this one.
        is_other = scope.get("path", "").endswith("\n") and not found.get("path_params")
        return (Match.NONE, {}) if is_other else (match, found)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request for this path, also one with another method."""

        async def send_head(message: Message) -> None:
            # The answer ends here: the body of a stream has no end, and the connection is wanted for the next request.
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b""})

        is_head = scope["method"] == "HEAD"
        try:
            await super().handle(self._as_get(scope), receive, send_head if is_head else send)
        except HTTPException as error:
            if error.status_code != 405:
                raise
            methods = self.methods or set()
            allowed = sorted({*methods, "HEAD"} if "GET" in methods else methods)
            problem = refusal(405, f"{scope['method']} is not among {', '.join(allowed)}")
            problem.headers = {"Allow": ", ".join(allowed)}
            await problem_response(problem, scope)(scope, receive, send)

    def _as_get(self, scope: Scope) -> Scope:
        return {**scope, "method": "GET"} if scope.get("method") == "HEAD" and "GET" in (self.methods or ()) else scope


class ResponseInParts(StreamingResponse):
    """An answer whose parts a generator makes, which ends with it, also when it is cancelled in the middle of a write.

    Left to the garbage collector, two generators of which one reads the other are closed at the same time, and fail.
    """

    def __init__(
        self, parts: AsyncGenerator[bytes, None], media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(parts, headers=headers, media_type=media_type)
        self._parts = parts

    async def stream_response(self, send: Send) -> None:
        """Sends the answer."""
        async with aclosing(self._parts):
            await super().stream_response(send)


async def read_in_thread(read: Callable[[], T]) -> T:
    """The result of a read that takes a while, for which the requests of others do not wait.

    Raises:
        ProblemError: 503: as many as may be run or wait already.
    """
    if len(_reads) >= _MOST_READS:
        raise refusal(503, f"{_MOST_READS} long reads run or wait already; come again in a second")
    reading = asyncio.get_running_loop().run_in_executor(_THREADS, read)
    _reads.add(reading)
    reading.add_done_callback(_reads.discard)
    return await reading


async def read_by_values(
    reader: Reader[Any, Any],
    read: Callable[..., T],
    aread: Callable[..., Awaitable[T]],
    equal: Mapping[str, Any],
    options: Mapping[str, Any],
) -> T:
    """A search by values. One by several reads all entries of each: on a thread, past the requests of others."""
    if len(equal) <= 1:
        return await aread(**equal, **options)
    if "after" in options:
        await reader.await_reached(options["after"], timeout=options["timeout"])
    return await read_in_thread(partial(read, **equal, **options))


class FirstConnection(Generic[C]):
    """The client of an App for all requests of a gateway, connected when the first one asks for it.

    An attempt may take seconds while servers are down. Requests share it and its error, so that each of them is
    answered in that time, however many there are; the next request tries again.
    """

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._client: C | None = None
        self._attempt: asyncio.Task[C] | None = None

    async def client(self) -> C:
        """The client. Raises LeftfoldError: it cannot be connected."""
        if self._client is not None:
            return self._client
        if self._attempt is None or self._attempt.done():
            self._attempt = asyncio.ensure_future(asyncio.to_thread(self._connect))
        # A request that is cancelled must not cancel the attempt of the others.
        self._client = await asyncio.shield(self._attempt)
        return self._client
