"""The short way of plain commands and reads by key, which are most requests: past the machinery of FastAPI.

FastAPI finds the route among all, builds a request, and checks each parameter: measured, nine tenths of the time that
a read by key takes. A request that has nothing but what is usual goes the short way here. Every other one, and every
one that is wrong in any way, takes the long way, so that there is one place that says what is wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leftfold.errors import LeftfoldError
from leftfold.http.problems import problem_response
from leftfold.http.routes import CACHE_CONTROL

__all__ = ["PlainRequest", "Shortcut", "Shortcuts"]

_USUAL = frozenset(
    {b"host", b"user-agent", b"accept", b"accept-encoding", b"accept-language", b"connection", b"content-length",
     b"content-type", b"idempotency-key", b"traceparent", b"tracestate", b"authorization", b"x-api-key", b"origin",
     b"cache-control", b"pragma", b"referer",
     b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-proto",
     b"x-real-ip", b"x-request-id", b"x-correlation-id", b"x-amzn-trace-id", b"baggage",
     b"cookie", b"dnt", b"priority", b"sec-gpc", b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site",
     b"sec-fetch-user", b"sec-ch-ua", b"sec-ch-ua-mobile", b"sec-ch-ua-platform", b"upgrade-insecure-requests"}
)  # fmt: skip
"""Headers that change nothing about an answer, or that shortcuts know: of clients, of proxies and of browsers."""


class PlainRequest(NamedTuple):
    """A request for a shortcut: the request, its headers by name, the rest of its path, and its body."""

    request: Request
    headers: Mapping[bytes, bytes]
    rest: str
    query: bytes
    body: bytes


Shortcut: TypeAlias = Callable[[PlainRequest], Awaitable[Response | None]]
"""The answer to a plain request; None = it takes the long way."""


class _Route(NamedTuple):
    """The route of a shortcut, as the long way leaves it in the scope."""

    path: str
    answer: Shortcut


class Shortcuts:
    """The application of a gateway with shortcuts in front.

    Args:
        commands: by their path. rows: by the path before the key.
    """

    def __init__(self, app: ASGIApp, commands: Mapping[str, Shortcut], rows: Mapping[str, Shortcut]) -> None:
        self._app = app
        self._commands = {path: _Route(path, answer) for path, answer in commands.items()}
        self._rows = {path: _Route(f"{path}/{{key}}", answer) for path, answer in rows.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        route, rest = self._route(scope) if scope["type"] == "http" else (None, "")
        headers = {} if route is None else dict(scope["headers"])
        if route is None or len(headers) < len(scope["headers"]) or not headers.keys() <= _USUAL:
            await self._app(scope, receive, send)
            return
        body = b""
        try:
            if scope["method"] == "POST":
                body = await _body(receive)
            plain = PlainRequest(Request(scope), headers, rest, scope["query_string"], body)
            answer = await route.answer(plain)
        except (HTTPException, LeftfoldError) as error:
            answer = problem_response(error, scope)
        if answer is None:
            await self._app(scope, _replayed(body, receive), send)
            return
        answer.headers.setdefault("Cache-Control", CACHE_CONTROL)
        scope["route"] = route
        _name_in_telemetry(scope, route.path)
        await answer(scope, receive, send)

    def _route(self, scope: Scope) -> tuple[_Route | None, str]:
        path: str = scope["path"]
        if scope["method"] == "POST":
            return self._commands.get(path), ""
        if scope["method"] == "GET":
            _, folder, view, key = (*path.split("/", 3), "", "", "")[:4]
            return (self._rows.get(f"/{folder}/{view}") if key and path.startswith("/") else None), key
        return None, ""


def _name_in_telemetry(scope: Scope, path: str) -> None:
    """Names span and duration of the request as FastAPI does when it has found the route."""
    if (found := scope.get("fastapi.telemetry")) is not None:
        found.route = path
        if found.span is not None:
            found.span.update_name(f"{found.span_method} {path}")
            found.span.set_attribute("http.route", path)


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """What receives the body that was read already, then the end of the connection."""
    is_read = False

    async def again() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
