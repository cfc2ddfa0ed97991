"""The HTTP gateway of an App: commands, views and health as a FastAPI router or application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import JSONResponse
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leftfold.client.commands import Client
from leftfold.client.reader import Views
from leftfold.errors import LeftfoldError, ViewNotBuilt
from leftfold.http.access import Access
from leftfold.http.commands import CommandRoutes
from leftfold.http.problems import PROBLEM_JSON, Problem, ProblemError, problem_of, refusal
from leftfold.http.streams import add_stream
from leftfold.http.views import ViewRoutes
from leftfold.model.app import App
from leftfold.model.position import Recorded
from leftfold.version import __version__

__all__ = ["AppConnection", "gateway", "router"]

_MOST_BYTES = 1_048_576
_GZIP_FROM = 1000
_TELEMETRY: TelemetryConfig = {"operation_spans": False, "logs": False}
"""One span and one duration per request, where the process has an SDK; errors are answered, and need no log."""
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class AppConnection(Protocol):
    """A connection to an App: `connect(app)`, or the world of `memory(app)`."""

    @property
    def client(self) -> Client:
        """The client that sends commands."""

    @property
    def views(self) -> Views:
        """The readers of views."""

    def stream(self, category: str, key: str) -> Iterable[Recorded[Any]]:
        """The events of one stream, in order."""


def router(app: App, connection: AppConnection, *, access: Access | None = None) -> APIRouter:
    """The routes of an App's commands and views, for a FastAPI application of one's own.

    Errors are problem details only in an application with the handlers of `gateway`.

    Args:
        access: who may call; by default everybody.
    """
    rules, found = access or Access(), APIRouter()
    if app.deciders:
        commands = CommandRoutes(lambda: connection.client, rules)
        for decider in app.deciders:
            for command in decider.commands:
                commands.add(found, command)
            add_stream(found, decider, connection.stream, rules)
        found.on_shutdown.append(commands.close)
    if app.views:
        views = ViewRoutes(lambda: connection.views, rules)
        for view in app.views:
            views.add(found, view)
    return found


def gateway(
    apps: Sequence[tuple[App, AppConnection]],
    *,
    access: Access | None = None,
    origins: Sequence[str] = (),
    max_bytes: int = _MOST_BYTES,
    metrics: Callable[[], bytes] | None = None,
) -> FastAPI:
    """An application with the routes of Apps, and with /health/live and /health/ready.

    Args:
        access: who may call; by default everybody. origins: of browsers whose pages may call (CORS).
        max_bytes: the largest body of a request; a batch may be larger in all.
        metrics: returns the metrics of this process, for `/metrics`; None = there is no such route.
    """
    names = ", ".join(app.name for app, _ in apps)
    routers = [router(app, connection, access=access) for app, connection in apps]

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for one in routers:
                for close in one.on_shutdown:
                    stack.push_async_callback(close)
            yield

    found = FastAPI(
        title=f"Leftfold: {names}",
        version=__version__,
        lifespan=lifespan,
        openapi_url="/openapi.json",
        telemetry=_TELEMETRY,
    )
    for one in routers:
        found.include_router(one)
    _add_health(found, apps)
    _add_handlers(found)
    _document_problems(found)
    found.add_middleware(GZipMiddleware, minimum_size=_GZIP_FROM)
    if origins:
        exposed = ["Leftfold-Position", "ETag", "Location", "Retry-After"]
        found.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=exposed,
        )
    found.add_middleware(_BodyLimit, max_bytes=max_bytes)
    if metrics is not None:
        _add_metrics(found, access or Access(), metrics)
    return found


class _BodyLimit:
    """Refuses bodies that are too large, before or while they arrive; batches are read line by line."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app, self._max = app, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].endswith(":batch"):
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max:
            await _problem(refusal(413, f"the body has {int(length):,} bytes; {self._max:,} are the most").problem)(
                scope, receive, send
            )
            return
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > self._max:
                raise refusal(413, f"the body has more than {self._max:,} bytes")
            return message

        await self._app(scope, limited, send)


def _add_health(found: FastAPI, apps: Sequence[tuple[App, AppConnection]]) -> None:
    @found.get("/health/live", tags=["health"], summary="Whether this process works")
    async def live() -> dict[str, str]:
        return {"status": "live"}

    @found.get("/health/ready", tags=["health"], summary="Whether commands and reads can be answered")
    async def ready() -> JSONResponse:
        async def ask(app: App, connection: AppConnection) -> list[str]:
            wrong = []
            try:
                if app.deciders:
                    await asyncio.to_thread(lambda: connection.client)
                for view in app.views:
                    try:
                        await connection.views[view].adescribe()
                    except ViewNotBuilt:
                        continue  # it answers, and says that it is not built
            except LeftfoldError as error:
                wrong.append(f"{app.name}: {error}")
            return wrong

        wrong = [why for app, connection in apps for why in await ask(app, connection)]
        return JSONResponse({"status": "not ready" if wrong else "ready", "why": wrong}, 503 if wrong else 200)


def _add_metrics(found: FastAPI, access: Access, shown: Callable[[], bytes]) -> None:
    @found.get("/metrics", include_in_schema=False)
    def metrics(request: Request) -> Response:
        access.principal(request)
        return Response(shown(), media_type=_PROMETHEUS)


def _add_handlers(found: FastAPI) -> None:
    @found.exception_handler(ProblemError)
    async def problem(request: Request, error: ProblemError) -> JSONResponse:
        return _problem(error.problem)

    @found.exception_handler(LeftfoldError)
    async def known(request: Request, error: LeftfoldError) -> JSONResponse:
        return _problem(problem_of(error))

    @found.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        wrong = [{"loc": list(one["loc"]), "msg": one["msg"], "type": one["type"]} for one in error.errors()]
        where = ".".join(map(str, wrong[0]["loc"])) if wrong else ""
        return _problem(refusal(400, f"{where}: {wrong[0]['msg']}" if wrong else "", errors=wrong).problem)

    @found.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> JSONResponse:
        return _problem(refusal(error.status_code, str(error.detail)).problem, error.headers)


def _problem(problem: Problem, headers: Any = None) -> JSONResponse:
    more = {"Retry-After": "1"} if problem.status == 503 else {}
    return JSONResponse(
        problem.model_dump(), problem.status, headers={**more, **(headers or {})}, media_type=PROBLEM_JSON
    )


def _document_problems(found: FastAPI) -> None:
    """Adds the schema of problems, and removes FastAPI's own errors, which are never answered."""
    make = found.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = Problem.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for path in document["paths"].values():
            for operation in path.values():
                answer = operation["responses"].get("422", {})
                if "HTTPValidationError" in str(answer):
                    del operation["responses"]["422"]
        return document

    found.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation extends it
