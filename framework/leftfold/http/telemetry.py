"""The span and the duration of each request to the gateway, and its `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leftfold.http.access import Access
from leftfold.ports.telemetry import REQUEST_SECONDS, Attributes, Operation, clock

__all__ = ["TracedRequests", "add_metrics"]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class TracedRequests:
    """Records the duration of requests, each within a span below the one that the caller names in `traceparent`.

    Spans and metrics are named by the route, not by the path, which has keys in it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        caller = dict(scope["headers"]).get(b"traceparent", b"")
        began, status = clock(), 500

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        operation = Operation(method, "", "server", kafka=False)
        with operation.span("", {"http.request.method": method, "url.path": scope["path"]}, parent=caller) as span:
            try:
                await self._app(scope, receive, observed)
            finally:
                route = getattr(scope.get("route"), "path", "")
                about: dict[str, str | int | float | bool] = {"http.response.status_code": status}
                about |= {"http.route": route} if route else {}
                span.rename(f"{method} {route}".strip())
                span.note(about)
                if status >= 500:
                    span.fail(str(status))
                measured: Attributes = {"http.request.method": method, **about}
                REQUEST_SECONDS.record(clock() - began, measured)


def add_metrics(found: FastAPI, access: Access, shown: Callable[[], bytes]) -> None:
    """Adds `/metrics` for Prometheus, to those who may call the gateway.

    Args:
        shown: returns the metrics of this process as text.
    """

    @found.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        access.principal(request)
        return Response(shown(), media_type=_PROMETHEUS)
